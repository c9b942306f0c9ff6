#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains with LoRA dropout, or with noise on embeddings (NEFTune), and replays
the same random numbers in PyTorch.

    dropout_replay.py --tools build/bin [--masks] [RUN ...]
    dropout_replay.py --tools build/bin RUN --write CASE_DIR

A run is a golden case with its own dropout, accumulation and ranks. The masks
of step 1 that qlora-run exports (--dump) must equal, bit for bit, those of a
second Philox (philox.py), keep values with frequency 1 - p, and differ between
micro-batches. Then PEFT's dropout modules multiply by these masks (in later
steps by those of philox.py) instead of drawing their own. transformers + PEFT
must compute the same: logits (in evaluation, without dropout), loss,
grad_norm, gradients of step 1 and the last adapter, within the tolerances of
goldens.py; also with every block recomputed.

--write makes a golden case of PyTorch's results, which goldens.py checks
without torch. With --masks nothing is replayed, for runs whose family or
dropout this Python's transformers lacks.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import goldens  # noqa: E402
import peft_model  # noqa: E402
import philox  # noqa: E402
import safetensors_io  # noqa: E402
from goldens import Failure  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "Inputs", "goldens")


@dataclass
class Run:
    """A golden case, and settings that replace those of the case."""
    case: str
    dropout: float
    accumulation: int
    ranks: int
    steps: int
    model: dict = field(default_factory=dict)  # own dropout: flag, probability
    noise: float = 0.0  # NEFTune's alpha

    def changes(self):
        changes = {"lora_dropout": self.dropout,
                   "gradient_accumulation_steps": self.accumulation,
                   "max_steps": self.steps}
        if self.noise:
            changes["neftune_noise_alpha"] = self.noise
        return changes

    def import_flags(self):
        return [word for flag, share in self.model.items()
                for word in (flag, str(share))]

    def per_step(self):
        return self.accumulation * self.ranks


RUNS = {
    "llama": Run("llama-lora", 0.1, 2, 1, 10),
    "llama-nf4-ranks": Run("llama-nf4", 0.1, 2, 2, 10),
    "llama3-targets": Run("llama3-tied", 0.5, 4, 1, 5),
    "qwen2-nf4-ranks": Run("qwen2-nf4", 0.25, 2, 2, 10),
    "qwen3-nf4-ranks": Run("qwen3-ranks", 0.05, 1, 2, 20),
    "llama-dora": Run("llama-dora", 0.1, 2, 1, 6),
    "gpt2": Run("gpt2", 0.1, 2, 1, 6,
                {"--embd-pdrop": 0.125, "--resid-pdrop": 0.25}),
    "llama-neftune": Run("llama-lora", 0.0, 2, 1, 6, noise=15.0),
    "gemma2-neftune": Run("gemma2-nf4", 0.0, 1, 2, 4, noise=15.0),
}

# The model's own dropout modules, by the end of their names, each with its
# flag. In the order in which the model computes them, their op ids count up
# from FIRST_MODEL_DROPOUT.
MODEL_DROPOUTS = {".drop": "--embd-pdrop", ".resid_dropout": "--resid-pdrop",
                  ".mlp.dropout": "--resid-pdrop"}
FIRST_MODEL_DROPOUT = 1 << 24
NOISE = 1 << 25  # op id of NEFTune's noise


