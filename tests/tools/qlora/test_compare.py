# SPDX-License-Identifier: MIT
"""Tests qlora compare on runs that the tests train."""

import json
import os
import unittest

from test_qlora import DATA, MODEL, SMALL, QloraTest

STEPS = [*SMALL[:4], "--max-steps=12", "--logging-steps=1",
         "--base-cache=none", "--save-strategy=no"]


class CompareTest(QloraTest):
    def test_a_sweep_trains_and_compares(self):
        done = self.run_qlora("compare", "--sweep", "gpus=1,2",
                              "--sweep=weight_decay=0,0.1", MODEL, DATA,
                              *STEPS, "--output-dir=s")
        lines = done.stdout.splitlines()
        names = ["gpus=1,weight_decay=0", "gpus=1,weight_decay=0.1",
                 "gpus=2,weight_decay=0", "gpus=2,weight_decay=0.1"]
        # The first lines name the options that differ.
        self.assertEqual(lines[:2], [
            "weight_decay           0.0 | 0.1 | 0.0 | 0.1", ""])
        lines = lines[2:]
        self.assertEqual(lines[0].split(), names)
        rows = {line[:21].strip(): line[21:].split() for line in lines}
        self.assertEqual(rows["ranks"], ["1", "1", "2", "2"])
        self.assertEqual(rows["steps"], ["12"] * 4)
        self.assertTrue(rows["scaling efficiency"][2].isdigit(), rows)
        shares = rows["exposed communication"]
        self.assertEqual(shares[:2], ["–", "–"])
        self.assertTrue(all(0 < float(share) < 100 for share in shares[2::2]),
                        shares)
        self.assertEqual(set(rows["memory planned"][1::2]), {"MiB"})
        with open(f"{self.folder}/s/compare.html", encoding="utf-8") as file:
            self.assertIn('["weight_decay","0.0","0.1"', file.read())

    def test_each_run_into_a_folder_leaves_its_session(self):
        for number, flags in enumerate((["--run-name=a/b"], ["--run-name=a/b"],
                                        [])):
            self.run_qlora("train", MODEL, DATA, *STEPS, *flags,
                           f"--seed={number}", "--overwrite-output-dir",
                           "--output-dir=o")
        sessions = f"{self.folder}/o/sessions/v1"
        dated, = set(os.listdir(sessions)) - {"a-b", "a-b-2"}
        self.assertRegex(dated, r"^20\d\d-\d\d-\d\d_\d\d-\d\d-\d\d$")
        losses = set()
        for name in os.listdir(sessions):
            with open(f"{sessions}/{name}/metrics.jsonl") as file:
                lines = [json.loads(line) for line in file]
            self.assertEqual(len(lines), 13, name)  # 12 steps, the end
            losses.add(lines[0]["loss"])
            with open(f"{sessions}/{name}/environment.json") as file:
                self.assertEqual(json.load(file)["ranks"], 1)
            with open(f"{sessions}/{name}/plan.json") as file:
                plan = json.load(file)
            self.assertEqual(plan["planned_bytes"], sum(
                bytes for arena, bytes in plan["arenas"].items()
                if arena != "host memory"))
        self.assertEqual(len(losses), 3)
        with open(f"{self.folder}/o/metrics.jsonl", "a") as file:
            file.write("{cut")
        done = self.run_qlora("compare", f"{sessions}/a-b", "o")
        self.assertIn("o: 1 unreadable lines of metrics.jsonl", done.stdout)
        self.assertIn("speed-up", done.stdout)
        self.assertTrue(os.path.exists(f"{self.folder}/compare.html"))

    def test_mistakes(self):
        for words, message in (
                (["one"], "two folders of runs or more"),
                (["none", "neither"], "no run in 'none'"),
                (["--outputs", "x", "a", "b"], "did you mean '--output'?"),
                (["--sweep", "gpus"], "expects NAME=VALUE,VALUE"),
                (["--sweep", "gpus=1,,2"], "expects NAME=VALUE,VALUE"),
                (["--sweep", "gpus=2,2"], "each value once"),
                (["--sweep=lora_rr=1,2", MODEL, DATA], "lora_rr")):
            with self.subTest(words=words):
                done = self.run_qlora("compare", *words, code=1)
                self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
