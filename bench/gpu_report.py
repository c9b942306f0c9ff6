# SPDX-License-Identifier: MIT

"""What gpu.sh prints and leaves: one row for each figure, with its target
where it has one. A row's verdict is

  met, missed      the target           measured   a figure without one
  passed, failed   a check, or a run    skipped    something is not installed
"""

import json
import operator
import os
import time

COMPARE = {">=": operator.ge, "<=": operator.le}
WIDTHS = (11, 34, 30, 16, 12)


def shown(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


class Report:
    """Rows of this run, beside those of other parts in the same file."""

    def __init__(self, path, machine):
        self.path, self.machine = path, machine
        self.rows, self.runs = [], {}
        self.started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        card = machine.card
        print(f"{card['name']}, sm_{card['arch']}, "
              f"{card['memory_bytes'] / 2**30:.0f} GiB, driver "
              f"{card['driver']}; bundle of {machine.bundle['prepared']}, "
              f"{machine.bundle['commit']}", flush=True)
        self.line("part", "case", "what", "result", "target", "")
        size = card["size"]
        self.add("card", f"{size} x {size} x {size}", "bf16 GEMM, TFLOP/s",
                 card["gemm_flops"] / 1e12)
        self.add("card", f"{card['copy_bytes'] >> 20} MiB", "copy, TB/s",
                 card["copy_bytes_per_second"] / 1e12)

    @staticmethod
    def line(part, case, what, result, target, verdict, note=""):
        cells = (part, case, what, result, target, verdict)
        text = " ".join(cell.ljust(width) for cell, width in
                        zip(cells, (*WIDTHS, 0)))
        print(f"{text}{': ' + note if note else ''}".rstrip(), flush=True)

    def add(self, part, case, what, value, target=None, verdict=None,
            note=""):
        """`target` is [">=" or "<=", number]."""
        if verdict is None:
            verdict = "measured"
            if target:
                verdict = ("met" if COMPARE[target[0]](value, target[1])
                           else "missed")
        self.rows.append({"part": part, "case": case, "what": what,
                          "value": value, "target": target,
                          "verdict": verdict, "note": note})
        wanted = f"{target[0]} {shown(target[1])}" if target else ""
        self.line(part, case, what, shown(value), wanted, verdict, note)

    def fail(self, part, case, note):
        self.add(part, case, "-", None, verdict="failed", note=note)

    def skip(self, part, case, note):
        self.add(part, case, "-", None, verdict="skipped", note=note)

    def count(self, verdict):
        return sum(row["verdict"] == verdict for row in self.rows)

    def kept(self):
        """Rows and runs of other parts, of the same bundle and card."""
        if not os.path.exists(self.path):
            return [], {}
        with open(self.path) as file:
            old = json.load(file)
        if (old["card"]["name"] != self.machine.card["name"]
                or old["bundle"] != self.machine.bundle):
            return [], {}
        ours = {row["part"] for row in self.rows}
        return ([row for row in old["rows"] if row["part"] not in ours],
                {name: run for name, run in old["runs"].items()
                 if name.split()[0] not in ours})

    def save(self):
        rows, runs = self.kept()
        verdicts = [row["verdict"] for row in rows + self.rows]
        counts = {verdict: verdicts.count(verdict) for verdict in
                  ("met", "missed", "measured", "passed", "failed",
                   "skipped")}
        with open(self.path + ".part", "w") as file:
            json.dump({"card": self.machine.card, "started": self.started,
                       "counts": counts, "rows": rows + self.rows,
                       "runs": {**runs, **self.runs},
                       "bundle": self.machine.bundle}, file, indent=1)
        os.replace(self.path + ".part", self.path)

    def finish(self):
        """The exit code."""
        failed = self.count("failed")
        print(f"gpu.sh: {self.count('met')} targets met, "
              f"{self.count('missed')} missed, {failed} failed, "
              f"{self.count('skipped')} skipped; {self.path}; weights stay "
              f"in {self.machine.work}")
        return 1 if failed else 0