def check_masks(run, settings, dump):
    """Checks that each adapter has a mask, that it equals the mask of
    philox.py, and that it is random enough. Returns the op id of each adapted
    module."""
    masks = {name[len("dropout."):]: array for name, array in dump.items()
             if name.startswith("dropout.") and not name.endswith(".op")}
    ops = {path: int(dump[f"dropout.{path}.op"][0]) for path in masks}
    inputs = {name[len("grad."):-len(".lora_A.weight")]: array.shape[1]
              for name, array in dump.items()
              if name.endswith(".lora_A.weight")}
    rows = settings["per_device_train_batch_size"] * settings["max_length"]
    for path, columns in inputs.items():
        if path not in masks:
            raise Failure(f"the dump has no mask of {path}")
        if masks[path].shape != (run.per_step(), rows, columns):
            raise Failure(f"the mask of {path} is {masks[path].shape}")
    by_op = {ops[path]: masks[path] for path in inputs}
    for op, mask in by_op.items():
        for i, exported in enumerate(mask):
            drawn = philox.mask(run.dropout, settings["seed"], i, op,
                                mask.shape[1:])
            if exported.tobytes() != drawn.tobytes():
                raise Failure(f"op {op}, micro-batch {i}: "
                              f"{(exported != drawn).sum()} elements are not "
                              "those of Philox")
        philox.expect_share(f"op {op}: share kept", mask != 0, 1 - run.dropout)
    apart = 2 * run.dropout * (1 - run.dropout)
    for op, mask in by_op.items():
        for a, b in itertools.combinations(mask, 2):
            philox.expect_share(f"op {op}: difference of two micro-batches",
                                a != b, apart)
    for (a, one), (b, other) in itertools.combinations(by_op.items(), 2):
        if one.shape == other.shape:
            philox.expect_share(f"difference of ops {a} and {b}",
                                one != other, apart)
    check_siblings(ops)
    return ops


def check_siblings(ops):
    """Checks that linears have the same op id if they read the same x, and else
    different ones."""
    groups = {}
    for path, op in ops.items():
        block, name = path.rsplit(".", 1)
        together = {"k_proj": "q_proj", "v_proj": "q_proj",
                    "up_proj": "gate_proj"}.get(name, name)
        groups.setdefault((block, together), set()).add(op)
    if any(len(of) != 1 for of in groups.values()) or \
            len(set().union(*groups.values())) != len(groups):
        raise Failure(f"ops are not one for each x: {ops}")


def own_share(run, path):
    return next((run.model.get(flag) for end, flag in MODEL_DROPOUTS.items()
                 if path.endswith(end)), None)


def own_dropouts(run, model):
    """Returns the paths of the model's own dropouts, in the order of their op
    ids."""
    return [path for path, _ in model.named_modules() if own_share(run, path)]


def peft_replay(case, run, settings, masks):
    """Returns results of transformers + PEFT, named as in expected.safetensors.
    masks(path, micro-batch, shape) is u8 [rows, columns]."""
    import torch
    from peft import PeftConfig, PeftModel

    class Replay(torch.nn.Module):
        """Multiplies by a given mask instead of a random one."""

        def __init__(self, path, share):
            super().__init__()
            self.path, self.share, self.micro_batch = path, share, 0

        def forward(self, x):
            if not self.training:
                return x
            mask = torch.from_numpy(masks(self.path, self.micro_batch,
                                          (x[..., 0].numel(), x.shape[-1])))
            return x * mask.view(x.shape) / (1 - self.share)

    adapter = settings["adapter_name_or_path"]
    config = PeftConfig.from_pretrained(adapter)
    config.lora_dropout = run.dropout
    model = PeftModel.from_pretrained(peft_model.load_base(case), adapter,
                                      is_trainable=True, config=config)
    replays = []
    numbers = {"micro_batch": 0}

    def add_noise(module, inputs, output):
        if not module.training:
            return output
        return output + torch.from_numpy(noise_of(
            run, settings["seed"], numbers["micro_batch"], output.shape))

    if run.noise:  # as transformers' hook does
        model.get_input_embeddings().register_forward_hook(add_noise)
    for path, module in model.named_modules():
        if run.dropout and isinstance(getattr(module, "lora_dropout", None),
                                      torch.nn.ModuleDict):
            assert module.lora_dropout["default"].p == run.dropout
            replays.append(Replay(path, run.dropout))
            module.lora_dropout["default"] = replays[-1]
    for path in own_dropouts(run, model):
        replays.append(Replay(path, own_share(run, path)))
        model.set_submodule(path, replays[-1])
    data = {name: torch.from_numpy(array.astype(np.int64)) for name, array
            in safetensors_io.load(settings["train_file"]).items()}

    def logits(micro_batch):
        numbers["micro_batch"] = micro_batch
        for replay in replays:
            replay.micro_batch = micro_batch
        return model(input_ids=data["input_ids"][micro_batch]).logits

    with torch.no_grad():
        model.eval()
        expected = {"logits": logits(0).numpy()}
        model.train()
        change = np.abs(logits(0).numpy() - expected["logits"]).max()
    if not change > 10 * goldens.LOGITS:
        raise Failure(f"dropout changes the logits only by {change:.1g}: they "
                      "would not show it in evaluation")
    expected.update(peft_train(run, settings, model, data["labels"], logits))
    return expected


