# SPDX-License-Identifier: MIT
"""Trains from Python, and stops when the loss is low enough.

The package `qlora` starts the program `qlora` and reads its log. Keyword
arguments are the options of `qlora train`.
"""
import os

import qlora

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "demo")
MODEL = os.path.join(DEMO, "model")
OUTPUT = "out/python-script"

run = qlora.train(MODEL, os.path.join(DEMO, "data", "train.jsonl"),
                  load_in_4bit=True, compute_dtype="float32", max_length=64,
                  per_device_train_batch_size=16, lora_r=8, lora_alpha=16,
                  learning_rate=5e-3, warmup_steps=20, max_steps=200,
                  logging_steps=10, seed=7, output_dir=OUTPUT)
for row in run:  # a row of metrics.jsonl, as a dict
    if "loss" not in row:
        continue
    print(f"step {row['step']:3}, loss {row['loss']:.4f}")
    if row["loss"] < 0.1:
        run.stop()  # writes a checkpoint and the adapter
print("adapter:", ", ".join(sorted(
    name for name in os.listdir(OUTPUT) if name.startswith("adapter"))))
