// Lanes: for each device and link its rows in order of start, so that what is visible is found by binary search.
function buildLanes(report) {
  const { rows, machine } = report, devices = machine.devices.length, links = machine.links.length, count = rows.category.length;
  const pairs = new Map();
  const lanesOf = (source, target) => {
    const key = source * devices + target;
    let found = pairs.get(key);
    if (!found) {
      const copies = machine.copies[`${source} ${target}`] || [false, false];
      found = machine.routes[`${source} ${target}`].map((k) => devices + k);
      if (copies[1]) found.unshift(target);
      if (copies[0]) found.unshift(source);
      pairs.set(key, found);
    }
    return found;
  };
  const message = (i) => rows.category[i] >= 5;
  const sizes = new Int32Array(devices + links + 1);
  for (let i = 0; i < count; i++) {
    if (!message(i)) sizes[rows.processor[i] + 1]++;
    else for (const lane of lanesOf(rows.source[i], rows.processor[i])) sizes[lane + 1]++;
  }
  for (let k = 0; k < devices + links; k++) sizes[k + 1] += sizes[k];
  const ids = new Int32Array(sizes[devices + links]), lags = new Float64Array(ids.length), next = sizes.slice();
  let hop = 0; // a message goes over its route one thing after another: rows.lag says how long before its start
  for (let i = 0; i < count; i++) {
    if (!message(i)) ids[next[rows.processor[i]]++] = i;
    else for (const lane of lanesOf(rows.source[i], rows.processor[i])) { lags[next[lane]] = rows.lag[hop++]; ids[next[lane]++] = i; }
  }
  const lanes = [];
  for (let k = 0; k < devices + links; k++) lanes.push(inOrderOfStart(rows, ids.subarray(sizes[k], sizes[k + 1]), lags.subarray(sizes[k], sizes[k + 1])));
  return lanes;
}
function inOrderOfStart(rows, ids, lags) {
  const at = (i) => rows.start[ids[i]] - lags[i];
  let sorted = true;
  for (let i = 1; i < ids.length && sorted; i++) sorted = at(i - 1) <= at(i);
  if (sorted) return makeLane(rows, ids, lags);
  const order = Array.from(ids, (_, i) => i).sort((a, b) => at(a) - at(b));
  return makeLane(rows, Int32Array.from(order, (i) => ids[i]), Float64Array.from(order, (i) => lags[i]));
}
function makeLane(rows, ids, lags) {
  const busy = new Float64Array(ids.length + 1), start = new Float64Array(ids.length), end = new Float64Array(ids.length);
  for (let i = 0; i < ids.length; i++) {
    start[i] = rows.start[ids[i]] - lags[i];
    end[i] = rows.end[ids[i]] - lags[i];
    busy[i + 1] = busy[i] + rows.busy[ids[i]];
  }
  return { ids, lags, busy, start, end };
}
// The first place from `low` on whose start is at least `time`.
function fromTime(lane, time, low = 0) {
  let high = lane.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.start[middle] < time) low = middle + 1; else high = middle;
  }
  return low;
}
function onlyRows(rows, lane, keep) {
  const kept = [];
  lane.ids.forEach((id, i) => { if (keep(id)) kept.push(i); });
  return makeLane(rows, Int32Array.from(kept, (i) => lane.ids[i]), Float64Array.from(kept, (i) => lane.lags[i]));
}
// Calls paint(x0, x1, row, share): spans of a pixel and more one by one; smaller ones joined a pixel at a time, with the
// share of it in which the lane is busy. At most about two calls a pixel, however many rows there are.
function paintLane(rows, lane, t0, t1, scale, paint) {
  const pixel = 1 / scale, { start, end, ids, busy } = lane;
  let i = Math.max(0, fromTime(lane, t0) - 1);
  while (i < ids.length && start[i] < t1) {
    const length = end[i] - start[i];
    if (end[i] < t0) { i++; continue; }
    if (length >= pixel) {
      paint((start[i] - t0) * scale, (end[i] - t0) * scale, ids[i], rows.busy[ids[i]] / Math.max(1, length));
      i++;
      continue;
    }
    const column = Math.floor((start[i] - t0) * scale), until = t0 + (column + 1) * pixel;
    let j = Math.max(i + 1, fromTime(lane, until, i + 1));
    if (j - 1 > i && end[j - 1] - start[j - 1] >= pixel) j--; // the last one is wide enough for itself
    paint(column, column + 1, ids[(i + j - 1) >> 1], Math.min(1, (busy[j] - busy[i]) * scale));
    i = j;
  }
}
// The row at a time, or the nearest within `slack` of it; -1 if there is none.
function rowAt(lane, time, slack) {
  const i = fromTime(lane, time + 1e-9);
  for (const k of [i - 1, i, i - 2]) if (k >= 0 && k < lane.ids.length && lane.start[k] - slack <= time && lane.end[k] + slack >= time) return lane.ids[k];
  return -1;
}
