#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Makes screenshots of a report's page in headless Chromium, for inspection.

    look_at_report.py plan.html -o FOLDER [--chromium PROGRAM]

Writes the complete page, with all of its tables, at 1,400 and 400 pixels,
light and dark. Selects each value of the page's menus (entry, arena, axis) and
moves the pointer over each chart. Fails if a script fails, if a chart shows no
description, or if the page is wider than its window. Run it by hand after a
change to compiler/Report: the test suite needs no browser (Debian: apt-get
install chromium).
"""

import argparse
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

WIDTHS = (1400, 400)
SCHEMES = {"dark": 0, "light": 1}  # as Chromium numbers them
TALLEST = 16000  # pixels; the rest is cut off

# LISTEN is first in the page and collects errors. MEASURE is last and measures
# the layout.
LISTEN = """<script>window.failures = [];
addEventListener('error', (e) => failures.push(e.message));</script>"""
MEASURE = """<script>
for (const part of document.querySelectorAll('details')) part.open = true;
const silent = [];
function point(canvas) {
  const {left, top, width, height} = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent('pointermove', {
    clientX: left + width / 2, clientY: top + height / 4}));
}
const byName = (id) => document.getElementById(id);
for (const id of ['entry', 'arena', 'axis']) {
  const select = byName(id), before = select.value;
  const values = [...select.options].map((option) => option.value);
  for (const value of [...values, before]) {
    select.value = value;
    select.dispatchEvent(new Event('change'));
    for (const canvas of document.querySelectorAll('canvas')) {
      const about = byName('about');
      about.textContent = '';
      point(canvas);
      if (!about.textContent) silent.push(`${id} ${value}: ${canvas.id}`);
    }
  }
}
requestAnimationFrame(() => setTimeout(() => {
  const {scrollWidth, scrollHeight} = document.documentElement;
  const outside = [...document.querySelectorAll('body *')].filter((e) =>
      !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth);
  parent.postMessage(JSON.stringify({
    failures, silent, window: innerWidth,
    width: scrollWidth, height: scrollHeight,
    tiles: document.querySelectorAll('.tile').length,
    outside: outside.map((e) => `${e.tagName} ${e.id || e.className}`),
  }), '*');
}, 100));</script>"""
# The page is in a frame, since windows of Chromium are at least 500 pixels
# wide.
FRAME = """<!doctype html><title></title><script>
addEventListener('message', (e) => { document.title = e.data; });</script>
<iframe src="page.html" style="width: %dpx; height: 1000px; border: 0">"""


class Browser:
    def __init__(self, program):
        self.command = [program, "--headless", "--disable-gpu",
                        "--hide-scrollbars", "--virtual-time-budget=5000"]
        if os.geteuid() == 0:
            self.command.append("--no-sandbox")

    def call(self, page, width, height, scheme, *more):
        done = subprocess.run(
            [*self.command, f"--window-size={width},{height}",
             f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
             *more, page.as_uri()],
            capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def measure(self, page, width, scheme):
        frame = page.with_name("frame.html")
        frame.write_text(FRAME % width)
        dom = self.call(frame, width + 20, 1000, scheme, "--dump-dom")
        title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1)
        return json.loads(html.unescape(title))


def look(browser, page, folder):
    failed = False
    for width in WIDTHS:
        for scheme in SCHEMES:
            found = browser.measure(page, width, scheme)
            picture = folder / f"{width}-{scheme}.png"
            browser.call(page, width, min(found["height"], TALLEST), scheme,
                         f"--screenshot={picture}")
            is_good = (not found["failures"] and not found["silent"] and
                       found["tiles"] and
                       found["window"] == width and
                       found["width"] <= width and not found["outside"])
            failed |= not is_good
            print("ok  " if is_good else "FAIL", picture, found)
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("-o", dest="folder", type=pathlib.Path, required=True)
    parser.add_argument("--chromium", default="chromium")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = options.page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        page = pathlib.Path(scratch) / "page.html"
        page.write_text(text.replace("<style>", LISTEN + "<style>", 1)
                        .replace("</body>", MEASURE + "</body>"),
                        encoding="utf-8")
        return look(Browser(options.chromium), page, options.folder.resolve())


if __name__ == "__main__":
    sys.exit(main())
