# SPDX-License-Identifier: MIT
"""An adapter's model card, and adapters on the Hugging Face hub."""

import json
import os
import shutil
import subprocess
import sys

from local_hub import Hub
from test_qlora import DATA, MODEL, SMALL, QloraTest

# This script runs in the Python of qlora-data, which has huggingface_hub.
READ_CARD = """
import json, sys
from huggingface_hub import ModelCard
card = ModelCard.load(sys.argv[1])
print(json.dumps([card.data.to_dict(), card.text]))
"""


class CardTest(QloraTest):
    def card(self, folder="a"):
        path = os.path.join(self.folder, folder, "README.md")
        read = subprocess.run([sys.executable, "-c", READ_CARD, path],
                              capture_output=True, text=True, check=True)
        return json.loads(read.stdout)

    def train(self, *words, **options):
        return self.run_qlora("train", MODEL, DATA, *SMALL, *words, **options)

    def test_what_it_says(self):
        self.train("--output-dir=a", "--val-set-size=0.1", "--push-to-hub=no",
                   "--adapter-base-name=demo/tiny")
        data, text = self.card()
        self.assertEqual(data["base_model"], "demo/tiny")
        self.assertEqual(data["library_name"], "peft")
        self.assertEqual(data["tags"], ["base_model:adapter:demo/tiny",
                                        "lora", "qlora"])
        for part in ("# LoRA adapter of demo/tiny",
                     'AutoModelForCausalLM.from_pretrained("demo/tiny")',
                     'PeftModel.from_pretrained(base, "a")',
                     "| data | train.jsonl |", "| rows | 1,800 |",
                     "| lora\\_r | 2 |", "| steps | 2 |",
                     "| rows per step | 4 |", "after step 2 |"):
            self.assertIn(part, text)
        with open(self.folder + "/a/metrics.jsonl", encoding="utf-8") as file:
            logged = [json.loads(line) for line in file]
        best = min(line["eval_loss"] for line in logged
                   if "eval_loss" in line)
        self.assertIn(f"| best evaluation loss | {best:.4f} ", text)
        self.assertNotIn(self.folder, text)
        self.assertNotIn(os.path.dirname(MODEL), text)

    def test_the_same_run_writes_the_same(self):
        texts = []
        for _ in range(2):
            self.train("--output-dir=a", "--overwrite-output-dir")
            with open(self.folder + "/a/README.md", "rb") as file:
                texts.append(file.read())
        self.assertEqual(*texts)
        # base_model is the name of the folder, without its path.
        self.assertEqual(self.card()[0]["base_model"], "model")

    def test_names_are_text(self):
        odd = os.path.join(self.folder, "| <b>*x*.jsonl")
        shutil.copy(DATA, odd)
        name = 'a: "b" #\n---\nx: y'
        self.run_qlora("train", MODEL, odd, *SMALL, "--output-dir=a",
                       "--adapter-base-name", name)
        data, text = self.card()
        self.assertEqual(data["base_model"], name)
        self.assertNotIn("x", data)
        self.assertIn(r"| data | \| \<b\>\*x\*.jsonl |", text)
        self.assertIn("adapter of a: \"b\" \\# --- x: y", text)

    def test_a_users_own_stays(self):
        os.mkdir(self.folder + "/a")
        path = self.folder + "/a/README.md"
        with open(path, "w", encoding="utf-8") as file:
            file.write("mine")
        done = self.train("--output-dir=a", "--overwrite-output-dir")
        self.assertIn("was not written by qlora and is not", done.stderr)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")


class PushTest(QloraTest):
    def setUp(self):
        super().setUp()
        self.hub = Hub({})
        self.addCleanup(self.hub.close)
        self.environment.update(HF_ENDPOINT=self.hub.endpoint,
                                HF_HOME=self.folder + "/home",
                                HF_TOKEN="hf_right",
                                HF_HUB_DISABLE_TELEMETRY="1",
                                HF_HUB_DISABLE_XET="1")

    def train(self, *words, **options):
        return self.run_qlora("train", MODEL, DATA, *SMALL, "--output-dir=a",
                              "--push-to-hub", *words, **options)

    def test_the_adapter_and_nothing_else(self):
        done = self.train("--hub-model-id=me/mine", "--hub-private-repo")
        self.assertIn(f"pushed to {self.hub.endpoint}/me/mine", done.stdout)
        pushed = self.hub.pushed["me/mine"]
        self.assertEqual(sorted(pushed), [
            "README.md", "adapter_config.json", "adapter_model.safetensors",
            "tokenizer.json", "tokenizer_config.json"])
        self.assertEqual(pushed["adapter_model.safetensors"],
                         self.adapter("a"))
        self.assertIn(b'from_pretrained(base, "me/mine")',
                      pushed["README.md"])
        self.assertEqual(self.hub.private, {"me/mine": True})

    def test_without_a_name_it_is_the_folders(self):
        self.train()
        self.assertEqual(list(self.hub.pushed), ["me/a"])

    def test_what_is_missing_is_known_before_training(self):
        del self.environment["HF_TOKEN"]
        done = self.train(code=1)
        self.assertIn("--push-to-hub needs a token", done.stderr)
        self.assertNotIn("4 steps", done.stdout)
        self.environment["HF_TOKEN"] = "hf_wrong"
        done = self.train(code=1)
        self.assertIn("'a' cannot be written on the Hugging Face hub",
                      done.stderr)
        self.assertFalse(os.path.exists(
            self.folder + "/a/adapter_model.safetensors"))

    def test_an_evaluation_has_nothing_to_push(self):
        done = self.train("--num-train-epochs=0", "--max-steps=-1", code=1)
        self.assertIn("--push-to-hub needs an adapter to push", done.stderr)

    def test_a_failed_push_keeps_the_adapter(self):
        self.hub.refuses_commits = True
        done = self.train("--hub-model-id=me/mine", code=1)
        self.assertIn("Fix: hf upload me/mine a", done.stderr)
        self.assertTrue(self.adapter("a"))

    def test_a_token_is_no_option(self):
        path = self.folder + "/train.yaml"
        with open(path, "w", encoding="utf-8") as file:
            file.write("hub_token: hf_secret\n")
        for word in ("--hub-token=hf_secret", "--config=" + path):
            done = self.train(word, code=1)
            self.assertIn("set HF_TOKEN", done.stderr)
            self.assertNotIn("hf_secret", done.stderr)
