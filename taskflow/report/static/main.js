// Starts everything, and says when the page can be used: window.taskflow.ready (milliseconds since navigation).
async function start() {
  const marks = { begun: performance.now() }, mark = (name) => { marks[name] = performance.now(); };
  const report = await unpackData(at("data").textContent);
  mark("unpacked");
  const colours = colourTable(report.machine);
  const parts = [];
  const graph = startGraph(report, colours);
  mark("graph");
  const timeline = startTimeline(report, (i) => graph.show(i));
  mark("timeline");
  startDetails(report, colours, (i) => graph.show(i), (i) => timeline.zoomTo(i));
  parts.push(graph, timeline, startMemory(report, colours), startSearch(report));
  startBars(report);
  startMachine(report, colours);
  for (const row of document.querySelectorAll("tr[data-operator]")) {
    row.tabIndex = 0;
    const pick = () => { choose(Number(row.dataset.operator)); if (chosen.operator >= 0) graph.show(chosen.operator); };
    row.onclick = pick;
    row.onkeydown = (e) => { if (e.key === "Enter") pick(); };
  }
  const redraw = () => { inks = null; for (const part of parts) part.redraw(); };
  at("theme").onclick = () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(document.querySelector("main"));
  mark("started");
  for (const part of parts) part.draw();
  mark("drawn");
  window.taskflow = { marks, ready: performance.now(), report, graph, timeline, chosen };
}
start().catch((error) => {
  const box = at("trouble");
  box.hidden = false;
  box.textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later; the tables below hold the figures.`;
  throw error;
});
