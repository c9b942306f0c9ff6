#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes PEFT's results for a golden case's trained adapter.

    peft_golden.py CASE_DIR...

The trained adapter (final.* of expected.safetensors) is saved as PEFT saves it
and loaded by PeftModel.from_pretrained into the model that the case trains, in
float32 with eager attention. Model and adapted model compute the first row of
micro-batch 0, or the first segment of a packed row:

    peft.safetensors    input_ids i32 [1, T]; logits_base f32 [1, T, V] without
                        the adapter, logits_adapter with it
    peft.json           modules: PEFT's names of the adapted modules;
                        parameters: how many PEFT trains; largest_difference:
                        of the logits; reference: versions

In some older cases, the tensors have all rows of micro-batch 0.
tests/e2e/peft_logits.py compares both files with qlora-run's results, and lists
the cases that PEFT cannot load. Needs torch, transformers, peft and
safetensors.
"""

import json
import os
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "e2e"))
import peft_model  # noqa: E402
from golden_case import settings  # noqa: E402

# The adapter must make a visible difference: 100 times the tolerance of logits.
LEAST_DIFFERENCE = 5e-3


def save_adapter(case, folder):
    """Saves the trained adapter as PEFT does; returns its tensors."""
    expected = load_file(os.path.join(case, "expected.safetensors"))
    tensors = {name[len("final."):]: value for name, value in expected.items()
               if name.startswith("final.")}
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(settings(case)["adapter_name_or_path"],
                           "adapter_config.json")) as file:
        config = json.load(file) | {"inference_mode": True}
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump(config, file)
    return tensors


def load_adapter(model, case):
    """Loads the trained adapter. Fails for names that PEFT does not know: PEFT
    itself only warns about them."""
    with tempfile.TemporaryDirectory() as folder:
        tensors = save_adapter(case, folder)
        model = peft.PeftModel.from_pretrained(model, folder,
                                               is_trainable=True).eval()
    loaded = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    if set(loaded) != set(tensors) or not all(
            torch.equal(loaded[name], value)
            for name, value in tensors.items()):
        raise SystemExit(f"{case}: PEFT has other tensors: "
                         f"{sorted(set(loaded) ^ set(tensors))}")
    return model


def adapted_modules(model):
    """Returns the names of the adapted modules. Leaves out a tied head: it
    shares the embedding's tokens, which PEFT saves once."""
    kinds = ("lora_A", "modules_to_save", "token_adapter")
    return sorted(
        name for name, module in model.named_modules()
        if name not in ("", "base_model")
        and any(hasattr(module, kind) for kind in kinds)
        and not getattr(getattr(module, "token_adapter", None), "tied_adapter",
                        None))


def write(case):
    ids = peft_model.first_row(settings(case)["train_file"])
    model = peft_model.load_base(case)
    with torch.no_grad():
        base = model(input_ids=ids, use_cache=False).logits.float()
        model = load_adapter(model, case)
        adapted = model(input_ids=ids, use_cache=False).logits.float()
    difference = float((adapted - base).abs().max())
    if difference < LEAST_DIFFERENCE:
        raise SystemExit(f"{case}: the adapter changes logits by {difference}")
    save_file({"input_ids": ids.int(), "logits_base": base.contiguous(),
               "logits_adapter": adapted.contiguous()},
              os.path.join(case, "peft.safetensors"))
    described = {
        "modules": adapted_modules(model), "largest_difference": difference,
        "parameters": sum(p.numel() for p in model.parameters()
                          if p.requires_grad),
        "reference": {module.__name__: module.__version__.split("+")[0]
                      for module in (torch, transformers, peft)}}
    with open(os.path.join(case, "peft.json"), "w") as file:
        json.dump(described, file, indent=1)
        file.write("\n")
    print(f"{os.path.basename(case)}: {len(described['modules'])} modules, "
          f"logits change by {difference:.3f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in sys.argv[1:]:
        write(each.rstrip("/"))
