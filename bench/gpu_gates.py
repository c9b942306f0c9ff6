# SPDX-License-Identifier: MIT

"""Compares gpu-micro's results with gates (minimum rates), which are for an
H200. For another GPU, gates are scaled by its measured rate of copies or large
GEMMs, and the row has a note about it.
"""

MEMORY_PARTS = ("element-wise", "optimizer")


class Gates:
    """The gates of gpu_shapes.json, scaled to the measured GPU."""

    def __init__(self, gates, card):
        self.gates, self.card = gates, card
        self.copy = card["copy_bytes_per_second"]
        self.gemm = card["gemm_flops"]
        here = gates["card"] in card["name"]
        self.by_copy = 1 if here else self.copy / gates["copy"]
        self.by_gemm = 1 if here else self.gemm / gates["gemm"]
        self.scale = "" if here else f"gate of an {gates['card']}, scaled; "

    def attention(self, line):
        """Returns the gate of cuDNN's attention for the longest listed length
        that is at most the launch's length. Returns None for:

        * kernels other than cuDNN's;
        * launches shorter than all listed lengths;
        * rows with segments, because cuDNN computes all token pairs, but the
          rate counts only visible pairs.
        """
        if line["segments"] > 1 or not line["row"].endswith(".cudnn"):
            return None
        lengths = [int(length) for length in self.gates["attention"]
                   if int(length) <= line["constants"]["length"]]
        if not lengths:
            return None
        gate = self.gates["attention"][str(max(lengths))]
        return gate[line["op"].endswith("_grad")] * self.by_gemm

    def row(self, line):
        """Returns the unit of a launch's figure, the figure and its gate or
        None. A negative gate is an upper limit."""
        seconds = line["microseconds"] * 1e-6
        rate = line["bytes"] / seconds / 1e12
        if line["part"] == "attention":
            pairs = line["flops"] / line.get("segments", 1)
            return ("TFLOP/s", pairs / seconds / 1e12, self.attention(line))
        if line["part"] == "decode" and line.get("op") == "decode":
            return "TB/s", rate, self.gates["decode"] * self.by_copy
        if line["part"] in MEMORY_PARTS:
            return ("of copy", line["bytes"] / seconds / self.copy,
                    self.gates["rows_of_copy"])
        if line["part"] == "head and loss" and "grad" in line["op"]:
            return self.head(line, seconds)
        if line["part"] == "GEMM" or line["part"] == "head and loss":
            return "TFLOP/s", line["flops"] / seconds / 1e12, None
        return "TB/s", rate, None

    def head(self, line, seconds):
        """Returns the launch's time without its GEMMs, in passes over the f32
        logits at the copy rate. The GEMMs' time is estimated from their FLOP
        and the rate of a large GEMM."""
        logits = 4 * line["constants"]["rows"] * line["constants"]["vocab"]
        rest = seconds - line["flops"] / self.gemm
        return ("passes over the logits", rest * self.copy / logits,
                -self.gates["head_passes"])


def case(line):
    """Returns a launch's kernel row and shape as text."""
    constants = line.get("constants", {})
    shape = line["label"]
    if line["part"] == "attention":
        shape = f"T={constants['length']} B={constants['batch']}" + (
            ", segments" if line["segments"] > 1 else "")
    elif line["part"] == "decode" and constants:
        shape = f"{constants['rows']} x {constants['columns']}"
    elif "m" in constants and "n" in constants:
        shape = "{m} x {n} x {k}".format(**constants) + "".join(
            f" {name}^T" for name in "ab" if constants[f"transpose_{name}"])
    return f"{line['row']} {shape}"


def add_launch(report, gates, line):
    name, title = case(line), "refused"
    note = f"predicted {line['predicted_microseconds']:.4g} us"
    if line["count"]:
        note += f", x {line['count']}"
    if "refused" in line:
        report.add("micro", name, title, None, verdict="skipped",
                   note=line["refused"])
        return
    title, value, gate = gates.row(line)
    target = None
    # A launch has no target if it is as short as a few kernel starts.
    least = gates.gates["least_us"]
    if gate is not None and line["predicted_microseconds"] > least:
        target = [">=" if gate > 0 else "<=", abs(gate)]
        note = gates.scale + note
    report.add("micro", name, title, value, target,
               note=f"{line['microseconds']:.4g} us, {note}")


def add_gemm(report, gates, line):
    best, used = line["best_microseconds"], line["microseconds"]
    report.add("micro", line["label"].split(",")[0], "best / used algorithm",
               best / used, [">=", gates.gates["gemm_of_best"]],
               note=f"{used:.4g} us, first {line['first_microseconds']:.4g}, "
               f"best of {line['candidates']} {best:.4g}; "
               f"{line['flops'] / used / 1e6:.0f} TFLOP/s"
               + line["label"].partition(",")[1]
               + line["label"].partition(",")[2])


def add_line(report, gates, line):
    if line["kind"] == "launch":
        add_launch(report, gates, line)
    elif line["kind"] == "gemm":
        add_gemm(report, gates, line)
    elif line["kind"] == "graph":
        report.add("micro", "a kernel in a graph", "us a node",
                   line["microseconds"], note="predicted "
                   f"{line['predicted_microseconds']}; the host spends "
                   f"{line['host_microseconds']:.3g}")


def add_lora(report, gates, lines):
    """Adds the time of LoRA's GEMMs relative to the time of all other GEMMs, in
    one micro-batch."""
    def seconds(part):
        return sum(line["count"] * line["microseconds"] for line in lines
                   if line.get("part") == part and "microseconds" in line)
    if seconds("GEMM"):
        report.add("micro", "all products of a micro-batch", "thin / wide",
                   seconds("thin GEMM") / seconds("GEMM"),
                   ["<=", gates.gates["thin_of_wide"]])
