# SPDX-License-Identifier: MIT
"""qlora show-data prints the tokens that qlora train trains on."""

import glob
import json
import os
import unittest

from safetensors.numpy import load_file

from test_qlora import DATA, DEMO, MODEL, SMALL, QloraTest

ROWS = [{"question": f"Say {word} {number} times.", "answer": word * number}
        for number, word in enumerate(("Anna", "two lamps", "the bank"), 1)]


class ShowDataTest(QloraTest):
    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def objects(self, *words):
        shown = self.run_qlora("show-data", *words, "--json").stdout
        return [json.loads(line) for line in shown.splitlines()]

    def test_the_tokens_are_those_of_training(self):
        data = self.write("rows.jsonl", "".join(json.dumps(row) + "\n"
                                                for row in ROWS))
        options = self.write("train.yaml", json.dumps({
            "model_name_or_path": MODEL, "train_file": data,
            "dataset_columns": {"prompt": "question", "completion": "answer"},
            "completion_only_loss": False, "max_length": 16,
            "per_device_train_batch_size": 1, "lora_r": 2, "max_steps": 1,
            "compute_dtype": "float32",
            "save_strategy": "no", "output_dir": "out"}))
        self.own_cache()
        self.run_qlora("train", options, "--base-cache=none")
        made, = glob.glob(self.folder + "/cache/qlora/tokens/*.safetensors")
        tokens = load_file(made)
        shown = self.objects(options)
        for name in ("input_ids", "labels"):
            self.assertEqual([number for row in shown for number in row[name]],
                             tokens[name].tolist())
        self.assertEqual({row["tokens_cut"] > 0 for row in shown},
                         {False, True})

    def test_the_data_options_of_train_are_taken(self):
        words = [MODEL, DATA, *SMALL, "--rows=2,7"]
        every = self.objects(*words, "--assistant-only-loss=false")
        answers = self.objects(*words)
        self.assertEqual([row["row"] for row in every], [2, 7])
        for row, answer in zip(every, answers):
            self.assertEqual(row["input_ids"], answer["input_ids"])
            self.assertEqual(row["tokens_in_loss"], row["tokens"] - 1)
            self.assertLess(answer["tokens_in_loss"], row["tokens"] / 2 + 9)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_file_of_another_tool(self):
        data = self.write("rows.jsonl", json.dumps(
            {"instruction": "Say Anna.", "output": "Anna"}) + "\n")
        options = self.write("axolotl.yaml", json.dumps({
            "base_model": MODEL, "adapter": "lora", "train_on_inputs": True,
            "datasets": [{"path": data, "type": "alpaca"}]}))
        row, = self.objects(options)
        self.assertEqual(row["tokens_in_loss"], row["tokens"] - 1)

    def test_the_first_rows_of_each_file(self):
        valid = os.path.join(DEMO, "data/valid.jsonl")
        words = [MODEL, "--train-file", DATA, "--train-file", valid]
        shown = self.objects(*words, "--num-rows=9", "--max-samples=2")
        self.assertEqual(shown, self.objects(*words, "--num-rows=2"))

    def test_each_file_is_shown(self):
        valid = os.path.join(DEMO, "data/valid.jsonl")
        shown = self.run_qlora("show-data", MODEL, f"{DATA}:2",
                               "--train-file", valid, "--num-rows=1").stdout
        self.assertEqual(shown.count("row 1, "), 2)
        self.assertIn(f"row 1, {valid}:1: ", shown)

    def test_token_files(self):
        from numpy import int32, ones
        from safetensors.numpy import save_file
        path = os.path.join(self.folder, "tokens.safetensors")
        ids = 9 * ones((2, 1, 8), int32)
        save_file({"input_ids": ids, "labels": ids}, path)
        self.assertEqual([row["labels"] for row in self.objects(MODEL, path)],
                         [[-100] + [9] * 7] * 2)

    def test_refusals(self):
        for words, message in (
                ((), "show-data needs a model and data. Fix: qlora show-data "
                     "MODEL DATA"),
                (("train.so", DATA), "show-data needs a model and data"),
                ((MODEL,), "no train_file is given"),
                ((MODEL, "nothing.jsonl"), "there is no file"),
                ((MODEL, DATA, "--row=1"), "did you mean '--rows'"),
                ((MODEL, DATA, "--rl=dpo"), "a preference row without")):
            with self.subTest(words=words):
                done = self.run_qlora("show-data", *words, code=1)
                self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
