# SPDX-License-Identifier: MIT
"""--global-batch-size and --auto-find-batch-size, from the command to the
losses of a run."""

import json
import re
import unittest

from test_qlora import DATA, MODEL, QloraTest


class BatchTest(QloraTest):
    words = ["--max-length=64", "--lora-r=2", "--compute-dtype=float32",
             "--max-steps=2", "--base-cache=none", "--step-packing=false",
             "--disable-pass=rematerialize"]

    def found(self, *words):
        """Compiles a program. Returns its batch, from the plan."""
        plan = self.run_qlora("plan", MODEL, DATA, *self.words, "--verbose",
                              "--auto-find-batch-size", *words)
        return int(re.search(r"micro-batch (\d+) x 64", plan.stdout)[1])

    def test_one_byte_decides(self):
        refused = self.run_qlora("plan", MODEL, DATA, *self.words, code=1,
                                 *("--per-device-train-batch-size=4",
                                   "--memory-limit=1MiB"))
        most = int(re.search(r"\((\d+) bytes\)", refused.stderr)[1])
        self.assertEqual(self.found(f"--memory-limit={most}B"), 4)
        self.assertEqual(self.found(f"--memory-limit={most - 1}B"), 2)
        # The batch size depends on the number of ranks, so the program's cache
        # key does, too.
        share = (f"--memory-limit={most}B", "--global-batch-size=4")
        self.assertEqual(self.found(*share), 4)
        self.assertEqual(self.found(*share, "--gpus=2"), 2)
        self.environment.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="4",
                                LOCAL_WORLD_SIZE="4")
        self.assertEqual(self.found(*share), 1)

    def losses(self, name, *words):
        self.run_qlora("train", MODEL, DATA, *self.words,
                       "--global-batch-size=64", f"--output-dir={name}",
                       "--memory-limit=64MiB", "--logging-steps=1", *words)
        with open(f"{self.folder}/{name}/metrics.jsonl",
                  encoding="utf-8") as file:
            return [json.loads(line)["loss"] for line in file
                    if '"loss"' in line]

    def test_a_step_is_the_same_on_any_number_of_ranks(self):
        one = self.losses("one", "--auto-find-batch-size")
        two = self.losses("two", "--auto-find-batch-size", "--gpus=2")
        steps = self.losses("steps", "--per-device-train-batch-size=16",
                            "--gradient-accumulation-steps=auto")
        self.assertEqual(len(one), 2)
        for other in (two, steps):
            for mine, theirs in zip(one, other, strict=True):
                self.assertAlmostEqual(mine, theirs, places=5)

    def test_what_cannot_be_is_said_before_compiling(self):
        self.own_cache()
        for words, message in (
                (["--global-batch-size=25", "--gpus=2"], "use 16 or 32"),
                (["--global-batch-size=16", "--gradient-accumulation-steps=4"],
                 "remove one"),
                (["--gradient-accumulation-steps=auto"],
                 "is computed from --global-batch-size"),
                (["--global-batch-size=25", "--gpus=2",
                  "--auto-find-batch-size"], "use 24 or 26")):
            with self.subTest(words=words):
                done = self.run_qlora("train", MODEL, DATA, *words, code=1)
                self.assertIn(message, done.stderr)
                self.assertNotIn("compiling", done.stderr)


class PlanTest(QloraTest):
    words = [MODEL, DATA, *BatchTest.words,
             "--per-device-train-batch-size=4"]

    def test_the_table_says_what_activations_are(self):
        rows = {}
        shown = self.run_qlora("plan", *self.words, "--verbose").stdout
        for line in shown.splitlines():
            found = re.fullmatch(r"(  +\D+?)  +([\d.]+) (B|KiB|MiB).*", line)
            if found:
                scale = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[found[3]]
                rows[found[1]] = float(found[2]) * scale
        saved = rows["    saved for the backward"]
        whole = rows["  activations and scratch"]
        parts = [bytes for name, bytes in rows.items()
                 if name.startswith("    ")]
        self.assertGreater(saved, whole / 2)
        # `parts` are bytes of live values at the peak. The rest of `whole` is
        # gaps between buffers.
        self.assertLessEqual(sum(parts), whole * 1.02)
        self.assertGreater(sum(parts), whole * 0.8)

    def test_how_ranks_work_together(self):
        one = self.run_qlora("plan", *self.words, "--verbose").stdout
        self.assertRegex(one, r"ranks: one, with the whole base \(3.\d MiB\)")
        two = self.run_qlora("plan", *self.words, "--verbose",
                             "--gpus=2").stdout
        self.assertRegex(two, r"ranks: data parallel, one shared base "
                              r"\(3.\d MiB\); [\d.]+ KiB of gradients")

    def test_a_card_of_the_plan_stays(self):
        shown = self.run_qlora("plan", *self.words, "--target=cuda",
                               "--simulate=h100", "--dry-run").stdout
        self.assertTrue(shown.rstrip().endswith("--device=null:h100"), shown)


if __name__ == "__main__":
    unittest.main()
