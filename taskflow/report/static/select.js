// What is chosen, and who wants to know; drawing happens at most once a frame.
const chosen = { operator: -1, listeners: [] };
function choose(operator) {
  chosen.operator = chosen.operator === operator ? -1 : operator;
  for (const listener of chosen.listeners) listener(chosen.operator);
}
function onFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
}
function trouble(error) {
  const box = at("trouble");
  box.hidden = false;
  box.textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later; the tables below hold the figures.`;
  reportError(error);
}
// Work for which nobody waits: when the page can be used, one piece of it at a time.
const later = [];
function afterwards(work) {
  later.push(work);
  if (later.length > 1) return;
  const next = () => {
    try { later[0](); } catch (error) { trouble(error); }
    later.shift();
    if (later.length) setTimeout(next);
  };
  setTimeout(next);
}
// A canvas that knows its size in CSS pixels and is sharp on every screen.
function surface(canvas) {
  const context = canvas.getContext("2d");
  return {
    canvas, context,
    fit() {
      const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      return { width, height };
    },
  };
}
function tip(event, lines) {
  const box = at("tooltip");
  box.hidden = !lines;
  if (!lines) return;
  box.textContent = lines.filter(Boolean).join("\n");
  const { innerWidth, innerHeight } = window;
  const left = event.clientX + 14 + box.offsetWidth > innerWidth ? event.clientX - box.offsetWidth - 10 : event.clientX + 14;
  const top = event.clientY + 14 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 14;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}
// Drags with the pointer: moved(dx, dy, event) while the button is down; done(event) tells whether it was a click.
function draggable(canvas, moved, clicked) {
  let from = null, far = false;
  canvas.addEventListener("pointerdown", (e) => { from = [e.clientX, e.clientY]; far = false; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", (e) => {
    if (!from) return;
    const dx = e.clientX - from[0], dy = e.clientY - from[1];
    if (!far && Math.hypot(dx, dy) < 4) return;
    far = true;
    from = [e.clientX, e.clientY];
    tip(e, null);
    moved(dx, dy, e);
  });
  canvas.addEventListener("pointerup", (e) => { if (from && !far) clicked(e); from = null; });
  canvas.addEventListener("pointercancel", () => { from = null; });
  return () => from !== null && far;
}