def noise_of(run, seed, micro_batch, shape):
    """Returns NEFTune's noise without padding, [batch, length, columns]."""
    batch, length, columns = shape
    drawn = philox.uniform(seed, micro_batch, NOISE, batch * length, columns)
    philox.expect_share("noise above zero", drawn >= 0.5, 0.5)
    philox.expect_share("noise above a half", drawn >= 0.75, 0.25)
    magnitude = np.float32(run.noise / np.sqrt(length * columns))
    return (magnitude * (2 * drawn - 1)).reshape(shape).astype(np.float32)


def saved_name(name):
    """Returns the name under which PEFT saves a parameter. DoRA's magnitudes
    are saved without the suffix of their module."""
    name = name.replace(".default", "")
    return (name.removesuffix(".weight")
            if name.endswith(".lora_magnitude_vector.weight") else name)


def peft_train(run, settings, model, labels, logits):
    """Trains as a golden case does: the loss of a step is the mean over all its
    labelled tokens."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import get_scheduler
    trained = {saved_name(name): parameter for name, parameter
               in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(), lr=settings["learning_rate"],
        betas=(settings["adam_beta1"], settings["adam_beta2"]),
        eps=settings["adam_epsilon"], weight_decay=settings["weight_decay"])
    rates = get_scheduler(settings["lr_scheduler_type"], optimizer,
                          settings["warmup_steps"], run.steps)
    steps = {"loss": [], "grad_norm": [], "learning_rate": []}
    tensors = {}
    for step in range(run.steps):
        numbers = range(step * run.per_step(), (step + 1) * run.per_step())
        count = sum((labels[i][:, 1:] != -100).sum() for i in numbers)
        total = 0.0
        for i in numbers:
            loss = cross_entropy(logits(i)[:, :-1].flatten(0, 1),
                                 labels[i][:, 1:].flatten(),
                                 reduction="sum") / count
            loss.backward()
            total += loss.item()
        if step == 0:
            tensors.update({f"grad.{name}": parameter.grad.numpy().copy()
                            for name, parameter in trained.items()})
        norm = torch.nn.utils.clip_grad_norm_(
            trained.values(), settings["max_grad_norm"] or float("inf"))
        steps["loss"].append(total)
        steps["grad_norm"].append(float(norm))
        steps["learning_rate"].append(rates.get_last_lr()[0])
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
    tensors.update({f"final.{name}": parameter.detach().numpy()
                    for name, parameter in trained.items()})
    return tensors | {name: np.array(values, np.float32)
                      for name, values in steps.items()}


def compare(name, case, trained, expected):
    metrics, dump, adapter, _ = trained
    errors = {}
    goldens.check_metrics(errors, metrics, expected)
    goldens.check_tensors(errors, dump, adapter, case, expected)
    text = ", ".join(f"{what} {value:.2g}"
                     for what, (_, value) in errors.items())
    good = all(ratio <= 1 for ratio, _ in errors.values())
    print(f"{'ok  ' if good else 'FAIL'} {name}: {text}", flush=True)
    return good


def write_case(folder, case, run, expected):
    """Writes a golden case with `case`'s model, data and first adapter."""
    import peft
    import torch
    import transformers
    os.makedirs(folder, exist_ok=True)
    safetensors_io.save(os.path.join(folder, "expected.safetensors"), expected)
    with open(os.path.join(case, "train.yaml")) as file:
        lines = dict(line.rstrip("\n").split(": ", 1) for line in file)
    lines.update({key: json.dumps(value)
                  for key, value in run.changes().items()})
    for key in ("model_name_or_path", "train_file", "adapter_name_or_path"):
        lines[key] = json.dumps(os.path.relpath(
            os.path.join(case, json.loads(lines[key])), folder))
    with open(os.path.join(folder, "train.yaml"), "w") as file:
        file.writelines(f"{key}: {value}\n" for key, value in lines.items())
    described = {"shares": os.path.basename(case), "ranks": run.ranks,
                 **run.changes(), "import_flags": run.import_flags(),
                 "reference": {"torch": torch.__version__.split("+")[0],
                               "transformers": transformers.__version__,
                               "peft": peft.__version__}}
    with open(os.path.join(folder, "case.json"), "w") as file:
        file.write(json.dumps(described, indent=2) + "\n")


