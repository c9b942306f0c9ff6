// SPDX-License-Identifier: MIT

// plan.html: the tables, and the code that starts the page. Names from the
// model become text nodes, never markup.

const kRowsShown = 40;

// A column is [title, function from a row to its value, number format].
function cellOf(row, [, value, format]) {
  const what = value(row);
  const text = format ? format(what) : String(what);
  const cell = make('td', typeof what === 'number' ? 'number'
                        : text.length > 60 ? 'long' : '', text);
  if (format === inBytes) cell.title = exactly(what);
  return cell;
}

function fillRows(body, rows, columns, count) {
  body.replaceChildren();
  for (const row of rows.slice(0, count))
    body.append(make('tr', '',
                     ...columns.map((column) => cellOf(row, column))));
}

// Returns the table's title row. A click on a title sorts by the column,
// largest first; a second click reverses the order.
function headOf(rows, columns, refill) {
  const line = make('tr');
  for (const [title, value] of columns) {
    const isNumber = typeof value(rows[0]) === 'number';
    const cell = make('th', isNumber ? 'number' : '', title);
    let sign = -1;
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

function addRows(card, rows, columns) {
  const head = make('thead'), body = make('tbody');
  let count = kRowsShown;
  const refill = () => fillRows(body, rows, columns, count);
  head.append(headOf(rows, columns, refill));
  refill();
  card.append(make('div', 'scroll', make('table', '', head, body)));
  if (rows.length <= count) return;
  const button = make('button', '', `All ${inFull(rows.length)} rows`);
  button.addEventListener('click', () => {
    count = rows.length;
    refill();
    button.remove();
  });
  card.append(button);
}

// Adds a table. Unless `isOpen`, only its title is visible at first.
function addTable(title, note, rows, columns, isOpen = false) {
  const card = make('details', 'card',
                    make('summary', '', make('h2', '', title)));
  card.open = isOpen;
  if (note) card.append(make('p', '', note));
  if (rows.length) addRows(card, rows, columns);
  byId('tables').append(card);
}

//---- Which tables -----------------------------------------------------------

function addPeak() {
  const lost = entry.activation_bytes - entry.activation_live_bytes;
  const rows = categories.filter((name) => entry.peak[name]).map(
      (name) => [kCategories[name], entry.peak[name]]);
  if (lost) rows.push(['gaps between tensors', lost]);
  addTable('Peak by category', entryName(entry), rows,
           [['Category', (row) => row[0]], ['Size', (row) => row[1], inBytes],
            ['Share', (row) => 100 * row[1] / entry.activation_bytes,
             (percent) => inShare(percent, 100)]], true);
}

function addLargest() {
  const b = entry.buffers, peak = entry.peak_command;
  const alive = b.bytes.map((_, i) => i).filter(
      (i) => b.arena[i] === 0 && b.first[i] <= peak && peak <= b.last[i]);
  alive.sort((i, j) => b.bytes[j] - b.bytes[i]);
  addTable('Largest tensors at the peak', entryName(entry), alive,
           [['Tensor', (i) => texts[b.label[i]] || '(no name)'],
            ['Size', (i) => b.bytes[i], inBytes],
            ['Category', (i) => kCategories[categories[b.category[i]]]],
            ['First command', (i) => b.first[i]],
            ['Last command', (i) => b.last[i]]]);
}

function addRecomputed() {
  const decision = plan.rematerialize;
  if (!decision)
    return addTable('Recomputed', 'The pass is disabled.', [], []);
  const rows = decision.steps.flatMap(
      (step) => step.recomputed.map((op) => ({...op, length: step.length})));
  addTable('Recomputed',
           rows.length ? 'To save memory, the backward recomputes forward ' +
               `values for ${inTime(decision.recompute_seconds * 1e6)} of a ` +
               'micro-batch' + (decision.budget
                   ? `; at most ${inBytes(decision.budget)} are kept.` : '.')
                       : 'Nothing: all activations are kept.',
           rows,
           [['Module', (op) => op.of],
            ['Operation', (op) => op.op.replace(/^model\./, '')],
            ['Length', (op) => op.length], ['Count', (op) => op.times],
            ['Costs', (op) => op.seconds * op.times * 1e6, inTime],
            ['Saves', (op) => op.bytes, inBytes]]);
}

function addDecoded() {
  const rows = (plan['plan-dequant'] || []).flatMap(
      (weight) => weight.groups.map((group) => ({...weight, ...group})));
  const time = (key) => (row) => row[key] * 1e6;
  addTable('Where weights are decoded',
           rows.length ? 'tiled: a few rows at a time, in each matmul. ' +
               'per-use: the whole weight, for nearby uses. once: when ' +
               'loaded, and kept. Times are predicted for each choice.'
                       : 'No weight is stored in 4 bits.',
           rows,
           [['Weight', (row) => row.weight],
            ['Step', (row) => row.step === 'evaluate' ? 'evaluation'
                                                      : 'training'],
            ['Length', (row) => row.length],
            ['Phase', (row) => row.backward ? 'backward' : 'forward'],
            ['Uses', (row) => row.uses], ['Choice', (row) => row.form],
            ['Reason', (row) => row.reason],
            ['tiled', time('tiled_seconds'), inTime],
            ['per-use', time('per_use_seconds'), inTime],
            ['once', time('once_seconds'), inTime],
            ['Extra size if once', (row) => row.resident_bytes, inBytes]]);
}

function addCollectives() {
  const buckets = plan['bucket-gradients'] || [];
  const bucketOf = (row) => buckets[row.bucket] || {};
  const start = (row) => entry.commands.start[row.command];
  const rest = (row) => Math.max(0, entry.seconds * 1e6 - start(row));
  addTable('Gradient all-reduces',
           entry.collectives.length ? 'Gradients are all-reduced during the ' +
               'backward. Times are for a rank that never waits for others.'
                                    : `None in ${entryName(entry)}.`,
           entry.collectives.slice(),
           [['Bucket', (row) => row.bucket],
            ['Size', (row) => row.bytes, inBytes],
            ['Parameters', (row) => bucketOf(row).parameters ?? ''],
            ['Starts after', (row) => bucketOf(row).starts_after ?? ''],
            ['Command', (row) => row.command],
            ['Starts at', start, inTime],
            ['Time to overlap', rest, inTime]]);
}

function addKernels() {
  const rows = plan['select-kernels'] || [];
  const columns = [['Kernel', (row) => row.kernel],
                   ['Launches', (row) => row.launches]];
  if (rows.some((row) => row.refused.length))
    columns.push(['Rejected kernels', (row) => row.refused.join('; ')]);
  addTable('Library kernels', '', rows.slice(), columns);
}

// Writes the tables of the selected entry. Tables that were open stay open.
function writeTables() {
  const open = [...byId('tables').children].map((card) => card.open);
  byId('tables').replaceChildren();
  for (const add of [addPeak, addLargest, addRecomputed, addDecoded,
                     addCollectives, addKernels])
    add();
  [...byId('tables').children].forEach((card, i) => {
    card.open = open[i] ?? card.open;
  });
}

//---- Start ------------------------------------------------------------------

function writePeak() {
  const {peak_command: command, activation_live_bytes: bytes} = entry;
  byId('peak').textContent = bytes
      ? `Peak: ${inBytes(bytes)} are in use at command ${inFull(command)} of ${
            inFull(entry.count)}, ${commandName(entry, command)}, ${
            inTime(entry.commands.start[command])} after the start, and ${
            inBytes(entry.workspace_bytes)} of library workspace.`
      : 'Uses only the arenas of adapters, gradients and optimizer states.';
}

function show() {
  prepare();
  whole();
  writePeak();
  writeLegend();
  writeTables();
  drawSoon();
}

// Writes the legend: the categories of the buffers in the selected arena.
function writeLegend() {
  const seen = new Set(entry.shown.map((i) => entry.buffers.category[i]));
  const names = categories.filter((_, category) => seen.has(category))
                    .map((key) => [key, kCategories[key]]);
  if (entry.collectives.length) names.push(['collective', 'all-reduce']);
  byId('legend').replaceChildren(...names.map(
      ([key, name]) => make('span', '', colourBox(key), name)));
}

// Returns the index of the entry with the highest peak. If several have it,
// prefers the entry of a step's last micro-batch.
function highestEntry() {
  const height = (e) =>
      2 * e.activation_live_bytes + (e.kind === 'accumulate_last');
  return entries.reduce(
      (best, e, i) => height(e) > height(entries[best]) ? i : best, 0);
}

function start() {
  entries.forEach((e, i) => {
    const option = make('option', '',
                        `${entryName(e)}: ${inTime(e.seconds * 1e6)}`);
    option.value = i;
    byId('entry').append(option);
  });
  byId('entry').value = highestEntry();
  writeHead();
  listen();
  show();
}

start();
