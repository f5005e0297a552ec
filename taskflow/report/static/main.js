// Starts everything, and says when the page can be used: window.taskflow.ready (milliseconds since navigation); what is further
// down follows at once, piece by piece (marks.everything).
async function start() {
  const marks = { begun: performance.now() }, mark = (name) => { marks[name] = performance.now(); };
  const report = await unpackData(at("data").textContent);
  mark("unpacked");
  const colours = colourTable(report.machine);
  const graph = startGraph(report, colours);
  mark("graph");
  const timeline = startTimeline(report, (i) => graph.show(i));
  mark("timeline");
  startDetails(report, colours, (i) => graph.show(i), (i) => timeline.zoomTo(i));
  const parts = [graph, timeline];
  const table = at("operator-table");
  const pick = (e) => {
    const row = e.target.closest("tr[data-operator]");
    if (!row || (e.key && e.key !== "Enter")) return;
    choose(Number(row.dataset.operator));
    if (chosen.operator >= 0) graph.show(chosen.operator);
  };
  table.onclick = table.onkeydown = pick;
  const redraw = () => { inks = null; for (const part of parts) part.redraw(); };
  at("theme").onclick = () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  for (const part of parts) part.draw();
  mark("drawn");
  afterwards(() => startBars(report)); // what lies further down
  afterwards(() => startMachine(report, colours));
  for (const start of [startMemory, startSearch]) afterwards(() => { const part = start(report, colours); parts.push(part); part.draw(); });
  afterwards(() => new ResizeObserver(redraw).observe(document.querySelector("main")));
  afterwards(() => { mark("everything"); });
  window.taskflow = { marks, ready: performance.now(), report, graph, timeline, chosen };
}
start().catch(trouble);
