#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Model-parallel ranks train like a single rank.

    layouts.py --tools build/bin [--axis AXIS] [--target cuda] [--every N]
               [FAMILY ...]

Trains every family on the layouts of an axis (LAYOUTS), and compares losses,
norms, evaluations and adapters with a single rank's:

  tp  ranks with the same rows shard each matmul
  cp  ranks with the same rows shard each sequence
  pp  ranks with the same rows shard the layers
  ep  ranks with different rows shard the experts, which also have adapters

A checkpoint of two pairs of ranks is resumed by one rank and by four. The
models have 8 query heads and 4 key heads, double-quantized 4-bit weights, and
adapters with dropout on all linears. Dropout masks do not depend on the layout.

--every N: each N-th family, and only the last layout of the axis.
"""

import argparse
import copy
import json
import os
import re
import shutil
import sys
import tempfile

import numpy as np

import promises
import safetensors_io
from covering_formats import FORMATS
from covering_models import FAMILIES, write_model
from goldens import FINAL, LOSS, NORM, Failure
from goldens import cuda_environment, cuda_flags, run

sys.path.insert(0, os.path.join(promises.HERE, "..", "..", "bench"))
import tensors  # noqa: E402

WIDE = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
        "intermediate_size": 512, "vocab_size": 96, "head_dim": 32}
WIDTHS = {"n_embd": 256, "n_head": 8, "n_inner": 512, "vocab_size": 96,
          "moe_intermediate_size": 256, "shared_expert_intermediate_size": 512,
          "num_local_experts": 4, "num_experts": 4}
LENGTH, ROWS = 16, 2
# A layout: ranks, mesh, accumulation steps, flags. All steps have 8 rows.
ALONE = (1, "", 4)
PARTS = ("--num-virtual-stages-per-pipeline-rank", "2")
TOKENS = ("--sequence-parallel", "true")
LAYOUTS = {
    "tp": ((2, "tp=2", 4), (4, "tp=4", 4), (4, "fsdp=2,tp=2", 2),
           (4, "zero1=2,tp=2", 2), (4, "zero2=2,tp=2", 2),
           (4, "tp=4", 4, *TOKENS), (4, "tp=2", 2)),
    "cp": ((2, "cp=2", 4), (4, "cp=4", 4), (8, "cp=8", 4),
           (4, "cp=2,fsdp=4,zero1=4", 2),
           (2, "cp=2,fsdp=2", 4), (4, "cp=2,fsdp=4,zero2=4", 2),
           (4, "tp=2,cp=2", 4), (4, "cp=2,pp=2", 4),
           (8, "fsdp=2,zero1=2,tp=2,cp=2,pp=2", 4),
           (4, "cp=2", 2)),
    "pp": ((2, "pp=2", 4), (4, "pp=4", 4), (4, "pp=2,fsdp=2,zero1=2", 2),
           (4, "tp=2,pp=2", 4), (8, "fsdp=2,zero1=2,tp=2,pp=2", 2),
           (4, "pp=2", 2), (4, "zero2=2,pp=2", 2), (4, "tp=2,pp=2", 4, *PARTS),
           (8, "zero2=2,pp=2", 1, *PARTS), (8, "zero2=2,tp=2,pp=2", 2),
           (4, "pp=2,fsdp=2", 2, *PARTS, "--pipeline-schedule", "gpipe"),
           (4, "pp=2", 2, *PARTS)),
    "ep": ((2, "ep=2", 2), (4, "ep=4", 1), (4, "ep=2,fsdp=4,zero1=4", 1),
           (4, "ep=4,zero2=2", 1), (4, "ep=2,pp=2", 2), (4, "cp=2,ep=4", 2),
           (4, "ep=2", 1))}
# MoE families with adapters on experts. These have no dropout.
ADAPTED = ("mixtral", "qwen2moe")
# Minimum number of weights, in two layers, that tp must shard; 12 for families
# that are not listed.
KEPT = {"olmo2": 6, "gptoss": 8, "gpt2": 8, "phi3": 8, "starcoder2": 12}


def widened(name, layers=2):
    """Returns the family with `layers` layers. Its kinds of layers
    alternate."""
    family = copy.copy(FAMILIES[name])
    wide = WIDTHS if "n_embd" in family.config else WIDE | WIDTHS
    family.config = {key: wide.get(key, value)
                     for key, value in family.config.items()}
    for key in ("num_hidden_layers", "n_layer"):
        if key in family.config:
            family.config[key] = layers
    for key in ("layer_types", "no_rope_layers"):
        if key in family.config:
            family.config[key] = family.config[key] * (layers // 2)
    if name == "phi3":  # 6 factors for the 12 rotated columns
        family.config["partial_rotary_factor"] = 12 / 32
    if family.experts:
        inner = family.config.get("moe_intermediate_size",
                                  family.config["intermediate_size"])
        family.experts = {**family.experts, "inner": inner, **(
            {"shared": 512} if "shared" in family.experts else {})}
    return family


class Runs:
    def __init__(self, options, name, work):
        self.options, self.name = options, name
        self.work = os.path.join(work, name)
        self.log = os.path.join(self.work, "log.txt")
        # There must be a layer for each pipeline stage.
        family = widened(name, 4 if options.axis == "pp" else 2)
        self.targets = family.targets if family.experts else ["all-linear"]
        if options.axis == "ep" and name in ADAPTED:
            self.targets = [*self.targets, "--lora-dropout", "0",
                            "--target-parameters", "experts.down_proj",
                            "experts.gate_up_proj"]
        write_model(os.path.join(self.work, "model"), family, FORMATS["bf16"],
                    5)
        self.data = os.path.join(self.work, "data.safetensors")
        tensors.write_tokens(self.data, 96, 24, ROWS, LENGTH)
        run([f"{options.tools}/qlora-import", f"{self.work}/model", "-o",
             f"{self.work}/m.mlir"], self.log)

    def compile(self, mesh, *flags):
        plan = f"{self.work}/{mesh}.json"
        run([f"{self.options.tools}/qloracc", "--target=cpu",
             f"{self.work}/m.mlir", "-o",
             f"{self.work}/{mesh}.so", "--load-in-4bit",
             "--bnb-4bit-use-double-quant", "true", "--compute-dtype",
             "float32", "--max-length", str(LENGTH), "--lora-dropout", "0.1",
             "--per-device-train-batch-size", str(ROWS), "--lora-r", "4",
             "--plan-report", plan, "--lora-target-modules", *self.targets,
             *flags,
             *(["--parallel", mesh] if mesh else []),
             *(cuda_flags() if self.options.target == "cuda" else [])],
            self.log)
        with open(plan) as file:
            return json.load(file)

    def train(self, ranks, mesh, steps, *flags):
        out = f"{self.work}/out"
        shutil.rmtree(out, ignore_errors=True)
        run([f"{self.options.tools}/qlora-run", f"{self.work}/{mesh}.so",
             "--gpus", str(ranks), "--threads", "1", "--model-name-or-path",
             f"{self.work}/model", "--train-file", self.data, "--max-steps",
             "3", "--gradient-accumulation-steps", str(steps),
             "--logging-steps", "1", "--learning-rate", "1e-2",
             # A large epsilon. With a small one, AdamW makes full steps even
             # for gradients near zero, whose sign depends on rounding.
             "--adam-epsilon", "1e-2", "--base-cache", "none", "--save-steps",
             "2", "--seed", "9", "--validation-file", self.data, "--output-dir",
             out, *flags],
            self.log, {**os.environ, "XDG_CACHE_HOME": self.work}
            if self.options.target == "cpu"
            else cuda_environment(self.options, ranks))
        with open(f"{out}/metrics.jsonl") as lines:
            rows = [json.loads(line) for line in lines]
        found = {key: np.array([row[key] for row in rows if key in row])
                 for key in ("loss", "grad_norm", "eval_loss",
                             "num_input_tokens_seen")}
        return found, safetensors_io.load(f"{out}/adapter_model.safetensors")


def same(found, wanted, what):
    for key, want in wanted[0].items():
        got = found[0][key]
        assert len(got) == len(want), (what, key, got, want)
        limit = {"grad_norm": NORM, "num_input_tokens_seen": 0}.get(key, LOSS)
        worst = np.max(np.abs(got - want), initial=0)
        assert worst <= limit * max(1, np.max(np.abs(want), initial=0)), (
            what, key, got, want)
    for name, want in wanted[1].items():
        distance = np.linalg.norm(found[1][name] - want)
        assert distance <= FINAL * np.linalg.norm(want), (what, name, distance)


def check_share(name, mesh, plan, flags=()):
    """Checks in the plan that a rank has its shard: of the weights or experts,
    of each sequence (cp), or of the layers (pp). No weight may stay unsharded
    because of its quantization blocks."""
    share = int(mesh.split(",")[0].split("=")[1])
    if "tp=" in mesh:
        share = int(re.search(r"tp=(\d+)", mesh)[1])
    if mesh.startswith("cp"):
        assert plan["shard-context"]["ranks"] == share, plan["shard-context"]
        return
    if "ep" in mesh:
        facts = plan["shard-experts"]
        share = int(re.search(r"ep=(\d+)", mesh)[1])
        assert facts["weights"] and not facts["kept_whole"], facts
        assert facts["sliced_bytes"] * share < 1.2 * facts["whole_bytes"], facts
        return
    if "pp" in mesh:
        stages = int(re.search(r"pp=(\d+)", mesh)[1])
        pipeline = plan["partition-pipeline"]
        assert pipeline["stages"] == stages, pipeline
        return
    if flags == TOKENS:
        assert plan["shard-sequence"]["scattered"] > 0, plan["shard-sequence"]
    facts = plan["shard-matmuls"]
    assert facts["ranks"] == share, facts
    assert facts["sliced_bytes"] * share < 1.2 * facts["whole_bytes"], facts
    assert not [why for why in facts["kept_whole"] if "blocks" in why], facts
    assert facts["weights"] >= KEPT.get(name, 12), facts


def family_case(options, name, work):
    runs = Runs(options, name, work)
    runs.compile("")
    wanted = runs.train(*ALONE)
    layouts = LAYOUTS[options.axis]
    for ranks, mesh, steps, *flags in (layouts[-1:] if options.every > 1
                                       else layouts):
        check_share(name, mesh, runs.compile(mesh, *flags), tuple(flags))
        what = f"{name}: {ranks} ranks, {mesh} {' '.join(flags)}"
        same(runs.train(ranks, mesh, steps), wanted, what)
        print(f"ok   {what}", flush=True)
    return runs, wanted


def resumed(runs, wanted):
    """Resumes a run of two pairs of ranks: on one rank, and on four ranks with
    the same rows."""
    layouts = LAYOUTS[runs.options.axis]
    runs.train(*layouts[-1][:3])
    shutil.move(f"{runs.work}/out/checkpoint-2", f"{runs.work}/begun")
    runs.compile(layouts[1][1])
    for layout in (ALONE, layouts[1]):
        found = runs.train(*layout, "--resume-from-checkpoint",
                           f"{runs.work}/begun")
        for key in ("loss", "grad_norm"):
            found[0][key] = found[0][key][-1:]
        want = {key: wanted[0][key][-1:] for key in ("loss", "grad_norm")}
        same(found, (want, wanted[1]), f"resumed by {layout}")
    print("ok   begun by two pairs, ended by one rank and by four", flush=True)


REFUSED = {
    "tp": ((("--parallel", "tp=3"), "not divisible by --parallel tp=3"),
           (("--parallel", "tp=8"), "not divisible by --parallel tp=8"),
           (("--parallel", "tp=2", "--use-dora"),
            "no matmul of this model can be sharded")),
    "cp": ((("--parallel", "cp=3"), "not divisible by --parallel cp=3"),
           (("--parallel", "cp=32"), "not divisible by --parallel cp=32")),
    "ep": ((("--parallel", "ep=3"), "not divisible by --parallel ep=3"),
           (("--parallel", "ep=2,tp=2"), "does not work with"),
           (("--parallel", "ep=4,fsdp=6"), "one number must divide the other")),
    "pp": ((("--parallel", "pp=5"), "needs as many layers"),
           (("--parallel", "pp=2", "--num-micro-batches", "3"),
            "does not divide the 2 rows of a micro-batch"),
           (("--num-micro-batches", "2"), "add --parallel pp=N"),
           (("--pipeline-schedule", "gpipe"), "add --parallel pp=N"),
           (PARTS, "add --parallel pp=N"),
           (("--parallel", "pp=2", PARTS[0], "3"), "fewer virtual stages"),
           (("--parallel", "pp=3", "--per-device-train-batch-size", "4",
             *PARTS), "use a --per-device-train-batch-size that is a multiple "
            "of 3"),
           (("--parallel", "pp=2", "--num-micro-batches", "1", *PARTS),
            "--num-micro-batches is 1"),
           (("--ranks", "2", "--device-map", "sequential",
             "--memory-limit", "1GiB", *PARTS),
            "remove one"),
           (("--parallel", "pp=2", "--step-packing", "true"),
            "remove one"))}


def refused(runs):
    """Checks that each refusal is one line that names the limit of the model,
    or a fix."""
    def message(*flags):
        try:
            runs.compile("", *flags)
        except Failure as failure:
            return str(failure)
        raise AssertionError(f"{flags}: not refused")

    axis = runs.options.axis
    for flags, words in REFUSED[axis]:
        assert words in message(*flags), (flags, words)
    for ranks, words in ((1, "start"), (3, "start")):
        try:
            runs.train(ranks, f"{axis}=2", 1)
        except Failure as failure:
            assert words in str(failure), failure
        else:
            raise AssertionError(f"{ranks} ranks: not refused")
    print("ok   refused", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--axis", choices=list(LAYOUTS), default="tp")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="FAMILY")
    options = parser.parse_args()
    options.library_path = None
    with tempfile.TemporaryDirectory() as work:
        families = [name for name in FAMILIES
                    if options.axis != "ep" or widened(name).experts]
        for number, name in enumerate(
                options.names or families[::options.every]):
            runs, wanted = family_case(options, name, work)
            if number == 0 and (options.axis == "ep"
                                or not widened(name).experts):
                resumed(runs, wanted)
                refused(runs)
            shutil.rmtree(runs.work)


if __name__ == "__main__":
    main()
