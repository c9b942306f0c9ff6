# SPDX-License-Identifier: MIT
"""A training from an adapter takes the adapter's shape."""

import json
import os
import shutil

import unittest

from test_qlora import DATA, MODEL, SMALL, QloraTest

# SMALL without the rank.
WORDS = [MODEL, DATA, *(word for word in SMALL if "lora-r" not in word)]
SHAPE = ["--lora-r=3", "--lora-alpha=5", "--use-rslora",
         "--lora-rank-pattern={layers.1.self_attn.q_proj: 4}",
         "--lora-alpha-pattern={v_proj: 7}",
         "--lora-target-modules", "q_proj", "v_proj"]
START = "--adapter-name-or-path=start"


class StartAdapterTest(QloraTest):
    def setUp(self):
        super().setUp()
        made = os.path.join(self.shared, "start")
        if not os.path.exists(made):
            self.run_qlora("train", *WORDS, *SHAPE, "--lora-dropout=0.1",
                           f"--output-dir={made}")
        shutil.copytree(made, self.folder + "/start")

    def config(self, name):
        with open(f"{self.folder}/{name}/adapter_config.json",
                  encoding="utf-8") as file:
            return json.load(file)

    def test_the_shape_is_the_adapters(self):
        given = self.run_qlora("train", *WORDS, START, *SHAPE,
                               "--output-dir=given")
        taken = self.run_qlora("train", *WORDS, START, "--output-dir=taken")
        self.assertIn("the program is cached", taken.stderr)
        self.assertEqual(self.adapter("given"), self.adapter("taken"))
        self.assertEqual(self.config("given"), self.config("taken"))
        self.assertNotIn("adapter_config.json", given.stderr)
        self.assertIn("qlora: from 'start/adapter_config.json': lora_r 3, "
                      "lora_alpha 5, use_rslora true, ", taken.stderr)
        # Dropout is not part of the shape.
        self.assertEqual(self.config("taken")["lora_dropout"], 0)

    def test_a_value_that_contradicts_is_refused(self):
        for words, message in (
                (["--lora-r=4"], "r is 3, but --lora-r is 4. Fix: "),
                (["--lora-alpha=6"],
                 "lora_alpha is 5, but --lora-alpha is 6.0. Fix: "),
                (["--use-dora"], "use_dora is false, but --use-dora is true"),
                (["--lora-target-modules", "q_proj"],
                 "target_modules is [\"q_proj\",\"v_proj\"], but "
                 "--lora-target-modules is [\"q_proj\"]. Fix: remove "
                 "--lora-target-modules"),
                (["--lora-target-modules", "q_proj", "v_proj", "k_proj"],
                 "[\"q_proj\",\"v_proj\",\"k_proj\"]")):
            with self.subTest(words=words):
                done = self.run_qlora("train", *WORDS, START, *words, code=1)
                self.assertIn("/start/adapter_config.json': ", done.stderr)
                self.assertIn(message, done.stderr)
                self.assertNotIn("compiling", done.stderr)
        with open(self.folder + "/t.yaml", "w", encoding="utf-8") as file:
            file.write("lora_r: 4\nadapter_name_or_path: start\n")
        done = self.run_qlora("train", "t.yaml", "--model", MODEL,
                              "--train-file", DATA, code=1)
        self.assertIn("r is 3, but lora_r is 4", done.stderr)

    def test_equal_modules_may_be_spelled_otherwise(self):
        self.run_qlora("train", *WORDS, START, "--output-dir=a",
                       r"--lora-target-modules=.*\.(q|v)_proj")

    def test_defaults_of_other_tools_do_not_contradict(self):
        """TRL's default rank is 16, LLaMA-Factory's alpha twice the rank."""
        for lines in ("use_peft: true\ndataset_name: x\n",
                      "stage: sft\nfinetuning_type: lora\n"):
            with open(self.folder + "/t.yaml", "w", encoding="utf-8") as file:
                file.write(lines.replace("dataset_name: x", "max_length: 64")
                           + f"model_name_or_path: {MODEL}\n"
                           f"train_file: {DATA}\n")
            done = self.run_qlora("train", "t.yaml", START, "--dry-run")
            self.assertIn(" --lora-r=3 --lora-alpha=5", done.stdout)

    def test_no_such_adapter(self):
        done = self.run_qlora("train", *WORDS, "--adapter-name-or-path=none",
                              code=1)
        self.assertIn("none/adapter_config.json'. Fix: give the folder",
                      done.stderr)


if __name__ == "__main__":
    unittest.main()
