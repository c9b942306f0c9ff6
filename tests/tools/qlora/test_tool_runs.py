# SPDX-License-Identifier: MIT
"""Losses, learning rates and labels of each step equal those of axolotl and
LLaMA-Factory, which trained the same files (tests/Inputs/tool_runs.py)."""

import json
import os
import re
import subprocess
import unittest

import tool_run_files
from test_qlora import QloraTest


class ToolRunsTest(QloraTest):
    def steps(self, files, example):
        """Returns the steps of qlora's run, and its labels of an epoch."""
        done = subprocess.run(
            ["qlora", "train", files.write(example), "--target=cpu",
             "--output-dir=out", "--base-cache=none"],
            text=True, capture_output=True, cwd=files.folder,
            env={**self.environment, "HF_HUB_CACHE": files.cache,
                 "HF_HUB_OFFLINE": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(files.path("out/metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        labels = re.search(r"([\d,]+) in the loss", done.stderr + done.stdout)
        return ([line for line in lines if "learning_rate" in line],
                int(labels.group(1).replace(",", "")))

    def compare(self, files, example, expected):
        steps, labels = self.steps(files, example)
        self.assertEqual(len(steps), len(expected))
        self.assertEqual(labels * round(steps[-1]["epoch"]),
                         sum(step["labels"] for step in expected))
        for number, (step, own) in enumerate(zip(expected, steps)):
            where = f"step {number + 1}"
            self.assertAlmostEqual(own["learning_rate"], step["lr"], 12, where)
            self.assertLess(abs(own["loss"] / step["loss"] - 1), 2e-5, where)

    def test_steps(self):
        with open(tool_run_files.RUNS, encoding="utf-8") as file:
            runs = json.load(file)
        examples, tools = tool_run_files.chosen()
        for number, example in enumerate(examples):
            with self.subTest(path=example["path"]):
                files = tool_run_files.Files(
                    os.path.join(self.folder, str(number)), tools,
                    tool_run_files.ROWS)
                self.compare(files, example, runs[example["path"]])


if __name__ == "__main__":
    unittest.main()
