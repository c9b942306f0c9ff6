# SPDX-License-Identifier: MIT

"""Compares the adapter of a golden case with PEFT: module names and number of
parameters, and the logits without and with the trained adapter.

peft.safetensors and peft.json of a case are PEFT's results
(Inputs/peft_golden.py). PEFT ignores an adapter with unknown names. So PEFT's
logits with the adapter must differ from those without it by 100 times the
tolerance, and qlora-run's must equal both. The case's program serves for all
runs:

* A new adapter, whose B is zero, has the logits of the model alone.
* The adapter that the case wrote is loaded with the parameters that PEFT
  trained. The case's own parameters differ from them by up to 1e-3 of the
  distance that training moved them. So their logits would differ by up to 4e-4,
  and such a tolerance would hide errors.
"""

import json
import os
import re
import shutil

import numpy as np

import safetensors_io
from golden_case import LOGITS, Failure, check, run, settings

# Cases without peft.safetensors and peft.json, each with the reason.
FULL = "all weights are trained, and there is no adapter"
FACTORS = ("the adapter starts at factors without a sign, so that the "
           "reference has magnitudes and products only")
FACTORS_NF4 = FACTORS + "; and no file has the values of the 4-bit base"
WITHOUT = {
    "gpt2-full": FULL,
    "llama-full": FULL,
    "llama-unfrozen": FULL,
    "llama-muon-full": FULL,
    "llama-loftq": FACTORS_NF4,
    "llama-olora": FACTORS,
    "llama-pissa": FACTORS,
    "llama-pissa-nf4": FACTORS_NF4,
    "llama-pissa-niter": FACTORS,
    "llama-int8-activations": "PEFT rounds activations to 8 bits only on a "
                              "GPU, and only the first step is away from the "
                              "edges of codes",
}
PREFIX = "base_model.model."
# Suffixes that PEFT appends to an adapted module's name. A bias alone is not an
# adapter.
ENDS = (".lora_A.weight", ".lora_B.weight", ".lora_B.bias",
        ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector",
        ".token_adapter.trainable_tokens_delta", ".weight")


def modules_of(tensors):
    """Returns the adapted modules that an adapter's tensors belong to."""
    ends = {name: next((end for end in ENDS if name.endswith(end)), None)
            for name in tensors}
    return {name[:-len(end)] for name, end in ends.items() if end}


def named_by(config):
    """Returns predicates of the modules that an adapter_config.json adapts, by
    its entries."""
    def suffix(path):
        return lambda name: name == path or name.endswith("." + path)
    targets = config["target_modules"] or []
    entries = ({targets: re.compile(targets).fullmatch}
               if isinstance(targets, str)
               else {path: suffix(path) for path in targets})
    for path in config.get("target_parameters") or []:
        entries[path] = suffix(path.rpartition(".")[0])
    for path in config.get("modules_to_save") or []:
        entries[path] = suffix(path)
    tokens = config.get("trainable_token_indices")
    for path in tokens if isinstance(tokens, dict) else ["embed_tokens"]:
        if tokens:
            entries[path] = suffix(path)
    excluded = config.get("exclude_modules") or []
    return {entry: matches for entry, matches in entries.items()
            if entry not in excluded}


def check_names(described, out):
    """Checks that both files of an adapter have PEFT's names."""
    tensors = safetensors_io.load(os.path.join(out,
                                               "adapter_model.safetensors"))
    modules, expected = modules_of(tensors), set(described["modules"])
    if modules != expected:
        raise Failure("the adapter has other modules than PEFT's: ours alone "
                      f"{sorted(modules - expected)}, PEFT's alone "
                      f"{sorted(expected - modules)}")
    count = sum(tensor.size for tensor in tensors.values())
    if count != described["parameters"]:
        raise Failure(f"the adapter has {count} parameters, PEFT trains "
                      f"{described['parameters']}")
    with open(os.path.join(out, "adapter_config.json")) as file:
        entries = named_by(json.load(file))
    paths = {name[len(PREFIX):].removesuffix(".base_layer")
             for name in expected}
    for path in sorted(paths):
        if not any(matches(path) for matches in entries.values()):
            raise Failure(f"adapter_config.json does not name {path}")
    for entry, matches in entries.items():
        if not any(map(matches, paths)):
            raise Failure(f"adapter_config.json names {entry}, PEFT adapts "
                          "none")


def logits_from(tools, case, work, module, adapter, flags=()):
    """Returns the logits [B, T, V] of micro-batch 0. Without an adapter, they
    are those of a new one."""
    values = settings(case) | {
        "adapter_name_or_path": adapter or "", "max_steps": 1,
        "gradient_accumulation_steps": 1, "save_steps": 0}
    yaml, dump = (os.path.join(work, name)
                  for name in ("peft.yaml", "peft-dump.safetensors"))
    with open(yaml, "w") as file:
        file.writelines(f"{key}: {json.dumps(value)}\n"
                        for key, value in values.items())
    run([f"{tools}/qlora-run", module, "--config", yaml, "--output-dir",
         os.path.join(work, "peft-out"), "--overwrite-output-dir", "--dump",
         dump, *flags], os.path.join(work, "log.txt"),
        {**os.environ, "XDG_CACHE_HOME": work})
    logits = safetensors_io.load(dump)["logits"]
    return logits.reshape(-1, values["max_length"], logits.shape[-1])


def check_logits(errors, ours, theirs):
    """Compares logits without and with the adapter, for the rows in PEFT's
    results."""
    if not np.abs(theirs[1] - theirs[0]).max() >= 100 * LOGITS:
        raise Failure("PEFT's logits with the adapter are those without it")
    for what, got, want in zip(("base", "adapter"), ours, theirs):
        got = got[:want.shape[0], :want.shape[1]]
        check(errors, f"PEFT's {what}", np.abs(got - want).max(), LOGITS)


def with_parameters_of_peft(case, work):
    """Copies the adapter in work/out, with the values that PEFT trained.
    Returns the copy's folder."""
    end = "adapter_model.safetensors"
    out, copy = os.path.join(work, "out"), os.path.join(work, "peft-adapter")
    expected = safetensors_io.load(os.path.join(case, "expected.safetensors"))
    tensors = {name: expected.get(f"final.{name}")
               for name in safetensors_io.load(os.path.join(out, end))}
    if missing := [name for name, value in tensors.items() if value is None]:
        raise Failure(f"PEFT trains no {missing[0]}")
    os.makedirs(copy)
    shutil.copy(os.path.join(out, "adapter_config.json"), copy)
    safetensors_io.save(os.path.join(copy, end), tensors)
    return copy


def check_case(errors, tools, case, work, module):
    """Checks a case that was trained into work/out."""
    path, name = os.path.join(case, "peft.json"), os.path.basename(case)
    if os.path.exists(path) == (name in WITHOUT):
        raise Failure(f"{name} has to be in peft_logits.WITHOUT, with a "
                      "reason, or to have the files of peft_golden.py, and not "
                      "both")
    if name in WITHOUT:
        return
    with open(path) as file:
        check_names(json.load(file), os.path.join(work, "out"))
    expected = safetensors_io.load(os.path.join(case, "peft.safetensors"))
    check_logits(
        errors, [logits_from(tools, case, work, module, adapter)
                 for adapter in (None, with_parameters_of_peft(case, work))],
        [expected["logits_base"], expected["logits_adapter"]])
