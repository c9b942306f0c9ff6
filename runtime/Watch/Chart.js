// SPDX-License-Identifier: MIT

// Line charts as SVG. A chart is 360 units wide, about the width of a phone, so
// text has its nominal size there, and several charts fit in a row on a
// desktop. The style sheet has the colours and dashes.

// Size of the chart, and the bounds of the plotted area.
const kWidth = 360, kHeight = 200;
const kLeft = 52, kRight = 340, kTop = 10, kBottom = 166;
const kStyles = 6; // line styles in the style sheet
// Lines of up to this many points also mark each point: one point has no line.
const kMarked = 40;

// Returns about four to seven ticks, 1, 2 or 5 times a power of ten apart, that
// cover low to high.
function roundTicks(low, high) {
  // Treat ends that float64 hardly distinguishes as one value with a margin.
  const size = Math.max(Math.abs(low), Math.abs(high), 1e-290);
  if (high - low < size * 1e-9) {
    const room = Math.max(Math.abs(high) * 0.1, 1e-280);
    low -= room;
    high += room;
  }
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(
      (factor) => factor === 10 || rough <= factor * power * (1 + 1e-9));
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
}

const inDigits = (value, digits) => String(Number(value.toPrecision(digits)));

// Formats a value for the axis, in few characters, such as 1.5e-4 or 200k.
function tickText(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'],
                                [1e3, 'k']])
    if (size >= Math.max(unit, 1e4) && size < 1e15)
      return inDigits(value / unit, 6) + letter;
  if (size === 0 || (size >= 1e-3 && size < 1e4)) return inDigits(value, 6);
  // Drop the exponent's plus sign and trailing zeros before it: 5e-5.
  return value.toExponential(2).replace(/\.?0*e\+?/, 'e');
}

function makeSvg(tag, attributes, ...content) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes))
    element.setAttribute(name, value);
  element.append(...content);
  return element;
}

// Returns the ticks of an axis, and the mapping of values to coordinates. The
// axis ends at ticks, or if `isTight` at the first and last value, so that a
// line uses the full width.
function axisOf(values, from, to, isTight) {
  const least = values.reduce((a, b) => Math.min(a, b));
  const greatest = values.reduce((a, b) => Math.max(a, b));
  let ticks = roundTicks(least, greatest);
  let low = ticks[0], high = ticks.at(-1);
  const inside = ticks.filter((tick) => tick >= least && tick <= greatest);
  if (isTight && inside.length > 1) // else almost a single value
    [ticks, low, high] = [inside, least, greatest];
  const place = (value) => Number(
      (from + (value - low) / (high - low) * (to - from)).toFixed(1));
  return {ticks, place};
}

function gridOf(x, y, xName) {
  const line = (d) => makeSvg('path', {class: 'grid', d});
  const text = (x, y, place, content) =>
      makeSvg('text', {x, y, class: place}, content);
  return [
    ...y.ticks.flatMap((tick) => [
      line(`M${kLeft} ${y.place(tick)}H${kRight}`),
      text(kLeft - 5, y.place(tick) + 4, 'end', tickText(tick))]),
    ...x.ticks.flatMap((tick) => [
      line(`M${x.place(tick)} ${kBottom}V${kBottom + 4}`),
      text(x.place(tick), kBottom + 15, 'middle', tickText(tick))]),
    text((kLeft + kRight) / 2, kHeight - 4, 'middle', xName)];
}

// A point whose y is null breaks the line.
function lineOf(points, style, x, y) {
  let path = '', pen = 'M';
  const marks = [];
  for (const [atX, atY] of points) {
    if (atY === null) {
      pen = 'M';
      continue;
    }
    const cx = x.place(atX), cy = y.place(atY);
    path += `${pen}${cx} ${cy}`;
    pen = 'L';
    if (points.length <= kMarked)
      marks.push(makeSvg('circle', {class: `mark ${style}`, cx, cy, r: 2.5},
                         makeSvg('title', {}, `${inDigits(atX, 6)}: ${
                             inDigits(atY, 6)}`)));
  }
  return path ? [makeSvg('path', {class: `line ${style}`, d: path}), ...marks]
              : [];
}

function legendOf(lines) {
  return make('p', 'legend', ...lines.map(({name}, i) => make(
      'span', '',
      makeSvg('svg', {class: 'key', viewBox: '0 0 24 8', 'aria-hidden': true},
              makeSvg('path', {class: `line s${i % kStyles}`, d: 'M0 4H24'})),
      name)));
}

function chartOf({title, xName, lines, startsAtZero}) {
  const figure = make('figure', '', make('figcaption', '', title));
  const points = lines.flatMap((line) => line.points)
                     .filter(([, y]) => y !== null);
  if (!points.length) {
    figure.append(make('p', 'none', 'Nothing was logged.'));
    return figure;
  }
  const x = axisOf(points.map(([x]) => x), kLeft, kRight, true);
  const y = axisOf(points.map(([, y]) => y).concat(startsAtZero ? [0] : []),
                   kBottom, kTop, false);
  figure.append(makeSvg(
      'svg', {class: 'chart', viewBox: `0 0 ${kWidth} ${kHeight}`, role: 'img',
              'aria-label': title},
      ...gridOf(x, y, xName),
      ...lines.flatMap(
          (line, i) => lineOf(line.points, `s${i % kStyles}`, x, y))));
  if (lines.length > 1) figure.append(legendOf(lines));
  return figure;
}
