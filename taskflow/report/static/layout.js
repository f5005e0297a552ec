// Where operators are drawn: in rows by how deep they lie, the rows in as many columns as suit the panel. Repeated blocks
// (operators whose dotted names start alike) can be folded into one, and blocks that are alike into one run of blocks.
const CELL = { width: 156, height: 74, right: 20, below: 34 };
const LARGEST_BLOCK = 80;

function findBlocks(operators) {
  const block = new Array(operators.length).fill("");
  const divide = (members, depth) => {
    const groups = new Map();
    for (const i of members) {
      const words = operators[i].name.split(".");
      if (words.length > depth + 1) {
        const name = words.slice(0, depth + 1).join(".");
        groups.set(name, [...(groups.get(name) || []), i]);
      }
    }
    for (const [name, inside] of groups) {
      if (inside.length > LARGEST_BLOCK) divide(inside, depth + 1);
      else if (inside.length >= 3) for (const i of inside) block[i] = name;
    }
  };
  divide(operators.map((_, i) => i), 0);
  return block;
}

// The names under which each operator is folded, the outermost first: that of a run of blocks which differ in their number
// alone, as do the layers of a stage, and that of its block.
function findFolds(operators) {
  const block = findBlocks(operators), folds = block.map((name) => (name ? [name] : [])), inside = new Map();
  block.forEach((name, i) => { if (name) inside.set(name, [...(inside.get(name) || []), i]); });
  let run = [], before = "";
  const close = () => {
    const name = `${run[0]}-${/\d+$/.exec(run.at(-1) || "")}`;
    if (run.length > 1) for (const one of run) for (const i of inside.get(one)) folds[i].unshift(name);
    run = [];
  };
  for (const [name, members] of inside) {
    const look = members.map((i) => [operators[i].name.slice(name.length), operators[i].kind, operators[i].dims, operators[i].processors]);
    const figure = /\.\d+$/.test(name) ? JSON.stringify([name.replace(/\d+$/, ""), look]) : "";
    if (!figure || figure !== before) close();
    run.push(name);
    before = figure;
  }
  close();
  return folds;
}

// What is to be seen: items {members, block, inputs: Set of items' places}, in an order in which inputs come first.
function visibleItems(operators, folds, open, withStates) {
  const items = [], of = new Array(operators.length).fill(-1), known = new Map();
  operators.forEach((operator, i) => {
    if (operator.kind === "state" && !withStates) return;
    const name = folds[i].find((one) => !open.has(one)) || "";
    if (name && known.has(name)) {
      of[i] = known.get(name);
      items[of[i]].members.push(i);
    } else {
      of[i] = items.length;
      if (name) known.set(name, of[i]);
      items.push({ members: [i], block: name, inputs: new Set() });
    }
  });
  operators.forEach((operator, i) => {
    for (const input of operator.inputs) if (of[i] >= 0 && of[input] >= 0 && of[i] !== of[input]) items[of[i]].inputs.add(of[input]);
  });
  const order = inOrder(items);
  if (order.length < items.length) { // blocks that feed each other cannot be folded
    const placed = new Set(order);
    items.forEach((item, i) => { if (!placed.has(i) && item.block) for (const m of item.members) folds[m] = folds[m].filter((one) => one !== item.block); });
    return visibleItems(operators, folds, open, withStates);
  }
  return { items, of, order };
}

function inOrder(items) {
  const waits = items.map((item) => item.inputs.size), readers = items.map(() => []);
  items.forEach((item, i) => { for (const j of item.inputs) readers[j].push(i); });
  const order = [];
  const ready = items.map((_, i) => i).filter((i) => !waits[i]);
  while (ready.length) {
    const i = ready.shift();
    order.push(i);
    for (const j of readers[i]) if (!--waits[j]) ready.push(j);
  }
  return order;
}

function placeItems(operators, seen, recurrent, width, height) {
  const { items, order } = seen;
  const rows = recurrent ? rowsBySteps(operators, items, order) : rowsByDepth(items, order);
  return inColumns(items, rows, width / Math.max(1, height));
}

