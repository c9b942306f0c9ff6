#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Checks the layout of report.html and compare.html in headless Chromium.

    report.py --tools build/bin [--screenshots DIR]

Output folders are created, complete ones and ones with hostile logs; qlora-run
--report makes their pages, and qlora compare one of all. Chromium opens each
at a phone's width and at a desktop's: nothing is wider than the window, the
charts have their size, no user text became markup, and the console is silent.
Pages with other data check the ticks, labels and marks of charts.
"""

import argparse
import html
import json
import math
import os
import re
import subprocess
import sys
import tempfile

WIDTHS = (390, 1280)
HOSTILE = "</td><script>document.body.innerHTML='owned'</script>" + "x" * 300
# A frame holds the page, because Chromium's windows cannot be as narrow as a
# phone.
FRAME = """<!doctype html><meta charset="utf-8"><style>body{{margin:0}}
iframe{{border:0;width:{width}px;height:{height}px}}</style>
<iframe srcdoc="{page}"></iframe><script>
document.querySelector("iframe").onload = event => {{
  const page = event.target.contentDocument;
  const facts = {{
    width: page.documentElement.scrollWidth,
    charts: [...page.querySelectorAll("svg.chart")].map(
        chart => chart.getBoundingClientRect().width),
    figures: page.querySelectorAll("figure").length,
    lines: page.querySelectorAll("svg.chart .line").length,
    labels: [...page.querySelectorAll("svg.chart text")].map(
        text => text.textContent),
    paths: [...page.querySelectorAll("svg.chart .line")].map(
        line => line.getAttribute("d")),
    marks: [...page.querySelectorAll("svg.chart circle")].map(
        mark => mark.getAttribute("cx")),
    legend: [...page.querySelectorAll(".legend span")].map(
        entry => entry.textContent),
    ticks: {ranges}.map(
        range => event.target.contentWindow.roundTicks(...range)),
    marked: page.querySelectorAll("h1 *, td div *, th div *").length,
    clipped: [...page.querySelectorAll("svg.chart text")].filter(text => {{
      const box = text.getBBox();
      return box.x < 0 || box.x + box.width > 360;
    }}).map(text => text.textContent),
    broken: [...page.querySelectorAll(".wide td")].filter(
        cell => cell.getClientRects()[0].height > 40)
        .map(cell => cell.textContent),
    scripts: page.querySelectorAll("script").length,
    text: page.body.textContent}};
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = encodeURIComponent(JSON.stringify(facts));
  document.body.append(found);
}};
</script>"""


# Pairs of values that an axis must cover.
RANGES = [[0, 100], [1.2, 3.1], [7, 7], [0, 0], [1e-300, 1e-300],
          [-1e300, 1e300], [1e300, 1e300], [1, 1 + 1e-15], [0, 2e-4]]


class Failure(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failure(" ".join(str(part)[:300] for part in what))


def run_of(steps):
    """Returns metrics.jsonl of a run whose loss falls."""
    lines = [{"step": 0, "epoch": 0, "eval_loss": 8.6, "eval_perplexity": 5431,
              "eval_token_accuracy": 0.25}]
    for step in range(1, steps + 1):
        done = step / steps
        lines.append({
            "step": step, "loss": 7 * math.exp(-6 * done) + 0.3 * done % 0.1,
            "grad_norm": 2 + math.sin(step), "epoch": 3 * done,
            "num_input_tokens_seen": 3000 * step,
            "learning_rate": 2e-4 * (1 - done), "tokens_per_second": 16000,
            "memory_bytes": 73 << 20})
    lines.append({"step": steps, "epoch": 3, "eval_loss": 0.31,
                  "eval_perplexity": 1.36, "eval_token_accuracy": 0.97})
    lines.append({"step": steps, "epoch": 3, "train_loss": 0.43,
                  "train_runtime": 4321.0, "train_tokens_per_second": 16400,
                  "planned_bytes": 38 << 20, "peak_memory_bytes": 61 << 20})
    return "".join(json.dumps(line) + "\n" for line in lines)


def cases():
    """Returns name -> metrics.jsonl, config.resolved.yaml, lines drawn."""
    settings = ("model_name_or_path: Qwen3-0.6B\ntrain_file: data.jsonl\n"
                "learning_rate: 2e-4\nlora_r: 16\n")
    strange = ("{\"step\": 1, \"loss\": 1e300, \"grad_norm\": -1e300}\n"
               "{\"step\": 2, \"loss\": null, \"learning_rate\": \"<b>\"}\n"
               "{\"step\": 3, \"loss\": 1, \"grad_norm\": 1e-300}\n")
    return {
        "whole": (run_of(250), settings, 6),
        "long": (run_of(200000), settings, 6),
        "empty": ("", settings, 0),
        "one": ("{\"step\": 1, \"loss\": 2.5}\n", settings, 1),
        "cut": (run_of(250)[:-200] + "{\"st", settings, 6),
        "hostile": (strange, "model_name_or_path: " + json.dumps(HOSTILE), 2)}


def open_page(page, width, folder, *flags):
    """Opens a page. Returns what Chromium measured in it."""
    path = os.path.join(folder, f"frame-{width}.html")
    with open(path, "w") as file:
        file.write(FRAME.format(width=width, height=3000, ranges=RANGES,
                                page=html.escape(page)))
    done = subprocess.run(
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
         "--disable-dev-shm-usage", "--enable-logging=stderr",
         f"--user-data-dir={folder}/profile", "--window-size=1300,3000",
         "--virtual-time-budget=5000", *flags, "file://" + path],
        capture_output=True, text=True, timeout=120)
    check("CONSOLE" not in done.stderr, "the console says", done.stderr)
    return done.stdout


def facts_of(page, width, folder):
    from urllib.parse import unquote
    dom = open_page(page, width, folder, "--dump-dom")
    found = re.search(r'<pre id="found">([^<]*)</pre>', dom)
    check(found, "Chromium did not open the page:", dom)
    return json.loads(unquote(found[1]))


def check_page(name, page, width, lines, folder, figures=5):
    facts = facts_of(page, width, folder)
    where = f"{name} at {width}:"
    check(facts["width"] <= width, where, facts["width"], "wide")
    check(facts["scripts"] == 2, where, facts["scripts"], "scripts")
    check(facts["marked"] == 0, where, "text became markup")
    check(not facts["clipped"], where, facts["clipped"], "are cut off")
    check(not facts["broken"], where, facts["broken"], "are broken over lines")
    check(facts["figures"] == figures, where, facts["figures"], "charts")
    check(facts["lines"] == lines, where, facts["lines"], "lines, not", lines)
    check(all(width / 4 < chart <= width for chart in facts["charts"]), where,
          facts["charts"])
    if name in ("hostile", "compare"):
        check(HOSTILE in facts["text"], where, facts["text"])


def with_chart(page, points, starts_at_zero=False, names=("a",)):
    """Returns the page with one chart, whose lines all have the points."""
    data = {"title": "run", "notes": [], "tables": [], "charts": [{
        "title": "Loss", "xName": "step", "startsAtZero": starts_at_zero,
        "lines": [{"name": name, "points": points} for name in names]}]}
    head, _, rest = page.partition('id="data">')
    return (f'{head}id="data">' + json.dumps(data).replace("<", "\\u003c") +
            rest[rest.index("</script>"):])


def check_ticks(ticks):
    check(ticks[0] == [0, 20, 40, 60, 80, 100], ticks[0])
    check(ticks[1] == [1, 1.5, 2, 2.5, 3, 3.5], ticks[1])
    for (low, high), found in zip(RANGES, ticks):
        check(3 <= len(found) <= 9, low, high, found)
        check(found[0] <= low <= high <= found[-1], low, high, found)
        check(found[0] < found[-1], low, high, found)


def check_charts(page, folder):
    def facts(*points, **more):
        return facts_of(with_chart(page, points, **more), WIDTHS[0], folder)

    check_ticks(facts([1, 2])["ticks"])
    for high, label in ((2e-4, "1.5e-4"), (1e-4, "2e-5"), (200000, "150k"),
                        (-1e300, "-1e300"), (1, "0.2")):
        labels = facts([0, 0], [1, high])["labels"]
        check(label in labels, high, labels)
    # The line ends where the x axis does.
    found = facts([10, 2], [120, 3])
    check("100" in found["labels"] and "150" not in found["labels"],
          found["labels"])
    check(found["marks"] == ["52", "340"], found["marks"])
    # The noise of an amount is small if the axis starts at 0.
    noise = [1, 60.508], [2, 60.516]
    check("60.51" in facts(*noise)["labels"], "noise does not fill the chart")
    labels = facts(*noise, starts_at_zero=True)["labels"]
    check("80" in labels and "60.51" not in labels, labels)
    [path] = facts([1, 2], [2, 3], [3, None], [4, 2], [5, None],
                   [6, 1])["paths"]
    check((path.count("M"), path.count("L")) == (3, 1), path)
    check(len(facts([5, 2])["marks"]) == 1, "one point is not a mark")
    found = facts()
    check("Nothing was logged." in found["text"] and not found["charts"],
          found)
    found = facts([1, 2], names=("<b>", "second"))
    check(found["legend"] == ["<b>", "second"], found["legend"])


def make_page(tools, folder, metrics, settings):
    os.makedirs(folder)
    for name, text in (("metrics.jsonl", metrics),
                       ("config.resolved.yaml", settings)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    subprocess.run([os.path.join(tools, "qlora-run"), "--report", folder],
                   check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "report.html")) as file:
        return file.read()


def compare(tools, work, names):
    page = os.path.join(work, "compare.html")
    subprocess.run([os.path.join(tools, "qlora"), "compare", "--output", page,
                    *[os.path.join(work, name) for name in names]],
                   check=True, stdout=subprocess.DEVNULL)
    with open(page) as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--screenshots", help="keep pictures of all here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        pages = {name: (make_page(arguments.tools, os.path.join(work, name),
                                  metrics, settings), lines, 5)
                 for name, (metrics, settings, lines) in cases().items()}
        # compare.html has three charts, and three of its runs have tokens and
        # times.
        pages["compare"] = (compare(arguments.tools, work, pages), 9, 3)
        check_charts(pages["one"][0], work)
        for name, (page, lines, figures) in pages.items():
            check(len(page) < 200000, name, len(page), "bytes")
            for width in WIDTHS:
                check_page(name, page, width, lines, work, figures)
                for scheme in ("0", "1") if arguments.screenshots else ():
                    open_page(page, width, work,
                              f"--blink-settings=preferredColorScheme={scheme}",
                              f"--screenshot={arguments.screenshots}/{name}-"
                              f"{width}-{('dark', 'light')[int(scheme)]}.png")
    print("report    fits into Chromium's windows, also of strange runs and "
          "many")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"report.py: {failure}")
