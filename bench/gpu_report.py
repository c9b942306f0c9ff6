# SPDX-License-Identifier: MIT

"""Output of gpu.sh: one row per figure, with its target if it has one. The
verdict of a row is

  met, missed      the target           measured   a figure without a target
  passed, failed   a check, or a run    skipped    something is not installed

The file is written after each row, so that results survive the loss of the
machine. A copy is in the scratch folder. If the file was moved away, another
call on this machine continues from the copy.
"""

import json
import operator
import os
import time

from gpu_gates import Gates

COMPARE = {">=": operator.ge, "<=": operator.le}
WIDTHS = (11, 34, 30, 16, 12)


def shown(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def read(path):
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


class Report:
    """The rows in the result file: of units that this call ran, and of units
    that earlier calls ran."""

    def __init__(self, path, machine):
        self.path, self.machine = path, machine
        self.copy = os.path.join(machine.work, "results.json")
        self.unit, self.units = "card", {"card"}
        old = self.old()
        self.rows = [row for row in old["rows"] if row["unit"] != "card"]
        self.runs, self.finished = old["runs"], old["finished"]
        self.started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        card = machine.card
        print(f"{card['name']}, sm_{card['arch']}, "
              f"{card['memory_bytes'] / 2**30:.0f} GiB, driver of CUDA "
              f"{card['driver']} ({card.get('driver_version', 'unknown')}), "
              f"cuBLASLt {card['cublaslt']}, cuDNN {card['cudnn']}, NCCL "
              f"{card['nccl']}; bundle of {machine.bundle['prepared']}, "
              f"{machine.bundle['commit']}", flush=True)
        self.line("part", "case", "what", "result", "target", "")
        size = card["size"]
        self.add("card", f"{size} x {size} x {size}", "bf16 GEMM, TFLOP/s",
                 card["gemm_flops"] / 1e12)
        self.add("card", f"{card['copy_bytes'] >> 20} MiB", "copy, TB/s",
                 card["copy_bytes_per_second"] / 1e12)

    def old(self):
        """Returns earlier results for the same bundle and GPU."""
        for path in (self.path, self.copy):
            old = read(path)
            if old and (old["card"]["name"], old["bundle"]) == (
                    self.machine.card["name"], self.machine.bundle):
                return old
        return {"rows": [], "runs": {}, "finished": []}

    def begin(self, unit):
        """Starts a unit: drops its rows and figures of earlier calls."""
        self.unit = unit
        self.units.add(unit)
        self.rows = [row for row in self.rows if row["unit"] != unit]
        self.runs.pop(unit, None)
        self.finished = [other for other in self.finished if other != unit]

    def finish_unit(self):
        """Marks the unit as finished, so that it is not repeated."""
        self.finished.append(self.unit)
        self.save()

    @staticmethod
    def line(part, case, what, result, target, verdict, note=""):
        cells = (part, case, what, result, target, verdict)
        text = " ".join(cell.ljust(width) for cell, width in
                        zip(cells, (*WIDTHS, 0)))
        print(f"{text}{': ' + note if note else ''}".rstrip(), flush=True)

    def add(self, part, case, what, value, target=None, verdict=None,
            note=""):
        """Adds a row. `target` is [">=" or "<=", number]."""
        if verdict is None:
            verdict = "measured"
            if target:
                verdict = ("met" if COMPARE[target[0]](value, target[1])
                           else "missed")
        self.rows.append({"unit": self.unit, "part": part, "case": case,
                          "what": what, "value": value, "target": target,
                          "verdict": verdict, "note": note})
        wanted = f"{target[0]} {shown(target[1])}" if target else ""
        self.line(part, case, what, shown(value), wanted, verdict, note)
        self.save()

    def fail(self, part, case, note):
        self.add(part, case, "-", None, verdict="failed", note=note)

    def skip(self, part, case, note):
        self.add(part, case, "-", None, verdict="skipped", note=note)

    def gates(self):
        return Gates(self.machine.shapes["gates"], self.machine.card)

    def count(self, verdict, units=None):
        return sum(row["verdict"] == verdict for row in self.rows
                   if not units or row["unit"] in units)

    def save(self):
        counts = {verdict: self.count(verdict) for verdict in
                  ("met", "missed", "measured", "passed", "failed",
                   "skipped")}
        text = json.dumps({"card": self.machine.card, "started": self.started,
                           "counts": counts, "finished": self.finished,
                           "rows": self.rows, "runs": self.runs,
                           "bundle": self.machine.bundle})
        for path in (self.path, self.copy):
            with open(path + ".part", "w") as file:
                file.write(text)
            os.replace(path + ".part", path)

    def finish(self, left):
        """Prints the summary. Returns 1 if a unit of this call failed or units
        are left."""
        failed = self.count("failed", self.units)
        print(f"gpu.sh: {self.count('met', self.units)} targets met, "
              f"{self.count('missed', self.units)} missed, {failed} failed, "
              f"{self.count('skipped', self.units)} skipped; {self.path}; "
              f"weights stay in {self.machine.work}")
        if left:
            print(f"gpu.sh: no time for {', '.join(left)}: run it again")
        return 1 if failed or left else 0
