# SPDX-License-Identifier: MIT
"""Keys of axolotl, LLaMA-Factory and TRL that name data sets of the hub and
select their rows."""

import json
import os

from test_foreign_configs import AXOLOTL, LLAMA, ForeignTest
from test_hub_data import NAME, PREFIX, HubDataTest
from test_qlora import DATA, MODEL

TRL = f"model_name_or_path: {MODEL}\nuse_peft: true\n"


class ForeignHubTest(HubDataTest, ForeignTest):
    def setUp(self):
        super().setUp()
        self.snapshot()

    def data_of(self, text, *words):
        """Returns the inputs to train on and to evaluate with."""
        return self.inputs(self.write(text), *words)


class FirstRowsTest(ForeignTest):
    def test_llama_factory_takes_the_first_rows_of_each_data_set(self):
        self.write(json.dumps({name: {"file_name": f"../{name}.jsonl"}
                               for name in ("alpaca", "more")}),
                   "data/dataset_info.json")
        self.write("{}\n", "more.jsonl")
        options, _ = self.options(LLAMA + "dataset: alpaca\n"
                                  "eval_dataset: more\nmax_samples: 7\n")
        self.assertEqual(options["max-samples"], "7")
        self.assertEqual(options["validation-file"],
                         os.path.join(self.folder, "more.jsonl"))


class TrlTest(ForeignHubTest):
    def test_names_and_splits(self):
        text = TRL + f"dataset_name: {NAME}\n"
        evaluates = "eval_strategy: steps\neval_steps: 5\n"
        train, test = [PREFIX + "split=train"], [PREFIX + "split=test"]
        self.assertEqual(self.data_of(text), (train, []))
        self.assertEqual(self.data_of(text + evaluates), (train, test))
        # TRL does not evaluate without eval_strategy.
        self.assertEqual(self.data_of(text + "dataset_test_split: test\n"),
                         (train, []))
        self.assertEqual(
            self.data_of(text + evaluates + "dataset_config: long\n"
                         "dataset_train_split: train[:1]\n"
                         "dataset_test_split: train[1:]\n"),
            ([PREFIX + "config=long&split=train[:1]"],
             [PREFIX + "config=long&split=train[1:]"]))
        self.assertEqual(
            self.data_of(text, "--dataset-train-split=train[:2]"),
            ([PREFIX + "split=train[:2]"], []))
        self.assertEqual(self.data_of(text, "--train-file", DATA),
                         ([DATA], []))
        self.assertIn("is read as a file for TRL ('dataset_name' in line 2)",
                      (self.data_of(text.replace("use_peft: true\n", "")),
                       self.notes)[1])

    def test_a_file_here_is_not_on_the_hub(self):
        self.assertIn("'dataset_name': 'chat.jsonl' is here, not on the "
                      "Hugging Face hub: name it with train_file",
                      self.refusal(TRL + "dataset_name: chat.jsonl\n"))
        self.assertIn("but none is named", self.refusal(
            TRL + f"train_file: {DATA}\ndataset_config: long\n"))


class AxolotlTest(ForeignHubTest):
    def data_of(self, *sets, key="datasets"):
        text = AXOLOTL + "datasets: [{path: chat.jsonl}]\n" * (
            key != "datasets")
        return super().data_of(text + f"{key}:\n" + "".join(
            f"  - {{path: {NAME}, {keys}}}\n" for keys in sets))

    def test_names_and_splits(self):
        for keys, expected in (
                ("type: null", ["split=train"]),
                ("name: long", ["config=long&split=train"]),
                ("name: [long, short]", ["config=long&split=train",
                                         "config=short&split=train"]),
                ("split: 'train[:20%]', revision: main",
                 ["split=train[:20%]"]),
                ("data_files: [a.jsonl, test.jsonl]",
                 ["split=train&files=a.jsonl,test.jsonl"])):
            train, _ = self.data_of(keys)
            self.assertEqual(train, [PREFIX + text for text in expected])
        _, test = self.data_of("type: null", key="test_datasets")
        self.assertEqual(test, [PREFIX + "split=test"])

    def test_slices_of_files_are_refused(self):
        self.assertIn("'split: train[:5]' of a data set is not supported",
                      self.refusal(AXOLOTL + "datasets: [{path: chat.jsonl, "
                                   "split: 'train[:5]'}]\n"))


class LlamaFactoryTest(ForeignHubTest):
    def test_names_and_splits(self):
        self.write(json.dumps({
            "plain": {"hf_hub_url": NAME, "ms_hub_url": "x/y"},
            "part": {"hf_hub_url": NAME, "subset": "long",
                     "split": "train[:1]"},
            "folder": {"hf_hub_url": NAME, "folder": "en"},
            "drawn": {"hf_hub_url": NAME, "num_samples": 3},
            "other": {"ms_hub_url": NAME}}), "data/dataset_info.json")
        self.assertEqual(
            self.data_of(LLAMA + "dataset: plain, part\nmax_samples: 2\n"),
            ([PREFIX + "split=train",
              PREFIX + "config=long&split=train[:1]"], []))
        self.assertEqual(
            self.data_of(LLAMA + f"dataset: {NAME}\ndataset_dir: ONLINE\n"),
            ([PREFIX + "split=train"], []))
        for name, words in (
                ("folder", "has 'folder', which is not supported"),
                ("drawn", "has 'num_samples', with which LLaMA-Factory draws"),
                ("other", "has 'ms_hub_url', which is not supported")):
            self.assertIn(words, self.refusal(LLAMA + f"dataset: {name}\n"))
