#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Every layout of ranks has the gradients of one rank.

    partition.py --tools build/bin [--all] [NAME ...]

Small models are compiled for each axis (dp, fsdp, zero1, zero2, tp, tp with
sequence parallelism, cp, ep, pp, pairs and triples of them) and each kind of
trainable weight. VirtualRanks runs three steps of the program on ranks that
are threads of one process. On every rank the gradient of each tensor, the
update, the loss and the norm must equal those of one rank; values that
several ranks hold must have the same bits.

With --ddp-comm-hook the gradient must follow from the ranks' gradients by the
hook's formula: in bf16 and int8 to the bit, so that no tolerance hides a wrong
sum.

Unsupported cases (is_refused) must be refused, with a message that names an
option. --all: every kind on every layout, 648 cases; without it, all kinds on
each axis, and a third of the supported combinations and of the hooks. NAME:
only these cases, such as "fsdp=2 saved" or "zero2=2".
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import safetensors_io
from covering_formats import FORMATS
from covering_models import FAMILIES, write_model

LENGTH, ROWS, PER_STEP, STEPS = 16, 2, 4, 3
STATISTICS, BLOCK = 1024, 256  # elements: statistics; block of a scale
# Limit for float32 sums in a different order. Measured: at most 1e-6.
SAME = 2e-5
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "intermediate_size": 96, "vocab_size": 96,
         "num_hidden_layers": 2}
LINEARS = ("--lora-target-modules", "all-linear")
# Kinds of trainable weights: each with its family and flags.
KINDS = {
    "adapters": ("qwen2", *LINEARS, "--lora-dropout", "0.1"),
    "dora": ("qwen2", *LINEARS, "--use-dora"),
    "biases": ("qwen2", *LINEARS, "--bias", "all", "--lora-bias"),
    "embeddings": ("qwen2", "--lora-target-modules", "q_proj", "embed_tokens"),
    "tokens": ("qwen2", *LINEARS, "--trainable-token-indices", "5,9,2"),
    "saved": ("qwen2", *LINEARS, "--modules-to-save", "lm_head",
              "embed_tokens"),
    "full": ("qwen2", "--finetuning-type", "full"),
    "experts": ("mixtral", "--lora-target-modules", "q_proj", "--lora-dropout",
                "0", "--target-parameters", "experts.down_proj",
                "experts.gate_up_proj"),
    "saved experts": ("mixtral", "--lora-target-modules", "q_proj",
                      "--modules-to-save", "lm_head", "embed_tokens"),
}
# Layouts: each with its number of ranks and flags.
LAYOUTS = {
    "dp": (2,),
    "fsdp=2": (2, "--parallel", "fsdp=2"),
    "zero1=2": (2, "--parallel", "zero1=2"),
    "zero2=2": (2, "--parallel", "zero2=2"),
    "tp=2": (2, "--parallel", "tp=2"),
    "tp=2,sp": (2, "--parallel", "tp=2", "--sequence-parallel", "true"),
    "cp=2": (2, "--parallel", "cp=2"),
    "ep=2": (2, "--parallel", "ep=2"),
    "pp=2": (2, "--parallel", "pp=2"),
}
PAIRS = {mesh: (4, "--parallel", mesh) for mesh in (
        "fsdp=2", "zero1=2", "zero2=2", "fsdp=2,zero2=2", "fsdp=2,tp=2",
        "zero1=2,tp=2", "zero2=2,tp=2", "cp=2,fsdp=2", "cp=2,zero2=2",
        "tp=2,cp=2", "tp=2,pp=2", "cp=2,pp=2", "fsdp=2,pp=2", "zero2=2,pp=2",
        "ep=2,fsdp=2", "ep=2,zero2=2", "ep=2,pp=2")}
PAIRED = {f"{mesh} x2" if mesh in LAYOUTS else mesh: layout
          for mesh, layout in PAIRS.items()}