def check_run(tools, name, run, write, masks_alone):
    """Checks a run. Returns False, or raises Failure, if something differs."""
    case = os.path.join(CASES, run.case)
    settings = goldens.settings(case)
    flags = [word for key, value in run.changes().items()
             for word in (f"--{key}", str(value))]

    def train(*compile_flags):
        with tempfile.TemporaryDirectory() as work:
            module = goldens.build(tools, case, work,
                                   [*flags, *compile_flags],
                                   run.import_flags())
            return goldens.train(tools, case, work, module, flags, run.ranks)

    trained = train()
    dump = trained[1]
    ops = check_masks(run, settings, dump) if run.dropout else {}
    if masks_alone:
        print(f"ok   {name}: masks of {len(ops)} adapters", flush=True)
        return True

    own = {}  # op ids by path, in the order of first calls

    def masks(path, micro_batch, shape):
        exported = dump.get(f"dropout.{path}")
        if exported is not None and micro_batch < run.per_step():
            return exported[micro_batch].copy()
        op = (ops[path] if exported is not None else
              own.setdefault(path, FIRST_MODEL_DROPOUT + len(own)))
        return philox.mask(own_share(run, path) or run.dropout,
                           settings["seed"], micro_batch, op, shape)

    expected = peft_replay(case, run, settings, masks)
    expected.update({key: value for key, value in dump.items()
                     if key.startswith("dropout.")})
    good = compare(name, case, trained, expected)
    good &= compare(f"{name}, recomputed", case,
                    train("--gradient-checkpointing"), expected)
    if good and write:
        write_case(write, case, run, expected)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="RUN", default=[])
    parser.add_argument("--tools", required=True)
    parser.add_argument("--write", metavar="CASE_DIR")
    parser.add_argument("--masks", action="store_true")
    options = parser.parse_args()
    names = options.names or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"no run '{unknown[0]}'; there are: {', '.join(RUNS)}")
    missing = ", ".join(peft_model.missing())
    if missing and not options.masks:
        parser.error(f"this Python has no {missing}; .venv/peft has them, or "
                     "check --masks alone")
    if options.write and (len(names) != 1 or options.masks):
        parser.error("--write needs one RUN, and to replay it")
    results = []
    for name in names:
        try:
            results.append(check_run(os.path.abspath(options.tools), name,
                                     RUNS[name], options.write,
                                     options.masks))
        except Failure as failure:
            print(f"FAIL {name}: {failure}", flush=True)
            results.append(False)
    print(f"dropout: {sum(results)} passed, "
          f"{len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
