#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trainable rows of the embedding (trainable_token_indices) start with the
model's values, in the order of the indices.

    trained_tokens.py --tools build/bin
"""

import argparse
import os
import sys
import tempfile

import numpy as np

import goldens
import safetensors_io

CASE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "../Inputs/goldens/llama-tokens-tied")
TABLE = "model.embed_tokens"
TOKENS = [98, 0, 17, 64]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    with tempfile.TemporaryDirectory() as work:
        log, out = os.path.join(work, "log.txt"), os.path.join(work, "out")
        graph, module = os.path.join(work, "m.mlir"), os.path.join(work, "t.so")
        goldens.run([f"{tools}/qlora-import", os.path.join(CASE, "model"), "-o",
                     graph], log)
        goldens.run([f"{tools}/qloracc", "--target=cpu",
                     graph, "-o", module, "--lora-r", "2",
                     "--max-length", "24", "--per-device-train-batch-size", "2",
                     "--compute-dtype", "float32", "--trainable-token-indices",
                     ",".join(map(str, TOKENS))], log)
        goldens.run([f"{tools}/qlora-run", module, "--train-file",
                     os.path.join(CASE, "batches.safetensors"), "--output-dir",
                     out, "--max-steps", "1", "--learning-rate", "0",
                     "--base-cache", "none"], log)
        adapter = safetensors_io.load(
            os.path.join(out, "adapter_model.safetensors"))
        model = safetensors_io.load(
            os.path.join(CASE, "model", "model.safetensors"))
    rows = adapter[f"base_model.model.{TABLE}.token_adapter."
                   "trainable_tokens_delta"]
    if not np.array_equal(rows, model[f"{TABLE}.weight"][TOKENS]):
        sys.exit("trained rows do not begin as the table has them")
    print("ok   trained rows begin as the table has them")


if __name__ == "__main__":
    main()