LAYOUTS |= PAIRED
# The remaining combinations of axes, without hooks.
SEQUENCE = ("--sequence-parallel", "true")
MIXED = {mesh: (4, "--parallel", mesh) for mesh in (
    "zero1=2,cp=2", "zero1=2,pp=2", "zero1=2,ep=2", "fsdp=2,zero1=2",
    "cp=2,ep=2")}
MIXED |= {f"{mesh},sp": (4, "--parallel", mesh, *SEQUENCE) for mesh in (
    "fsdp=2,tp=2", "zero1=2,tp=2", "zero2=2,tp=2", "tp=2,cp=2", "tp=2,pp=2")}
MIXED |= {mesh: (8, "--parallel", mesh) for mesh in (
    "fsdp=2,tp=2,cp=2", "fsdp=2,tp=2,pp=2", "tp=2,cp=2,pp=2",
    "fsdp=2,cp=2,pp=2", "zero2=2,cp=2,pp=2", "fsdp=2,cp=2,ep=2",
    "cp=2,ep=2,pp=2", "fsdp=2,ep=2,pp=2")}
MIXED |= {f"{mesh},sp": (8, "--parallel", mesh, *SEQUENCE) for mesh in (
    "fsdp=2,tp=2,cp=2", "tp=2,cp=2,pp=2")}
LAYOUTS |= MIXED
HOOKS = ("bf16", "int8", "power_sgd")


def rounded(values):
    """Returns values rounded to bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32)


def coded(values):
    """Returns values after 8-bit coding in blocks that share a scale."""
    blocks = values.reshape(-1, BLOCK)
    limit = np.maximum(np.abs(blocks).max(1, keepdims=True), np.float32(1e-30))
    codes = np.rint(blocks * (np.float32(127) / limit))
    return (codes * (limit / np.float32(127))).reshape(-1)


def in_order(values):
    """Returns the sum of the ranks' values, added from the first rank on."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


