#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes the golden case mistral-packed with transformers + PEFT.

    attention_golden.py tests/Inputs/goldens/mistral-packed

The model, base and first adapter of mistral-window, with two rows of 128
tokens, a length that cuDNN's attention supports. The rows have packed segments
and then padding; the model has two query heads per key head and a window of 12
tokens. transformers gets segments and window in one mask, because a mask for
packed rows replaces its window. Needs torch, transformers and peft; case.json
has their versions.
"""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dropout_replay  # noqa: E402
import goldens  # noqa: E402
import peft_model  # noqa: E402
import safetensors_io  # noqa: E402

BASE, BATCH, LENGTH, STEPS, VOCABULARY = "mistral-window", 2, 128, 4, 256
# Segment lengths. The rows of the data use these entries in turn. Padding fills
# the remainder of a row.
SEGMENTS = ((70, 30, 21), (128,), (1, 5, 90, 32), (17, 64))


def batches():
    """Returns the data. Most tokens depend on the preceding token."""
    random = np.random.default_rng(11)
    shape = (STEPS, BATCH, LENGTH)
    data = {name: np.zeros(shape, np.int32) for name in
            ("input_ids", "labels", "position_ids", "segment_ids")}
    for row in np.ndindex(shape[:2]):
        ids = data["input_ids"][row]
        ids[0] = random.integers(VOCABULARY)
        for i in range(1, LENGTH):
            ids[i] = ((3 * ids[i - 1] + 7) % VOCABULARY if random.random() < .85
                      else random.integers(VOCABULARY))
        data["labels"][row] = -100
        begin = 0
        for number, length in enumerate(
                SEGMENTS[(row[0] * BATCH + row[1]) % len(SEGMENTS)]):
            part = slice(begin, begin + length)
            data["segment_ids"][row][part] = number + 1
            data["position_ids"][row][part] = np.arange(length)
            data["labels"][row][begin + 1:begin + length] = \
                ids[begin + 1:begin + length]
            begin += length
    return data


def mask(segments, window):
    """Returns [B, 1, T, T]: 0 if the query attends to the key."""
    import torch
    position = torch.arange(LENGTH)
    apart = position[:, None] - position[None, :]
    seen = ((segments[:, :, None] == segments[:, None, :])
            & (apart >= 0) & (apart < window))
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]


def main():
    import torch
    from peft import PeftModel
    folder = sys.argv[1]
    case = os.path.join(dropout_replay.CASES, BASE)
    settings = goldens.settings(case)
    run = dropout_replay.Run(BASE, 0.0, 1, 1, STEPS)
    model = PeftModel.from_pretrained(peft_model.load_base(case),
                                      settings["adapter_name_or_path"],
                                      is_trainable=True)
    model.train()
    data = batches()
    tensors = {name: torch.from_numpy(array.astype(np.int64))
               for name, array in data.items()}
    window = model.config.sliding_window

    def logits(i):
        return model(input_ids=tensors["input_ids"][i],
                     position_ids=tensors["position_ids"][i],
                     attention_mask=mask(tensors["segment_ids"][i],
                                         window)).logits

    with torch.no_grad():
        expected = {"logits": logits(0).numpy()}
    expected.update(dropout_replay.peft_train(run, settings, model,
                                              tensors["labels"], logits))
    dropout_replay.write_case(folder, case, run, expected)
    safetensors_io.save(os.path.join(folder, "batches.safetensors"), data)
    path = os.path.join(folder, "train.yaml")
    with open(path, encoding="utf-8") as file:
        lines = dict(line.rstrip("\n").split(": ", 1) for line in file)
    lines.update(train_file='"batches.safetensors"', max_length=str(LENGTH))
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{key}: {value}\n" for key, value in lines.items())
    print(json.dumps({"loss": expected["loss"].tolist()}))


if __name__ == "__main__":
    main()
