# SPDX-License-Identifier: MIT

"""Measures the rows of the CPU table: qlora-run and the peer (baseline_cpu.py)
train in turns.

Both start from the same weights, adapter and data. A row counts only if their
losses agree. The reference is the peer's float32 loss of each step. qlora-run
must be within PEER_LOSS of it in float32, and within BFLOAT16_LOSS in bfloat16.
For tiny shapes without the peer, the first step must be within FLOAT32_LOSS of
reference.py.
"""

import os
import statistics
from dataclasses import dataclass

import cpu_machine
import ours
import reference
from cpu_baseline import COMPUTES, Peer, PeerFailed
from shapes import (BATCH_ROWS, LENGTH, RANK, SHAPES, load_rows, write_adapter,
                    write_batch, write_config, write_first_rows, write_model,
                    write_rows)
from tensors import has_experts
from work import work_per_label, work_per_token

FLOAT32_LOSS, PEER_LOSS, BFLOAT16_LOSS = 2e-5, 1e-4, 0.02  # relative
# baseline_cpu.py takes a second turn with a compute type only if its first turn
# reached this fraction of the rate of the fastest type so far.
NO_BEST_MODE = 0.8


@dataclass(frozen=True)
class Row:
    """A row of the table, with its targets."""
    name: str
    shape: str
    ratio: float  # target: speed relative to the peer's faster type
    resident: float = 0.0  # target: resident GiB; 0: none
    fine_tuning: bool = False
    turn: int = 3  # steps of a turn, after one warm-up step
    length: int = LENGTH
    is_tiny: bool = False  # few enough tokens for reference.py

    @property
    def unit(self):
        return "labelled" if self.fine_tuning else "tokens"

    def limit(self):
        """Returns the resident target as a --memory-limit flag. The flag limits
        only the plan, so the memory of a process without its plan is
        subtracted."""
        if not self.resident:
            return ()
        return ("--memory-limit",
                str(int(self.resident * 2**30) - ours.MEMORY_SLACK))


ROWS = (
    Row("smollm2-135m", "smollm2-135m", 1.7, 0.9),
    Row("qwen2.5-0.5b", "qwen2.5-0.5b", 1.5, 1.6),
    Row("llama3.2-1b", "llama3.2-1b", 1.2, 2.2),
    Row("qwen2.5-0.5b-sft", "qwen2.5-0.5b", 3.0, fine_tuning=True, turn=2),
    Row("qwen3-moe-0.7b", "qwen3-moe-0.7b", 2.0),
)
FAST_ROWS = (
    Row("tiny-llama", "tiny-llama", 0, length=128, is_tiny=True),
    Row("tiny-qwen2-sft", "tiny-qwen2", 0, fine_tuning=True, turn=2,
        length=128, is_tiny=True),
    Row("tiny-qwen3-moe", "tiny-qwen3-moe", 0, length=128, is_tiny=True),
)
# Flags for models with experts: quantize all weights to 4 bits, and adapt the
# modules that tensors.is_adapted() selects.
EXPERT_FLAGS = ("--quantize-moe-experts", "--lora-target-modules",
                "q_proj,k_proj,v_proj,o_proj")


class Inputs:
    """The model, adapter and data files of a row."""

    def __init__(self, row, work):
        self.folder = os.path.join(work, row.shape)
        self.config = write_config(self.folder, SHAPES[row.shape])
        write_model(self.folder, SHAPES[row.shape])
        self.weights = os.path.join(self.folder, "model.safetensors")
        self.adapter = os.path.join(self.folder, "adapter")
        write_adapter(self.adapter, self.config)
        vocabulary = self.config["vocab_size"]
        self.data = os.path.join(self.folder, f"{row.name}.data.safetensors")
        self.first = self.data
        self.flags = ("--adapter-name-or-path", self.adapter)
        self.labels_per_token = 1.0
        self.compile_flags = EXPERT_FLAGS if has_experts(self.config) else ()
        if not row.fine_tuning:
            write_batch(self.data, vocabulary, row.length)
            self.work = work_per_token(self.config, RANK, row.length)
            return
        write_rows(self.data, vocabulary, row.length)
        self.first = os.path.join(self.folder, f"{row.name}.first.safetensors")
        write_first_rows(self.first, self.data)
        self.compile_flags += ("--per-device-train-batch-size",
                               str(BATCH_ROWS), "--step-packing", "true")
        sizes = [(len(ids), int((labels[1:] >= 0).sum()))
                 for ids, labels in load_rows(self.data)]
        self.labels_per_token = (sum(labels for _, labels in sizes)
                                 / sum(tokens for tokens, _ in sizes))
        self.work = work_per_label(self.config, RANK, sizes)


