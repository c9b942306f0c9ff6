// SPDX-License-Identifier: MIT

// plan.html: the charts, which share one x axis.
const kRight = 8, kBottom = 18; // pixels around a chart

let entry; // the selected entry, with the fields that prepare() adds
let view;  // visible range: x0, x1 in commands or microseconds; y0, y1 in bytes
let left;  // pixels for the labels left of a chart

const colourOf = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue('--' + name)
        .trim();

//---- Data -------------------------------------------------------------------

// Returns the time of each position in the list of commands, in microseconds: a
// compute command's own start, else the start of the next compute command.
// Lifetimes of buffers are measured on the compute queue in this way.
function clockOf(commands, seconds) {
  const clock = new Float64Array(commands.queue.length + 1);
  let next = clock[commands.queue.length] = seconds * 1e6;
  for (let c = commands.queue.length - 1; c >= 0; --c) {
    if (commands.queue[c] === 0) next = commands.start[c];
    clock[c] = next;
  }
  return clock;
}

// Returns the live bytes of each category at each command, in the given arena.
function aliveOf(buffers, arena, commands) {
  const alive = categories.map(() => new Float64Array(commands + 1));
  for (let i = 0; i < buffers.bytes.length; ++i) {
    if (buffers.arena[i] !== arena) continue;
    alive[buffers.category[i]][buffers.first[i]] += buffers.bytes[i];
    alive[buffers.category[i]][buffers.last[i] + 1] -= buffers.bytes[i];
  }
  for (const line of alive)
    for (let c = 1; c < line.length; ++c) line[c] += line[c - 1];
  return alive;
}

function prepare() {
  const arena = Number(byId('arena').value);
  entry = entries[Number(byId('entry').value)];
  entry.count = entry.commands.queue.length;
  entry.clock = clockOf(entry.commands, entry.seconds);
  entry.alive = aliveOf(entry.buffers, arena, entry.count);
  entry.shown = [];
  entry.top = 1;
  for (let i = 0; i < entry.buffers.bytes.length; ++i)
    if (entry.buffers.arena[i] === arena) {
      entry.shown.push(i);
      entry.top = Math.max(entry.top,
                           entry.buffers.offset[i] + entry.buffers.bytes[i]);
    }
}

const isTime = () => byId('axis').value === 'time';
const xOf = (command) => isTime() ? entry.clock[command] : command;
const commandSpan = (c) =>
    isTime() ? [entry.commands.start[c], entry.commands.end[c]] : [c, c + 1];

// Returns the last command that begins at or before x.
function commandAt(x) {
  let low = 0, high = entry.count;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xOf(middle) <= x) low = middle; else high = middle;
  }
  return low;
}

function whole() {
  view = {x0: 0, x1: Math.max(xOf(entry.count), 1e-6), y0: 0, y1: entry.top};
}

//---- Drawing ----------------------------------------------------------------

function chartOf(id) {
  const canvas = byId(id), scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext('2d');
  pen.scale(scale, scale);
  pen.font = '11px system-ui, sans-serif';
  left = 10 + Math.max(...kQueues.map((name) => pen.measureText(name).width));
  const right = width - kRight;
  const toX = (x) => left + (x - view.x0) / (view.x1 - view.x0) *
                                 (right - left);
  return {pen, width, height, right, toX};
}

function inside(chart, bottom, draw) {
  chart.pen.save();
  chart.pen.beginPath();
  chart.pen.rect(left, 0, chart.right - left, bottom);
  chart.pen.clip();
  draw();
  chart.pen.restore();
}

function drawScale(chart, top, y0, y1, bottom) {
  const {pen, right} = chart;
  pen.fillStyle = colourOf('faint');
  pen.strokeStyle = colourOf('line');
  pen.textAlign = 'right';
  for (let i = 0; i <= 4; ++i) {
    const y = bottom - i / 4 * (bottom - top);
    pen.fillText(inBytes(y0 + i / 4 * (y1 - y0)), left - 6,
                 Math.min(Math.max(9, y + 3), bottom));
    pen.beginPath();
    pen.moveTo(left, y);
    pen.lineTo(right, y);
    pen.stroke();
  }
}

// Draws as many axis numbers as fit below the chart.
function drawNumbers({pen, right, height, toX}) {
  const parts = Math.max(2, Math.min(6, Math.floor((right - left) / 90)));
  for (let i = 0; i <= parts; ++i) {
    const x = view.x0 + i / parts * (view.x1 - view.x0);
    pen.textAlign = i === 0 ? 'left' : i === parts ? 'right' : 'center';
    pen.fillText(isTime() ? inTime(x) : Math.round(x), toX(x), height - 4);
  }
}

