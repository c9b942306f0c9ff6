// SPDX-License-Identifier: MIT

// plan.html: the data, and display names and number formats.

const {plan, run} = data;
const {categories, texts} = plan.timeline;
const entries = plan.entries.map(
    (e, i) => ({...e, ...plan.timeline.entries[i]}));

// Arenas in the order of the bar: key in plan.json (and of the colour), display
// name, and description.
const kArenas = [
  ['frozen', 'frozen base', 'the weights of the model as they are stored'],
  ['trainable', 'adapters', 'trainable parameters'],
  ['rounded', 'adapters, rounded', 'in bf16, for matmuls'],
  ['gradient', 'gradients', 'of trainable parameters'],
  ['state', 'optimizer states', 'values per trainable parameter'],
  ['activation', 'activations and scratch', 'values of a micro-batch'],
  ['workspace', 'library workspace', 'scratch memory of single kernels'],
  ['input', 'inputs', 'tokens and labels'],
  ['result', 'results', 'losses and gradient norms'],
];

const kCategories = {
  gathered: 'weights from other ranks or the host',
  saved: 'kept for the backward',
  recomputed: 'recomputed',
  decoded: 'decoded weights',
  forward: 'forward, short-lived',
  backward: 'backward',
  workspace: 'library workspace',
};

const kEntries = {
  accumulate: 'micro-batches of a step except the last',
  accumulate_last: 'last micro-batch of a step',
  evaluate: 'evaluation',
  update: 'optimizer update',
};

// Names of commands that are not kernels.
const kCommands = {
  all_reduce: 'all-reduce', all_gather: 'all-gather',
  reduce_scatter: 'reduce-scatter', copy: 'copy', fill: 'fill',
  wait: 'wait', record: 'signal',
};

const kQueues = ['compute', 'communication', 'copy'];

//---- Numbers ----------------------------------------------------------------

const kSpace = '\u00a0'; // no line break before a unit

// Formats bytes as qlora-run does.
function inBytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; Math.abs(bytes) >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return bytes.toFixed(unit && bytes < 99.95 ? 1 : 0) + kSpace + units[unit];
}

const inFull = (number) => number.toLocaleString('en');
const exactly = (bytes) => `${inFull(bytes)} bytes`;

function inTime(us) {
  if (us >= 1e6) return (us / 1e6).toFixed(2) + kSpace + 's';
  return us >= 1e3 ? (us / 1e3).toFixed(2) + kSpace + 'ms'
                   : us.toFixed(1) + kSpace + 'µs';
}

// Formats counts as in model names: 1.7 M, 8.0 B.
function inCount(number) {
  if (number < 1e4) return inFull(number);
  for (const [unit, size] of [['B', 1e9], ['M', 1e6]])
    if (number >= size) return (number / size).toFixed(1) + kSpace + unit;
  return (number / 1e3).toFixed(1) + kSpace + 'k';
}

function inShare(part, whole) {
  const percent = whole ? 100 * part / whole : 0;
  return (part && percent < 0.1 ? '<' + kSpace + '0.1' : percent.toFixed(1)) +
      kSpace + '%';
}

const several = (count, what) => `${inFull(count)} ${what}${
    count === 1 ? '' : 's'}`;

//---- Names ------------------------------------------------------------------

const entryName = (e) =>
    (e.length ? `${e.batch} × ${e.length} tokens, ` : '') + kEntries[e.kind];

// Describes command `c` of an entry: "rms_norm of model.norm".
function commandName(entry, c) {
  const kernel = texts[entry.commands.kernel[c]];
  const label = texts[entry.commands.label[c]];
  const name = kCommands[kernel] ?? kernel;
  return label ? `${name} of ${label}` : name;
}
