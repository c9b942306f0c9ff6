// SPDX-License-Identifier: MIT

// plan.html: the tables, and the start of it all. Names of the model become
// text nodes, never markup.

const kRowsShown = 40;
const micro = (seconds) => Number((seconds * 1e6).toFixed(1));

// A column is [title, value of a row, how a number is written].
function cellOf(row, [, value, format]) {
  const cell = document.createElement('td');
  const what = value(row);
  cell.textContent = format ? format(what) : String(what);
  if (typeof what === 'number') cell.className = 'number';
  return cell;
}

function fillRows(body, rows, columns, count) {
  body.replaceChildren();
  for (const row of rows.slice(0, count)) {
    const line = document.createElement('tr');
    line.append(...columns.map((column) => cellOf(row, column)));
    body.append(line);
  }
}

// A click on a title sorts by it, the largest first, and then the other way.
function headOf(rows, columns, refill) {
  const line = document.createElement('tr');
  for (const [title, value] of columns) {
    const cell = document.createElement('th');
    let sign = -1;
    cell.textContent = title;
    if (rows.length && typeof value(rows[0]) === 'number')
      cell.className = 'number';
    cell.addEventListener('click', () => {
      const order = (a, b) => a < b ? -sign : a > b ? sign : 0;
      rows.sort((a, b) => order(value(a), value(b)));
      sign = -sign;
      refill();
    });
    line.append(cell);
  }
  return line;
}

function addTable(title, note, rows, columns) {
  const parent = byId('tables');
  const add = (tag, text, to = parent) => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    to.append(element);
    return element;
  };
  add('h2', title);
  if (note) add('p', note);
  if (!rows.length) return;
  const scroll = add('div');
  scroll.className = 'scroll';
  const table = add('table', '', scroll);
  const head = add('thead', '', table), body = add('tbody', '', table);
  let count = kRowsShown;
  const refill = () => fillRows(body, rows, columns, count);
  head.append(headOf(rows, columns, refill));
  refill();
  if (rows.length <= count) return;
  const button = add('button', `All ${rows.length} rows`);
  button.addEventListener('click', () => {
    count = rows.length;
    refill();
    button.remove();
  });
}

//---- Which tables -----------------------------------------------------------

const entryName = (e) =>
    e.length ? `${e.kind}, batch ${e.batch}, length ${e.length}` : e.kind;
const plannedOf = (e) => data.plan.entries.find(
    (p) => p.kind === e.kind && p.batch === e.batch && p.length === e.length);

function addMemory() {
  addTable('Memory of a rank', 'Host memory is not part of the total.',
           [...Object.entries(data.plan.arenas),
            ['total', data.plan.total_bytes]],
           [['Arena', (row) => row[0]], ['Bytes', (row) => row[1]],
            ['', (row) => row[1], inBytes]]);
}

function addPeak() {
  const planned = plannedOf(entry);
  const lost = planned.activation_bytes - entry.peak.bytes;
  const rows = Object.entries(entry.peak.by_category)
                   .filter(([name]) => name !== 'workspace');
  addTable('Peak by category',
           `At command ${entry.peak.command} of ${entryName(entry)}. ` +
               'Its workspace is an arena of its own, of ' +
               `${inBytes(planned.workspace_bytes)}.`,
           [...rows, ['lost to packing', lost],
            ['activation arena', planned.activation_bytes]],
           [['Category', (row) => row[0]], ['Bytes', (row) => row[1]],
            ['', (row) => row[1], inBytes]]);
}

function addLargest() {
  const b = entry.buffers, peak = entry.peak.command;
  const alive = b.bytes.map((_, i) => i).filter(
      (i) => b.arena[i] === 0 && b.first[i] <= peak && peak <= b.last[i]);
  alive.sort((i, j) => b.bytes[j] - b.bytes[i]);
  addTable('Largest tensors at the peak', '', alive,
           [['Tensor', (i) => data.texts[b.label[i]]],
            ['Bytes', (i) => b.bytes[i]],
            ['', (i) => b.bytes[i], inBytes],
            ['Category', (i) => data.categories[b.category[i]]],
            ['First command', (i) => b.first[i]],
            ['Last command', (i) => b.last[i]]]);
}