class Ours:
    """The compiled modules of a row, one per compute type, and their runs."""

    def __init__(self, row, inputs, profile, computes):
        self.row, self.inputs, self.runs = row, inputs, {}
        self.flags = ("--device-profile", profile, *row.limit())
        self.modules = {
            compute: os.path.join(inputs.folder, f"{row.name}-{compute}.so")
            for compute in computes}

    def compile(self):
        """Compiles all modules. Returns the longest compile time in seconds,
        without and with cached kernels."""
        cold, cached = [], []
        for compute, module in self.modules.items():
            for seconds, flags in ((cold, ("--no-cache",)), (None, ()),
                                   (cached, ())):
                took = ours.compile_module(self.inputs.folder, module, compute,
                                           *self.flags, *flags,
                                           *self.inputs.compile_flags,
                                           length=self.row.length)
                if seconds is not None:
                    seconds.append(took)
        return max(cold), max(cached)

    def take_turn(self, compute):
        run = ours.train(self.modules[compute], self.inputs.data,
                         1 + self.row.turn, *self.inputs.flags)
        self.runs.setdefault(compute, []).append(run)

    def rate(self, compute):
        """Returns tokens per second (labelled tokens for fine-tuning): the
        median over steps, or the total if steps differ in size."""
        runs = self.runs[compute]
        if not self.row.fine_tuning:
            return ours.median_rate(runs)
        tokens = sum(sum(run.tokens[1:]) for run in runs)
        seconds = sum(sum(run.seconds[1:]) for run in runs)
        return self.inputs.labels_per_token * tokens / seconds

    def best(self):
        return max(self.runs, key=self.rate)

    def losses(self, compute):
        """Returns the losses to compare with the peer's: one per step, or for
        fine-tuning, only the loss of the first batch before training."""
        if not self.row.fine_tuning:
            return self.runs[compute][0].losses
        run = ours.evaluate(self.modules[compute], self.inputs.data,
                            self.inputs.first, *self.inputs.flags)
        return run.evaluations[:1]


def take_turns(row, inputs, own, python):
    """Runs the peer in each compute type, in turns with qlora-run. Returns the
    peer's rates, losses, peaks and seconds per expert implementation, by
    compute type, and the reasons why it failed."""
    rates, losses, peaks, ways, failures = {}, {}, {}, {}, {}
    for compute in COMPUTES:
        try:
            with Peer(python, inputs.folder, inputs.adapter, inputs.data,
                      compute) as peer:
                peer.wait_until_ready()
                peer.take_turn(1 + row.turn)
                own.take_turn(own.best())

                def rate():
                    return peer.rate(row.unit, not row.fine_tuning)
                if not rates or rate() > NO_BEST_MODE * max(rates.values()):
                    peer.take_turn(max(1, row.turn - row.fine_tuning))
                rates[compute], peaks[compute] = rate(), peer.peak()
                losses[compute] = peer.losses()
                ways[compute] = peer.expert_seconds
        except PeerFailed as failure:
            failures[compute] = str(failure)
    if row.fine_tuning and "float32" in failures:
        losses["float32"] = first_loss(inputs, python)
    return rates, losses, peaks, ways, failures


