# SPDX-License-Identifier: MIT
"""Loads the adapter with PEFT, and computes the loss of one row without and
with it. The row's token ids and labels are those of `qlora show-data`."""
import json
import os
import subprocess

import peft
import torch
import transformers

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "demo")
MODEL = os.path.join(DEMO, "model")

shown = subprocess.run(
    ["build/bin/qlora", "show-data", MODEL,
     os.path.join(DEMO, "data/test.jsonl"), "--num-rows=1", "--json"],
    stdout=subprocess.PIPE, check=True)
row = json.loads(shown.stdout)
ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
model = peft.PeftModel.from_pretrained(
    transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, torch_dtype=torch.float32), "out/python-script")
with torch.no_grad():
    with model.disable_adapter():
        print(f"without the adapter: loss {model(ids, labels=labels).loss:.2f}")
    print(f"with the adapter:    loss {model(ids, labels=labels).loss:.2f}")
