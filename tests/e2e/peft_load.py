#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The adapter that a golden case writes loads in PEFT, with our logits.

    peft_load.py --tools build/bin [CASE ...]

Needs torch, transformers and peft, which scripts/install.sh --tests puts into
.venv/peft, and for a case with bitsandbytes' own weights that. The trained adapter is loaded by PEFT on the Hugging Face model (4-bit
weights replaced by the values they stand for) and its logits for the first
micro-batch are compared with those of qlora-run started from that adapter.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import peft_model  # noqa: E402
import safetensors_io  # noqa: E402
from goldens import settings  # noqa: E402

CASES = os.path.join(HERE, "..", "Inputs", "goldens")
LIMIT = 1e-3


def peft_logits(case, adapter, batch):
    import torch
    from peft import PeftModel
    model = PeftModel.from_pretrained(peft_model.load_base(case), adapter)
    inputs = {"input_ids": torch.tensor(batch["input_ids"][0]).long()}
    if "segment_ids" in batch:  # a token sees its own segment, causally
        segments = torch.tensor(batch["segment_ids"][0])
        seen = (segments[:, :, None] == segments[:, None, :]).tril()
        inputs["attention_mask"] = torch.where(
            seen, 0.0, torch.finfo(torch.float32).min)[:, None]
        inputs["position_ids"] = torch.tensor(batch["position_ids"][0]).long()
    with torch.no_grad():
        return model(**inputs).logits.numpy()


def plain_flags(adapter):
    """Of a program for an adapter that is not as it was trained."""
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        config = json.load(file)
    with open(os.path.join(adapter, "config.resolved.yaml")) as file:
        trained = dict(line.split(": ", 1) for line in file)
    if config["r"] == int(trained["lora_r"]):
        return []
    return ["--init-lora-weights", "true", "--lora-r", str(config["r"]),
            "--lora-alpha", str(config["lora_alpha"])]


def check(tools, name, folder):
    case = os.path.join(CASES, name)
    yaml = os.path.join(case, "train.yaml")

    def call(*command):
        subprocess.run(command, check=True, capture_output=True, text=True)

    model, module = f"{folder}/m.mlir", f"{folder}/t.so"
    paths = settings(case)
    call(f"{tools}/qlora-import", paths["model_name_or_path"], "-o", model)
    call(f"{tools}/qloracc", model, "-o", module, "--config", yaml)
    run = (f"{tools}/qlora-run", module, "--config", yaml, "--base-cache",
           "none", "--output-dir")
    call(*run, f"{folder}/out")
    flags = plain_flags(f"{folder}/out")
    if flags:  # a plain LoRA of twice the rank
        call(f"{tools}/qloracc", model, "-o", module, "--config", yaml, *flags)
    call(*run, f"{folder}/again", *flags, "--adapter-name-or-path",
         f"{folder}/out", "--max-steps", "1", "--dump",
         f"{folder}/dump.safetensors")
    ours = safetensors_io.load(f"{folder}/dump.safetensors")["logits"]
    batch = safetensors_io.load(paths["train_file"])
    theirs = peft_logits(case, f"{folder}/out", batch)
    error = abs(ours.reshape(theirs.shape) - theirs).max()
    print(f"{'ok  ' if error <= LIMIT else 'FAIL'} {name}: logits within "
          f"{error:.1e}", flush=True)
    return error <= LIMIT


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if peft_model.missing():
        print(f"no {', '.join(peft_model.missing())} in this python; run: "
              "scripts/install.sh --tests, and then .venv/peft/bin/python")
        return 1
    names = options.names or sorted(os.listdir(CASES))
    results = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            results.append(check(os.path.abspath(options.tools), name, folder))
    print(f"peft: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