function rowsByDepth(items, order) {
  const row = new Array(items.length).fill(0), readers = items.map(() => []);
  for (const i of order) for (const j of items[i].inputs) { row[i] = Math.max(row[i], row[j] + 1); readers[j].push(i); }
  for (const i of order) if (!items[i].inputs.size && readers[i].length) row[i] = Math.max(0, Math.min(...readers[i].map((r) => row[r])) - 1);
  const rows = [];
  for (const i of order) (rows[row[i]] ||= []).push(i);
  const x = new Array(items.length).fill(0);
  const spread = (list) => list.forEach((i, k) => { x[i] = k - (list.length - 1) / 2; });
  const filled = rows.map((list) => list || []);
  filled.forEach(spread);
  const mean = (list) => list.reduce((sum, i) => sum + x[i], 0) / list.length;
  for (let pass = 0; pass < 4; pass++) { // the barycentre rule, down and up
    const down = pass % 2 === 0;
    for (const list of down ? filled : [...filled].reverse()) {
      const near = new Map(list.map((i) => { const of = down ? [...items[i].inputs] : readers[i]; return [i, of.length ? mean(of) : x[i]]; }));
      list.sort((a, b) => near.get(a) - near.get(b));
      spread(list);
    }
  }
  return filled.map((list) => list.map((i) => [i, x[i]]));
}

// Unrolled recurrent networks (paper, figure 14): a row a layer, a column a step. Operators that share weights are a layer.
function rowsBySteps(operators, items, order) {
  const of = items.map((item) => operators[item.members[0]]);
  const count = new Map(), seen = new Map(), layerRow = new Map();
  for (const o of of) if (o.layer) count.set(o.layer, (count.get(o.layer) || 0) + 1);
  const row = [], step = [], rows = [];
  for (const i of order) {
    const inputs = [...items[i].inputs], layer = of[i].layer;
    const shared = layer && count.get(layer) > 1;
    row[i] = Math.max(0, ...inputs.map((j) => row[j] + 1));
    step[i] = Math.max(0, ...inputs.map((j) => step[j]));
    if (shared) {
      step[i] = seen.get(layer) || 0;
      seen.set(layer, step[i] + 1);
      if (!layerRow.has(layer)) layerRow.set(layer, row[i]);
      row[i] = layerRow.get(layer);
    }
    const list = (rows[row[i]] ||= []);
    let column = step[i];
    while (list.some(([, x]) => x === column)) column++;
    list.push([i, column]);
  }
  return Array.from(rows, (list) => list || []).filter((list) => list.length);
}

// Cuts the rows into bands and puts those side by side, so that the whole suits the panel's shape.
function inColumns(items, rows, shape) {
  const wide = CELL.width + CELL.right, tall = CELL.height + CELL.below;
  const span = (band) => { const xs = band.flat().map(([, x]) => x); return [Math.min(...xs), Math.max(...xs)]; };
  let best = null;
  for (let bands = 1; bands <= Math.min(24, rows.length); bands++) {
    const size = Math.ceil(rows.length / bands), cut = [];
    for (let k = 0; k < rows.length; k += size) cut.push(rows.slice(k, k + size));
    const widths = cut.map((band) => { const [low, high] = span(band); return (high - low + 1) * wide; });
    const width = widths.reduce((a, b) => a + b + 30, 0), height = size * tall;
    const scale = Math.min(shape / width, 1 / height);
    // another band makes longer ways between operators, so it must be worth it
    if (!best || scale > 1.12 * best.scale) best = { scale, cut, widths, width, height };
  }
  const places = new Array(items.length);
  let left = 0;
  (best ? best.cut : []).forEach((band, k) => {
    const [low] = span(band);
    band.forEach((list, y) => { for (const [i, x] of list) places[i] = { x: left + (x - low) * wide, y: y * tall, band: k }; });
    left += best.widths[k] + 30;
  });
  return { places, width: left, height: best ? best.height : 0 };
}
