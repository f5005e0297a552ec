// Lanes: for each device and link its rows in order of start, so that what is visible is found by binary search. Which rows lie
// in which lane is found at once; a lane is sorted when it is first drawn, for most never are.
function buildLanes(report) {
  const { rows, machine } = report, devices = machine.devices.length, links = machine.links.length, count = rows.category.length;
  const ends = devices + machine.peers.length, pairs = new Array(ends * ends);
  const lanesOf = (source, target) => { // what a message from source to target occupies
    const key = source * ends + target;
    return (pairs[key] ||= machine.routes[`${source} ${target}`]);
  };
  const length = devices + links, from = new Int32Array(length + 1);
  for (let i = 0; i < count; i++) {
    if (rows.category[i] < 5) from[rows.processor[i] + 1]++;
    else for (const lane of lanesOf(rows.source[i], rows.processor[i])) from[lane + 1]++;
  }
  for (let k = 0; k < length; k++) from[k + 1] += from[k];
  const ids = new Int32Array(from[length]), lags = new Int32Array(ids.length), next = from.slice();
  let hop = 0; // a message goes over its route one thing after another: rows.lag says how long before its start
  for (let i = 0; i < count; i++) {
    if (rows.category[i] < 5) ids[next[rows.processor[i]]++] = i;
    else for (const lane of lanesOf(rows.source[i], rows.processor[i])) { const place = next[lane]++; lags[place] = rows.lag[hop++]; ids[place] = i; }
  }
  const sorted = new Array(length);
  return {
    length, from, ids, lags,
    at(k) { return (sorted[k] ||= inOrderOfStart(rows, ids.subarray(from[k], from[k + 1]), lags.subarray(from[k], from[k + 1]))); },
  };
}
function inOrderOfStart(rows, ids, lags) {
  const keys = new Float64Array(ids.length), most = ids.length || 1; // start and place in one number: times are below 2^31
  let sorted = true;
  for (let i = 0; i < ids.length; i++) {
    keys[i] = (rows.start[ids[i]] - lags[i]) * most + i;
    if (i && keys[i] < keys[i - 1]) sorted = false;
  }
  if (sorted) return makeLane(rows, ids, lags);
  const order = Int32Array.from(keys.sort(), (key) => ((key % most) + most) % most);
  return makeLane(rows, order.map((i) => ids[i]), order.map((i) => lags[i]));
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