class Run:
    """The values that VirtualRanks has written for one program."""

    def __init__(self, described, values, ranks):
        self.table = {row["name"]: row for row in described["trainable"]}
        self.state = {row["name"]: row for row in described["state"]}
        self.firsts, self.values, self.ranks = (described["firsts"], values,
                                                ranks)

    def flat(self, rank, step, what):
        return self.values[f"{rank}/{step}/{what}"]

    def all(self, step, what):
        return [self.flat(rank, step, what) for rank in range(self.ranks)]

    def part(self, row, rank, step, what):
        begin = row["offset"] // 4
        count = (row["piece"] or row["bytes"]) // 4
        return self.flat(rank, step, what)[begin:begin + count]

    def whole(self, row, rank, step, what):
        """Returns a tensor, joined from the shards of this rank and of
        others."""
        if not row["piece"]:
            return self.part(row, rank, step, what)
        group = [other for other in range(self.ranks)
                 if self.firsts[other] == self.firsts[rank]]
        joined = np.concatenate([self.part(row, other, step, what)
                                 for other in group])
        begin = row["first"] // 4
        return joined[begin:begin + row["bytes"] // 4]

    def sums(self, rank, step):
        return self.flat(rank, step, "sums")


def compare(what, found, wanted, scale=None):
    """Compares each value, relative to the largest one or to `scale`."""
    scale = np.abs(wanted).max() if scale is None else scale
    error = np.abs(found - wanted).max() / max(scale, 1e-30)
    assert error < SAME, f"{what}: differs by {error:.1e} of the largest number"
    return error


def same_as_one(run, one):
    """Compares gradients, updates and sums with those of one rank. Returns the
    largest error."""
    worst = 0.0
    assert sorted(run.table) == sorted(one.table)
    for step, rank in itertools.product(range(STEPS), range(run.ranks)):
        at = f"step {step}, rank {rank}"
        # Ranks with the same rows count as one rank in the sum of losses.
        labels = one.sums(0, step)[1]
        count, all_labels = (each.flat(rank if each is run else 0, step,
                                       "gradient")[1] for each in (run, one))
        worst = max(worst, compare(f"{at}, norm", run.sums(rank, step)[2:],
                                   one.sums(0, step)[2:]))
        largest = max(np.abs(one.whole(row, 0, step, "gradient")).max()
                      for row in one.table.values()) / labels
        for name, row in one.table.items():
            want = one.whole(row, 0, step, "gradient") / all_labels
            # If a tensor is zero except for rounding, use the scale of the
            # other tensors.
            scale = max(np.abs(want).max(), 1e-3 * largest)
            worst = max(worst, compare(
                f"{at}, gradient of {name}",
                run.whole(run.table[name], rank, step, "gradient") / count,
                want, scale))
            compare(f"{at}, {name} after the update",
                    run.whole(run.table[name], rank, step, "trainable"),
                    one.whole(row, 0, step, "trainable"))
    return worst


def agree(run):
    """Checks that values on several ranks have the same bits."""
    for step, (name, row) in itertools.product(range(STEPS),
                                               run.table.items()):
        first = run.whole(row, 0, step, "trainable")
        for rank in range(1, run.ranks):
            assert np.array_equal(run.whole(row, rank, step, "trainable"),
                                  first), (
                f"step {step}: {name} of rank {rank} is not that of rank 0")


def low_rank_sum(run, step, name, row, arenas):
    """Returns PowerSGD's sum of a matrix over the ranks (Vogels et al., 2019),
    in float64; None for a tensor that is summed uncompressed."""
    basis = run.state.get(f"{name}.powersgd_basis")
    if not basis:
        return None
    columns = basis["shape"][1]
    q = run.part(basis, 0, step, "start.state").reshape(-1, columns)
    begin, end = row["offset"] // 4, (row["offset"] + row["bytes"]) // 4
    x = sum(value[begin:end].astype(np.float64) for value in arenas)
    x = x.reshape(-1, columns)
    q = directions(q.astype(np.float64))
    p = directions(q @ x.T)
    return (p.T @ (p @ x)).reshape(-1)


def directions(rows):
    """Returns orthonormal rows (Gram-Schmidt); zero for dependent ones."""
    found = []
    for row in rows:
        length = np.linalg.norm(row)
        for other in found:
            row = row - (other @ row) * other
        left = np.linalg.norm(row)
        is_large = left > max(1e-6 * length, 1e-30)
        found.append(row / left if is_large else 0 * row)
    return np.array(found)


def given(run, row, rank, step):
    """Returns a rank's operand of the sum over ranks. For a sharded tensor,
    this is only the shard's elements."""
    part = run.part(row, rank, step, "before")
    if not row["piece"]:
        return part
    group = [other for other in range(run.ranks)
             if run.firsts[other] == run.firsts[rank]]
    joined = np.zeros(len(part) * len(group), np.float32)
    at = group.index(rank) * len(part)
    joined[at:at + len(part)] = part
    begin = row["first"] // 4
    return joined[begin:begin + row["bytes"] // 4]


def equal(at, found, want):
    wrong = np.flatnonzero(found != want)
    assert not wrong.size, (
        f"{at}: {wrong.size} of {want.size} numbers are not by the formula, "
        f"the first is number {wrong[0]}: {found[wrong[0]]} and not "
        f"{want[wrong[0]]}")


def by_formula(run, one, hook):
    """Checks the steps in which each rank's operand is known. In the first of
    these steps, the operands must add up to the gradient of one rank."""
    labels = run.flat(0, 0, "gradient")[1], one.flat(0, 0, "gradient")[1]
    for name, row in one.table.items():
        total = in_order([given(run, run.table[name], rank, 0)
                          for rank in range(run.ranks)])
        want = one.whole(row, 0, 0, "gradient")
        compare(f"what ranks give of {name}", total / labels[0],
                want / labels[1], np.abs(want).max() / labels[1] + 1e-6)
    for step, rank in itertools.product(range(STEPS - 1), range(run.ranks)):
        at = f"step {step}, rank {rank}"
        exact = in_order([value[:2] for value in run.all(step, "before")])
        equal(f"{at}, statistics", run.flat(rank, step, "gradient")[:2], exact)
        FORMULAS[hook](run, step, rank)
        if hook != "bf16" and rank == 0:
            conserved(run, step)


def rounded_sums(run, step, rank):
    for name, row in run.table.items():
        parts = [given(run, row, other, step) for other in range(run.ranks)]
        want = rounded(parts[0])
        for part in parts[1:]:
            want = rounded(want + rounded(part))
        equal(f"step {step}, rank {rank}, gradient of {name}",
              run.whole(row, rank, step, "gradient"), want)


def fed_back(run, step):
    """Returns the gradients of each rank plus its residuals, for unsharded
    tensors."""
    assert not any(row["piece"] for row in run.table.values()), (
        "there is no formula for shards")
    return [value + left for value, left in
            zip(run.all(step, "before"), run.all(step, "start.residual"))]


def coded_sums(run, step, rank):
    body = [value[STATISTICS:] for value in fed_back(run, step)]
    equal(f"step {step}, rank {rank}, gradients",
          run.flat(rank, step, "gradient")[STATISTICS:],
          coded(in_order([coded(value) for value in body])))


def low_rank_sums(run, step, rank):
    x = fed_back(run, step)
    for name, row in run.table.items():
        want = low_rank_sum(run, step, name, row, x)
        if want is None:
            want = in_order([given(run, row, other, step)
                             for other in range(run.ranks)])
        compare(f"step {step}, rank {rank}, gradient of {name}",
                run.whole(row, rank, step, "gradient"), want)


FORMULAS = {"bf16": rounded_sums, "int8": coded_sums,
            "power_sgd": low_rank_sums}


def conserved(run, step):
    """Checks that the residuals contain the part of the sum that compression
    drops."""
    arenas = fed_back(run, step)
    left = sum(value.astype(np.float64) for value in
               run.all(step, "residual"))[STATISTICS:]
    gone = (sum(value.astype(np.float64) for value in arenas)
            - run.flat(0, step, "gradient"))[STATISTICS:]
    scale = max(np.abs(value).max() for value in arenas)
    for name, row in run.table.items():
        begin = row["offset"] // 4 - STATISTICS
        own = slice(begin, begin + row["bytes"] // 4)
        compare(f"step {step}, residual of {name}", left[own], gone[own], scale)


class Refused(Exception):
    pass


class Net:
    def __init__(self, tools, work):
        self.tools, self.work = tools, work
        self.references = {}
        for name in {kind[0] for kind in KINDS.values()}:
            family = FAMILIES[name]
            family.config |= SIZES
            if family.experts:
                family.experts = {**family.experts, "inner": 96}
            write_model(self.path(name), family, FORMATS["f32"], 5)
            self.call("qlora-import", self.path(name), "-o",
                      self.path(f"{name}.mlir"))
        self.data = self.path("data.safetensors")
        self.write_data()

    def path(self, name):
        return os.path.join(self.work, name)

    def write_data(self):
        """Writes rows with different numbers of labels, so that a mean of means
        is wrong."""
        random = np.random.default_rng(3)
        shape = (STEPS * PER_STEP, ROWS, LENGTH)
        ids = random.integers(0, SIZES["vocab_size"], shape).astype(np.int32)
        labels = ids.copy()
        for number, row in np.ndindex(shape[:2]):
            labels[number, row, :(3 * number + 5 * row) % (LENGTH - 2)] = -100
        safetensors_io.save(self.data, {"input_ids": ids, "labels": labels})

    def call(self, tool, *words):
        done = subprocess.run([os.path.join(self.tools, tool),
                               *map(str, words)],
                              capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            if tool == "qloracc" and any("--" in line for line in said):
                raise Refused(said[0])
            raise AssertionError(f"{tool} {' '.join(map(str, words))}\n"
                                 f"{done.stdout[-500:]}{done.stderr[-1500:]}")
        return done.stdout

    def run(self, name, kind, ranks, *flags):
        family, *own = KINDS[kind]
        module, out = self.path(f"{name}.so"), self.path(f"{name}.safetensors")
        self.call("qloracc", "--target=cpu",
                  self.path(f"{family}.mlir"), "-o", module,
                  "--compute-dtype", "float32", "--max-length", LENGTH,
                  "--per-device-train-batch-size", ROWS, "--lora-r", 4,
                  *own, *flags)
        described = self.call("VirtualRanks", module, ranks, self.path(family),
                              self.data, PER_STEP, out)
        run = Run(json.loads(described), safetensors_io.load(out), ranks)
        os.remove(module)
        os.remove(out)
        return run

    def check(self, name, layout, kind, hook):
        ranks, *flags = LAYOUTS[layout]
        if hook:
            flags += ["--ddp-comm-hook", hook, "--ranks", ranks]
            if hook == "power_sgd":
                # With a higher rank, matrices with few rows would not be
                # compressed.
                flags += ["--powersgd-rank", 1 if kind == "adapters" else 2]
        run = self.run(name, kind, ranks, *flags)
        agree(run)
        if hook:
            by_formula(run, self.references[kind], hook)
            return "by the formula"
        return f"worst {same_as_one(run, self.references[kind]):.1e}"


def is_refused(layout, kind, hook):
    """Returns whether a case must be refused."""
    axes = {axis.split("=")[0] for axis in layout.split(" ")[0].split(",")}
    if "ep" in axes and "experts" not in kind:
        return True  # nothing to shard
    if "tp" in axes and kind == "dora":
        return True  # norms of tp-sharded rows
    if {"fsdp", "zero1"} <= axes and kind.split()[0] in ("saved", "full"):
        return True  # both shard the same update
    if not hook:
        return False
    if axes & {"zero2", "ep", "pp"}:
        return True
    return "fsdp" in axes and (kind in ("saved", "full"))


def cases(everything):
    """Returns the cases, each as (layout, kind, hook)."""
    every = 1 if everything else 3
    exact = list(itertools.product(LAYOUTS, KINDS, ("",)))
    axes = [case for case in exact if case[0] not in PAIRED | MIXED]
    combined = [case for case in exact if case[0] in PAIRED | MIXED
                and (everything or not is_refused(*case))]
    hooked = list(itertools.product(
        [name for name in LAYOUTS if name not in MIXED],
        ("adapters", "saved", "full"), HOOKS))
    # Take diagonals, so that each layout gets each hook and each kind.
    return axes + combined[::every] + [
        case for number, case in enumerate(hooked)
        if (number + number // 3) % every == 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    chosen = {}
    for case in cases(options.all or options.names):
        name = " ".join(filter(None, case))
        if not options.names or any(f" {wanted} " in f" {name} "
                                    for wanted in options.names):
            chosen[name] = case
    with tempfile.TemporaryDirectory() as work:
        net = Net(os.path.abspath(options.tools), work)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            kinds = sorted({kind for _, kind, _ in chosen.values()})
            net.references = dict(zip(kinds, pool.map(
                lambda kind: net.run(f"one {kind}", kind, 1), kinds)))
            failed = sum(not done for done in pool.map(
                lambda item: report(net, *item), chosen.items()))
    print(f"partition: {len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


def report(net, name, case):
    """Runs a case and prints the result; returns whether it passed."""
    try:
        said = net.check(name, *case)
        if is_refused(*case):
            said = "FAIL was not refused"
    except Refused as refusal:
        said = f"refused: {refusal}"
        if not is_refused(*case):
            said = f"FAIL {said}"
    except AssertionError as error:
        said = f"FAIL {error}"
    failed = said.startswith("FAIL")
    print(f"FAIL {name}: {said[5:]}" if failed else f"ok   {name}: {said}",
          flush=True)
    return not failed


if __name__ == "__main__":
    sys.exit(main())
