#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""With --on-nonfinite abort, a run ends with an error that names the rows, if
KTO's KL estimate or the router loss is not finite.

    nonfinite.py --tools build/bin
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gradient_losses import (  # noqa: E402
    B, H, HEAD, LINES, T, kto_loss, routers)
from gradients import call, write_batch, write_model  # noqa: E402

# Sequence 0 is an answer: its %ref is its number of labels, as in kto_loss.
# Sequence 1 is a mismatched answer: its %ref is NaN, the log of a negative
# number.
REFERENCE = f"""
  %ref = model.rows(%n) attributes {{columns = {B} : i64, label = "reference",
                                    maps = [#model.map<full>]}}
      : ({LINES}) -> ({LINES}) {{
  ^bb0(%p: tensor<{B}xf32>):
    %many = arith.constant {T - 1.5} : f32
    %limit = model.row_splat %many : tensor<{B}xf32>
    %low = arith.subf %p, %limit : tensor<{B}xf32>
    %log = math.log %low : tensor<{B}xf32>
    %is = arith.cmpf ogt, %p, %limit : tensor<{B}xf32>
    %r = arith.select %is, %p, %log : tensor<{B}xi1>, tensor<{B}xf32>
    model.row_yield %r : tensor<{B}xf32>
  }}"""

# Name -> parameters, MLIR that computes %y, the loss, and the message.
CASES = {
    "divergence of mismatched answers": (
        {}, "%y = model.add %x, %x : XX",
        kto_loss(", mismatched", REFERENCE),
        r"\(rows 0, 1\): the loss is -?nan, and the gradient of '"),
    # The coefficient times 4 experts and 10 labels overflows a float.
    "routers": (
        {"r": (4, H), "s": (4, H)}, routers("8.0e37"), HEAD,
        r"\(rows 0, 1\): the router loss is inf\."),
}


def check(tools, name, extra, body, loss, words):
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(7)
        write_model(folder, extra, body, loss, random)
        write_batch(folder, random)
        call([f"{tools}/qloracc", "--target=cpu",
              f"{folder}/m.mlir", "-o", f"{folder}/t.so",
              "--per-device-train-batch-size", str(B), "--max-length", str(T),
              "--compute-dtype", "float32", "--lora-target-modules",
              '["out"]', "--max-steps", "1",
              "--train-file", f"{folder}/batches.safetensors"])
        done = subprocess.run(
            [f"{tools}/qlora-run", f"{folder}/t.so", "--output-dir",
             f"{folder}/out", "--on-nonfinite", "abort"],
            capture_output=True, text=True)
        passed = done.returncode == 1 and bool(re.search(words, done.stderr))
        print(f"{'ok  ' if passed else 'FAIL'} {name}", flush=True)
        if not passed:
            print(done.stdout, done.stderr)
    return passed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    options = parser.parse_args()
    return 0 if all([check(options.tools, name, *case)
                     for name, case in CASES.items()]) else 1


if __name__ == "__main__":
    sys.exit(main())