def first_loss(inputs, python):
    """Returns the peer's float32 loss of the first batch, without gradients,
    which needs less memory than a step."""
    with Peer(python, inputs.folder, inputs.adapter, inputs.data,
              "float32") as peer:
        peer.wait_until_ready()
        return peer.evaluate()


def check_losses(row, inputs, own, peer_losses):
    """Returns, per compute type, the largest relative difference from the
    reference loss and whether it is allowed. None if there is no reference."""
    expected, exact = peer_losses.get("float32"), PEER_LOSS
    if expected is None and row.is_tiny:
        exact = FLOAT32_LOSS
        expected = [reference.first_loss(inputs.folder, inputs.adapter,
                                         reference.rows_of(inputs.first))]
    if expected is None:
        return None
    found = {}
    for compute in own.runs:
        worst = max(abs(loss / want - 1) for loss, want in
                    zip(own.losses(compute), expected))
        limit = exact if compute == "float32" else BFLOAT16_LOSS
        found[compute] = {"difference": worst, "limit": limit,
                          "is_right": worst <= limit}
    return found


def describe_step(trace, peak):
    """Returns the fraction of the step time for each kind of command, and the
    rates of the GEMMs and the LM head relative to `peak`. The LM head has GEMMs
    and a softmax."""
    shares = ours.shares(trace)
    return {"shares": shares,
            "gemm_of_probe": ours.rate_of(trace, "GEMM") / peak,
            "head_of_probe": ours.rate_of(trace, "head and loss") / peak,
            "outside_gemm": 1 - shares.get("GEMM", 0)
            - shares.get("head and loss", 0)}


def measure(row, options):
    """Returns one row of the table, as JSON."""
    inputs = Inputs(row, options.work)
    own = Ours(row, inputs, options.profile, COMPUTES)
    cold, cached = own.compile()
    peak = cpu_machine.peak()
    for compute in COMPUTES:
        own.take_turn(compute)
    rates, losses, peaks, ways, failures = {}, {}, {}, {}, {}
    if options.peer_python:
        rates, losses, peaks, ways, failures = take_turns(
            row, inputs, own, options.peer_python)
    best = own.best()
    trace = ours.profile(own.modules[best], inputs.data, *inputs.flags,
                         active=5)
    peak = cpu_machine.higher(peak, cpu_machine.peak())
    bound = max(peak.values()) / inputs.work
    runs = own.runs[best]
    # Report the run with the largest memory peak.
    largest = max(runs, key=lambda run: run.peak)
    return {
        "name": row.name, "unit": row.unit, "compute": best,
        "ours": {compute: own.rate(compute) for compute in own.runs},
        "peer": rates, "peer_failures": failures, "peer_peak": peaks,
        "peer_expert_seconds": ways,
        "ratio": own.rate(best) / max(rates.values()) if rates else None,
        "target_ratio": row.ratio,
        "losses": check_losses(row, inputs, own, losses),
        "probe": peak, "bound": bound, "share_of_bound": own.rate(best) / bound,
        "step": describe_step(trace, peak[best] or peak["float32"]),
        "resident": {"peak": largest.peak, "predicted": largest.predicted_peak,
                     "planned": largest.planned,
                     "is_kept": all(run.keeps_memory() for turns in
                                    own.runs.values() for run in turns),
                     "target": int(row.resident * 2**30)},
        "compile_seconds": {"cold": cold, "cached": cached},
        "start_seconds": statistics.median(run.start_seconds for run in runs),
        "read_seconds": cpu_machine.read_seconds(inputs.weights),
    }


def failures(result):
    """Returns messages about wrong losses and mispredicted memory."""
    found = []
    for compute, losses in (result["losses"] or {}).items():
        if not losses["is_right"]:
            found.append(f"{result['name']}: losses in {compute} differ by "
                         f"{losses['difference']:.2g} from the reference, of "
                         f"{losses['limit']:.2g} allowed")
    resident = result["resident"]
    if not resident["is_kept"]:
        found.append(f"{result['name']}: {resident['peak']} bytes resident, "
                     f"{resident['predicted']} predicted")
    return found
