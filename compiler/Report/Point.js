// SPDX-License-Identifier: MIT

// plan.html: the tooltip, zooming and scrolling.

function commandText(c) {
  const {start, end, queue} = entry.commands;
  const collective = collectiveAt(c);
  const what = collective ? `${commandName(entry, c)}, bucket ${
      collective.bucket}, ${inBytes(collective.bytes)}` : commandName(entry, c);
  return `Command ${c}: ${what}\n` +
      `${kQueues[queue[c]]} queue, from ${inTime(start[c])}, ` +
      `${inTime(end[c] - start[c])} long`;
}

function bufferText(i) {
  const {label, bytes, category, offset, first, last} = entry.buffers;
  const from = entry.clock[first[i]], to = entry.clock[last[i] + 1];
  return `${texts[label[i]] || '(no name)'}: ${inBytes(bytes[i])}, ` +
      `${kCategories[categories[category[i]]]}\n` +
      `commands ${first[i]} to ${last[i]}, ${inTime(from)} to ${inTime(to)}` +
      ` (${inTime(to - from)})\n` +
      `bytes ${inFull(offset[i])} to ${inFull(offset[i] + bytes[i])}`;
}

function pointerAt(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const x = (event.clientX - box.left - left) / (box.width - left - kRight);
  const y = 1 - (event.clientY - box.top) / (box.height - kBottom);
  return {x: view.x0 + x * (view.x1 - view.x0),
          y: view.y0 + y * (view.y1 - view.y0),
          row: Math.floor((event.clientY - box.top) / box.height * 3)};
}

function aboutAddress(event) {
  const {x, y} = pointerAt(event), b = entry.buffers;
  const found = entry.shown.find(
      (i) => b.offset[i] <= y && y < b.offset[i] + b.bytes[i] &&
          xOf(b.first[i]) <= x && x < xOf(b.last[i] + 1));
  byId('about').textContent = found === undefined
      ? `Byte ${inFull(Math.max(0, Math.round(y)))}: free\n` +
            commandText(commandAt(x))
      : bufferText(found);
}

function aboutAlive(event) {
  const c = commandAt(pointerAt(event).x);
  const parts = categories.flatMap((name, i) => entry.alive[i][c]
      ? [`${kCategories[name]} ${inBytes(entry.alive[i][c])}`] : []);
  byId('about').textContent =
      `${commandText(c)}\nin use: ${parts.join(', ') || 'nothing'}`;
}

function aboutQueue(event) {
  const {x, row} = pointerAt(event);
  let near;
  for (let c = 0; c < entry.count; ++c)
    if (entry.commands.queue[c] === row && !isEvent(c) &&
        commandSpan(c)[0] <= x)
      near = c;
  if (near !== undefined) byId('about').textContent = commandText(near);
}

function zoom(from, to, at, factor) {
  view[from] = at + (view[from] - at) * factor;
  view[to] = at + (view[to] - at) * factor;
}

function onWheel(event) {
  event.preventDefault();
  const at = pointerAt(event);
  const factor = (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8;
  if (event.shiftKey) zoom('y0', 'y1', at.y, factor);
  else zoom('x0', 'x1', at.x, factor);
  drawSoon();
}

let dragged; // pointerAt() when the mouse button went down, or undefined
function onMove(event, about) {
  if (!dragged) return about(event);
  const at = pointerAt(event);
  const x = dragged.x - at.x, y = dragged.y - at.y;
  view = {x0: view.x0 + x, x1: view.x1 + x, y0: view.y0 + y, y1: view.y1 + y};
  drawSoon();
}

function listen() {
  const abouts = {addresses: aboutAddress, alive: aboutAlive,
                  queues: aboutQueue};
  for (const [id, about] of Object.entries(abouts)) {
    const canvas = byId(id);
    canvas.addEventListener('wheel', onWheel, {passive: false});
    canvas.addEventListener('pointermove', (event) => onMove(event, about));
    canvas.addEventListener('dblclick', () => { whole(); drawSoon(); });
  }
  byId('addresses').addEventListener('pointerdown', (event) => {
    dragged = pointerAt(event);
  });
  window.addEventListener('pointerup', () => { dragged = undefined; });
  window.addEventListener('resize', drawSoon);
  window.matchMedia('(prefers-color-scheme: dark)')
      .addEventListener('change', drawSoon);
  byId('find').addEventListener('input', drawSoon);
  byId('reset').addEventListener('click', () => { whole(); drawSoon(); });
  byId('axis').addEventListener('change', () => { whole(); drawSoon(); });
  for (const id of ['entry', 'arena'])
    byId(id).addEventListener('change', show);
}
