# SPDX-License-Identifier: MIT
"""Every example of LoRA and full fine-tuning of axolotl and LLaMA-Factory: it
runs, or one message refuses it for all reasons.

    python3 test_foreign_examples.py --write    # takes over changed results
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import unittest

import example_files
from test_qlora import HERE, QloraTest

sys.path.insert(0, example_files.INPUTS)
import foreign_examples  # noqa: E402

PAGE = os.path.join(HERE, "../../../docs/qlora.md")
# What is not here, with the keys that ask for it. An example counts once, for
# the first kind that it has. So an example whose only refused keys are others
# fails the test.
KINDS = {
    "another model family": {"family"},
    "images or sound": {"processor_type"},
    "full fine-tuning of experts": {
        "experts"},
    "another format of stored weights": {"stored"},
    "reinforcement learning, or a reward model": {
        "rl", "trl", "reward_model", "process_reward_model"},
    "training from random weights": {"reinit_weights"},
    "another kind of adapter, or layers that change during training": {
        "finetuning_type", "lisa_n_layers", "relora"},
    "another loss": {"use_asft_loss", "use_eaft_loss", "use_eaft"},
    "another optimizer, or 8-bit AdamW for shards of all weights": {
        "optimizer", "use_adam_mini", "use_apollo", "use_badam", "use_galore",
        "use_muon"},
    "float8 matmuls, or training for quantization": {
        "fp8", "qat", "nvfp4_merge_aware"},
    "float16, which needs a scaled loss": {"fp16", "float16"},
    "another method": {"plugins", "mixture_of_depths", "use_kt"},
    "a tokenizer of mistral-common": {"tokenizer_use_mistral_common"},
    "other special tokens than the model's": {"special_tokens"},
    "DPO that also trains the base": {"modules_to_save", "base"},
    "KTO with one row per batch": {"per_device_train_batch_size"}}


def kind_of(example, keys):
    """Returns what the example asks for that is not here."""
    keys = set(keys)
    if keys & {"base_model", "model_name_or_path"}:
        keys.add("family" if example["family"] not in example_files.GOLDENS
                 else "stored" if "stored" in example else "experts")
    if "finetuning_type" in keys and example["keys"].get("rl") == "dpo":
        keys = keys - {"finetuning_type"} | {"base"}
    if "stage" in keys and example["keys"]["stage"] == "rm":
        keys.add("reward_model")
    return next((kind for kind, names in KINDS.items() if names & keys), None)


class Examples(QloraTest):
    def result(self, folder, example):
        """Returns "runs" or the keys that are refused, and all notes."""
        path = folder.write(example)
        done = subprocess.run(
            ["qlora", "train", path, "--dry-run", "--target=cpu",
             f"--gpus={example_files.ranks(example)}"],
            text=True, capture_output=True, cwd=folder.folder,
            env={**self.environment, "HF_HUB_CACHE": folder.cache,
                 "HF_HUB_OFFLINE": "1"})
        if done.returncode == 0:
            return "runs", done.stderr
        # Notes begin with "qlora: FILE". Some refusals name only an option.
        keys = re.findall(r"^(?:qlora: error: )?/\S*:\d+: '([^']+)'",
                          done.stderr, re.MULTILINE)
        keys += re.findall(r"^qlora: error: (?:--)?(\w+) ", done.stderr,
                           re.MULTILINE)
        self.assertEqual(done.stdout, "")
        return sorted(set(keys)), done.stderr

    def results(self):
        """Returns [(example, result, notes)], and the table."""
        table = example_files.load()

        def run(number):
            folder = example_files.Folder(
                os.path.join(self.folder, str(number)), table["tools"])
            return [(example, *self.result(folder, example))
                    for example in table["examples"][number::2]]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return sum(pool.map(run, range(2)), []), table


class ForeignExamplesTest(Examples):
    def test_examples(self):
        self.own_cache()
        counts = {}
        found, table = self.results()
        for example, result, notes in found:
            where = f"{example['tool']} {example['path']}\n{notes}"
            with self.subTest(where=where):
                self.assertEqual(result, example["expected"])
                kind = "run" if result == "runs" else kind_of(example, result)
                self.assertIsNotNone(kind, "refused for no reason of KINDS")
                count = counts.setdefault(kind, dict.fromkeys(table["tools"],
                                                              0))
                count[example["tool"]] += 1
        with open(PAGE, encoding="utf-8") as file:
            page = file.read()
        for kind, count in counts.items():
            row = " | ".join(map(str, (kind, *count.values())))
            self.assertIn(f"\n| {row} |\n", page)


def write():
    """Stores the present results as the expected ones."""
    Examples.setUpClass()
    runs = Examples()
    runs.setUp()
    runs.own_cache()
    found, table = runs.results()
    for example, result, notes in found:
        if result != example["expected"]:
            print(example["path"], result)
        if result != "runs" and not kind_of(example, result):
            print(notes)
        example["expected"] = result
    foreign_examples.save(table["tools"], table["examples"])
    runs.doCleanups()
    Examples.tearDownClass()


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main()
