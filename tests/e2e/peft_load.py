#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The adapter that a golden case writes loads in PEFT, with the logits of
qlora-run.

    peft_load.py --tools build/bin [CASE ...]

Needs torch, transformers and peft, which scripts/install.sh --tests puts into
.venv/peft; peft_load_all.py has an environment with the references' versions.
PEFT loads the trained adapter on the Hugging Face model, whose quantized
weights are replaced by their decoded values. The logits of the first row,
without and with the adapter, are compared with those of qlora-run.
"""

import argparse
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import goldens  # noqa: E402
import peft_logits  # noqa: E402
import peft_model  # noqa: E402
from golden_case import Failure, run, settings  # noqa: E402

CASES = os.path.join(HERE, "..", "Inputs", "goldens")


def logits_of_peft(case, adapter):
    """Returns PEFT's logits without and with the adapter."""
    import torch
    from peft import PeftModel
    ids = peft_model.first_row(settings(case)["train_file"])
    model = peft_model.load_base(case)
    with torch.no_grad():
        base = model(input_ids=ids, use_cache=False).logits.numpy().copy()
        model = PeftModel.from_pretrained(model, adapter).eval()
        return base, model(input_ids=ids, use_cache=False).logits.numpy()


def plain_flags(adapter):
    """Returns compile flags for an adapter whose settings differ from the
    trained one's."""
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        config = json.load(file)
    with open(os.path.join(adapter, "config.resolved.yaml")) as file:
        trained = dict(line.split(": ", 1) for line in file)
    if config["r"] == int(trained["lora_r"]):
        return []
    return ["--init-lora-weights", "true", "--lora-r", str(config["r"]),
            "--lora-alpha", str(config["lora_alpha"])]


def check(tools, name, folder):
    """Trains a case and loads its adapter. Returns the errors, each with its
    ratio to the tolerance."""
    case, out = os.path.join(CASES, name), os.path.join(folder, "out")
    with open(os.path.join(case, "case.json")) as file:
        imported = json.load(file).get("import_flags", [])
    module = goldens.build(tools, case, folder, [], imported)
    run([f"{tools}/qlora-run", module, "--config",
         os.path.join(case, "train.yaml"), "--base-cache", "none",
         "--output-dir", out], os.path.join(folder, "log.txt"))
    flags = plain_flags(out)
    if flags:  # a plain LoRA of twice the rank
        module = goldens.build(tools, case, folder, flags, imported)
    errors = {}
    peft_logits.check_logits(
        errors, [peft_logits.logits_from(tools, case, folder, module, adapter,
                                         flags) for adapter in (None, out)],
        logits_of_peft(case, out))
    return errors


def attempt(tools, name):
    with tempfile.TemporaryDirectory() as folder:
        try:
            return check(tools, name, folder)
        except Failure as failure:
            return failure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if peft_model.missing():
        print(f"no {', '.join(peft_model.missing())} in this python; run: "
              "scripts/install.sh --tests, and then .venv/peft/bin/python")
        return 1
    names = options.names or sorted(
        name for name in os.listdir(CASES)
        if peft_logits.WITHOUT.get(name) in (None, peft_logits.FACTORS))
    kinds = [goldens.report(name, attempt(os.path.abspath(options.tools), name),
                            False) for name in names]
    failed = kinds.count("FAIL")
    print(f"peft: {len(kinds) - failed} passed, {failed} failed")
    return 1 if failed or not kinds else 0


if __name__ == "__main__":
    sys.exit(main())