function addRecomputed() {
  const decision = data.plan.rematerialize;
  if (!decision)
    return addTable('Computed again', 'The pass was switched off.', [], []);
  const rows = decision.steps.flatMap(
      (step) => step.recomputed.map((op) => ({...op, length: step.length})));
  addTable('Computed again',
           `Policy ${decision.policy}` +
               (decision.budget ? `, budget ${inBytes(decision.budget)}` : '') +
               `: ${inTime(decision.recompute_seconds * 1e6)} a micro-batch.`,
           rows,
           [['Of', (op) => op.of], ['Operation', (op) => op.op],
            ['Length', (op) => op.length], ['Times', (op) => op.times],
            ['Cost, us', (op) => micro(op.seconds * op.times)],
            ['Bytes not kept', (op) => op.bytes],
            ['', (op) => op.bytes, inBytes]]);
}

function addDecoded() {
  const rows = data.plan['plan-dequant'].flatMap(
      (weight) => weight.groups.map((group) => ({...weight, ...group})));
  addTable('Where weights are decoded',
           'Panel: by each matrix product, a few rows at a time. Scratch: ' +
               'once for all uses that are near. Resident: when loaded.',
           rows,
           [['Weight', (row) => row.weight], ['Entry', (row) => row.step],
            ['Length', (row) => row.length],
            ['Part', (row) => row.backward ? 'backward' : 'forward'],
            ['Uses', (row) => row.uses], ['Form', (row) => row.form],
            ['Why', (row) => row.reason],
            ['Panel, us', (row) => micro(row.panel_seconds)],
            ['Scratch, us', (row) => micro(row.scratch_seconds)],
            ['Resident, us', (row) => micro(row.resident_seconds)],
            ['Bytes, if resident', (row) => row.resident_bytes]]);
}

function addCollectives() {
  const buckets = data.plan['bucket-gradients'] || [];
  const bucketOf = (row) => buckets[row.bucket] || {};
  const start = (row) => entry.commands.start[row.command];
  const left = (row) => Math.max(0, entry.seconds * 1e6 - start(row));
  addTable('Collectives',
           entry.collectives.length ? `Of ${entryName(entry)}. Times are of ` +
               'one rank, where they wait for nobody.'
                                    : `${entryName(entry)} has none.`,
           entry.collectives.slice(),
           [['Bucket', (row) => row.bucket], ['Bytes', (row) => row.bytes],
            ['', (row) => row.bytes, inBytes],
            ['Parameters', (row) => bucketOf(row).parameters ?? ''],
            ['Starts after', (row) => bucketOf(row).starts_after ?? ''],
            ['Command', (row) => row.command],
            ['Starts at', start, inTime],
            ['Left of the entry', left, inTime]]);
}

function addKernels() {
  addTable('Kernels of libraries', 'And why those before them were not taken.',
           (data.plan['select-kernels'] || []).slice(),
           [['Kernel', (row) => row.kernel], ['Launches', (row) => row.launches],
            ['Refused', (row) => row.refused.join('; ')]]);
}

function writeTables() {
  byId('tables').replaceChildren();
  for (const add of [addMemory, addPeak, addLargest, addRecomputed, addDecoded,
                     addCollectives, addKernels])
    add();
}

//---- Start ------------------------------------------------------------------

function show() {
  prepare();
  whole();
  writeTables();
  drawSoon();
}

function addLegend() {
  const names = [...data.categories, 'collective'];
  for (const name of names) {
    const item = document.createElement('span');
    const box = document.createElement('i');
    box.style.background = `var(--${name})`;
    item.append(box, name);
    byId('legend').append(item);
  }
}

function start() {
  data.entries.forEach((e, i) => {
    const option = document.createElement('option');
    option.value = i;
    option.textContent = `${entryName(e)}: ${inTime(e.seconds * 1e6)}`;
    byId('entry').append(option);
  });
  const last = data.entries.findIndex((e) => e.kind === 'accumulate_last');
  byId('entry').value = Math.max(last, 0);
  byId('summary').textContent =
      `${inBytes(data.plan.total_bytes)} for each rank; times as predicted ` +
      `for ${data.device}. The dashed line is the peak, the dotted ones are ` +
      'collectives.';
  addLegend();
  listen();
  show();
}

start();