function drawAddresses() {
  const chart = chartOf('addresses'), {pen, height, toX} = chart;
  const bottom = height - kBottom, buffers = entry.buffers;
  const toY = (y) => bottom - (y - view.y0) / (view.y1 - view.y0) * bottom;
  drawScale(chart, 0, view.y0, view.y1, bottom);
  drawNumbers(chart);
  const colours = categories.map(colourOf), gap = 0.5;
  const wanted = byId('find').value.toLowerCase();
  inside(chart, bottom, () => {
    for (const i of entry.shown) {
      const x = toX(xOf(buffers.first[i])), end = toX(xOf(buffers.last[i] + 1));
      const y = toY(buffers.offset[i] + buffers.bytes[i]);
      const low = toY(buffers.offset[i]);
      if (end < left || x > chart.right || low < 0 || y > bottom) continue;
      const name = texts[buffers.label[i]].toLowerCase();
      pen.globalAlpha = name.includes(wanted) ? 1 : 0.15;
      pen.fillStyle = colours[buffers.category[i]];
      pen.fillRect(x, y, Math.max(end - x - gap, gap),
                   Math.max(low - y - gap, gap));
    }
    pen.globalAlpha = 1;
    drawMarks(chart, bottom);
    if (isPeakShown()) drawPeak(chart);
  });
}

// Draws marks at the peak and at each command that issues a collective.
function drawMarks(chart, bottom) {
  const {pen, toX} = chart;
  const mark = (x, colour, dash) => {
    pen.strokeStyle = colourOf(colour);
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(toX(x), 0);
    pen.lineTo(toX(x), bottom);
    pen.stroke();
  };
  if (isPeakShown()) mark(xOf(entry.peak_command), 'peak', [4, 3]);
  for (const collective of entry.collectives)
    mark(commandSpan(collective.command)[0], 'collective', [2, 2]);
  pen.setLineDash([]);
}

// The peak is computed only for the activation arena (index 0).
const isPeakShown = () =>
    byId('arena').value === '0' && entry.activation_live_bytes > 0;

// Labels the dashed line at the peak, with the command if there is space.
function drawPeak({pen, right, toX}) {
  const at = toX(xOf(entry.peak_command)), high = 18;
  const words = [`peak ${inBytes(entry.activation_live_bytes)}`,
                 commandName(entry, entry.peak_command)].join(': ');
  const room = Math.max(at - left, right - at) - 16;
  const text = pen.measureText(words).width < room ? words
                                                   : words.split(':')[0];
  const wide = pen.measureText(text).width + 12;
  const x = right - at > wide + 4 ? at + 4 : at - wide - 4;
  pen.fillStyle = colourOf('card');
  pen.strokeStyle = colourOf('peak');
  pen.beginPath();
  pen.roundRect(x, 3.5, wide, high, 4);
  pen.fill();
  pen.stroke();
  pen.fillStyle = colourOf('peak');
  pen.textAlign = 'left';
  pen.fillText(text, x + 6, 16.5);
}

// Each pixel shows the command with the most live bytes in its range.
function drawAlive() {
  const chart = chartOf('alive'), {pen, height} = chart;
  const total = (c) => entry.alive.reduce((sum, line) => sum + line[c], 0);
  drawScale(chart, 0, 0, entry.top, height - 2);
  const colours = categories.map(colourOf);
  for (let pixel = left; pixel < chart.right; ++pixel) {
    const step = (view.x1 - view.x0) / (chart.right - left);
    const x = view.x0 + (pixel - left) * step;
    if (x < 0 || x >= xOf(entry.count)) continue;
    let most = commandAt(x);
    for (let c = most + 1; c < entry.count && xOf(c) < x + step; ++c)
      if (total(c) > total(most)) most = c;
    let y = height - 2;
    entry.alive.forEach((line, category) => {
      const part = line[most] / entry.top * (height - 2);
      pen.fillStyle = colours[category];
      pen.fillRect(pixel, y - part, 1, part);
      y -= part;
    });
  }
  inside(chart, height, () => drawMarks(chart, height));
}

const isEvent = (c) =>
    ['record', 'wait'].includes(texts[entry.commands.kernel[c]]);
const collectiveAt = (c) => entry.collectives.find((x) => x.command === c);

function drawQueues() {
  const chart = chartOf('queues'), {pen, height, toX} = chart;
  const row = height / kQueues.length;
  pen.textAlign = 'right';
  pen.fillStyle = colourOf('faint');
  kQueues.forEach((name, i) =>
      pen.fillText(name, left - 6, (i + 0.6) * row));
  inside(chart, height, () => {
    const grey = colourOf('kernel'), bright = colourOf('collective');
    for (let c = 0; c < entry.count; ++c) {
      if (isEvent(c)) continue;
      const [from, to] = commandSpan(c).map(toX);
      if (to < left || from > chart.right) continue;
      const sends = collectiveAt(c);
      pen.fillStyle = sends ? bright : grey;
      pen.fillRect(from, entry.commands.queue[c] * row + 2,
                   Math.max(to - from - 0.3, sends ? 4 : 0.4), row - 4);
    }
  });
}

function draw() {
  drawAddresses();
  drawAlive();
  drawQueues();
}

let isDue = false;
function drawSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}
