# SPDX-License-Identifier: MIT
"""Tests models that are named as on the Hugging Face hub."""

import json
import os
import shutil

from local_hub import COMMIT, Hub
from test_qlora import DATA, MODEL, SMALL, QloraTest

NAME = "demo/tiny"


class HubTest(QloraTest):
    def setUp(self):
        super().setUp()
        self.source = shutil.copytree(MODEL, self.folder + "/source")
        for name in ("pytorch_model.bin", "README.md", "training_args.bin"):
            with open(os.path.join(self.source, name), "w",
                      encoding="utf-8") as file:
                file.write("not wanted")
        # Some repositories contain the weights a second time, in a subfolder.
        os.mkdir(self.source + "/original")
        shutil.copy(MODEL + "/model.safetensors", self.source + "/original")
        self.hub = Hub({NAME: self.source})
        self.addCleanup(self.hub.close)
        self.cache = self.folder + "/hub"
        self.environment.update(HF_ENDPOINT=self.hub.endpoint,
                                HF_HUB_CACHE=self.cache,
                                HF_HOME=self.folder + "/home",
                                HF_HUB_DISABLE_TELEMETRY="1",
                                HF_HUB_DISABLE_XET="1")

    def snapshot(self, cache=None, revision="main"):
        """Creates a snapshot of the model in a cache, in huggingface_hub's
        layout."""
        model = os.path.join(cache or self.cache, "models--demo--tiny")
        folder = os.path.join(model, "snapshots", COMMIT)
        os.makedirs(os.path.dirname(os.path.join(model, "refs", revision)))
        os.makedirs(os.path.join(model, "blobs"))
        os.makedirs(folder)
        with open(os.path.join(model, "refs", revision), "w",
                  encoding="utf-8") as file:
            file.write(COMMIT)
        for number, name in enumerate(sorted(os.listdir(MODEL))):
            blob = os.path.join(model, "blobs", str(number))
            shutil.copy(os.path.join(MODEL, name), blob)
            os.symlink(f"../../blobs/{number}", os.path.join(folder, name))
        return folder

    def model_of(self, *words, **options):
        """Returns the model folder that the run gets."""
        done = self.run_qlora("train", *words, "--dry-run", **options)
        flags = done.stdout.splitlines()[-1].split()
        return next(flag.split("=", 1)[1] for flag in flags
                    if flag.startswith("--model-name-or-path="))

    def refused(self, *words, **options):
        return self.run_qlora("train", *words, "--dry-run", code=1,
                              **options).stderr

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w",
                  encoding="utf-8") as file:
            file.write(text)
        return name


class CacheTest(HubTest):
    def test_what_is_in_the_cache_is_not_asked_for(self):
        folder = self.snapshot()
        self.assertEqual(self.model_of(NAME, DATA), folder)
        self.assertEqual(self.model_of(f"{NAME}@{COMMIT}", DATA), folder)
        self.assertEqual(
            self.model_of(NAME, DATA, f"--model-revision={COMMIT}"), folder)
        self.assertEqual(
            self.model_of("--model-name-or-path", NAME, "--train-file", DATA,
                          "--config", self.write("empty.yaml", "seed: 1\n")),
            folder)
        self.assertEqual(self.hub.requests, [])

    def test_yaml_of_other_tools(self):
        folder = self.snapshot(revision="refs/pr/1")
        for keys in ("base_model: {}\nrevision_of_model: refs/pr/1",
                     "model_name_or_path: {}\nmodel_revision: refs/pr/1",
                     "model_name_or_path: {}@refs/pr/1"):
            config = self.write("c.yaml", keys.format(NAME)
                                + f"\ntrain_file: {DATA}\n")
            self.assertEqual(self.model_of(config), folder)
        self.assertEqual(self.hub.requests, [])

    def test_where_the_cache_is(self):
        del self.environment["HF_HUB_CACHE"]
        self.environment["HF_HUB_OFFLINE"] = "1"
        places = {"HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub",
                  "XDG_CACHE_HOME": "huggingface/hub",
                  "HOME": ".cache/huggingface/hub"}
        for variable, below in places.items():
            folder = f"{self.folder}/in-{variable}"
            self.environment[variable] = folder
            expected = self.snapshot(os.path.join(folder, below).rstrip("/"))
            if variable == "HOME":
                self.assertEqual(
                    self.run_qlora("memory", NAME, "--max-length=32",
                                   "--base=bf16", "--target=cpu",
                                   "--per-device-train-batch-size=1"
                                   ).stdout.split()[0], "base")
            else:
                self.assertEqual(self.model_of(NAME, DATA), expected)
            del self.environment[variable]
        self.environment.update(HOME=f"{self.folder}/home", HF_HOME="~/hf")
        expected = self.snapshot(f"{self.folder}/home/hf/hub")
        self.assertEqual(self.model_of(NAME, DATA), expected)

    def test_a_folder_wins(self):
        self.snapshot()
        shutil.copytree(MODEL, os.path.join(self.folder, NAME))
        self.assertEqual(self.model_of(NAME, DATA),
                         os.path.join(self.folder, NAME))
        self.assertIn("model_revision needs a model on the Hugging Face hub",
                      self.refused(NAME, DATA, "--model-revision=main"))

    def test_offline_nothing_is_fetched(self):
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assertIn(f"'{NAME}' is not a local folder and is incomplete in "
                      f"'{self.cache}': revision 'main' is missing",
                      self.refused(NAME, DATA))
        folder = self.snapshot()
        os.remove(os.path.join(folder, "model.safetensors"))
        index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w",
                  encoding="utf-8") as file:
            json.dump(index, file)
        self.assertIn("model-00001-of-00002.safetensors",
                      self.refused(NAME, DATA))
        self.assertEqual(self.hub.requests, [])

    def test_a_folder_that_is_nearly_so_called_is_named(self):
        shutil.copytree(MODEL, os.path.join(self.folder, "tiny-qwen3"))
        # After this message, qlora queries the hub.
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
        self.assertTrue(self.refused("tiny-qwem3", DATA).startswith(
            "qlora: 'tiny-qwem3' is not a local folder; did you mean "
            "'tiny-qwen3'? Looking for it on the Hugging Face hub"))
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assertIn("'tiny-qwem3' is not a local folder (did you mean "
                      "'tiny-qwen3'?)", self.refused("tiny-qwem3", DATA))
        self.assertNotIn("did you mean", self.refused("one/other", DATA))

    def test_what_is_no_name_stays_a_path(self):
        self.environment["HF_HUB_OFFLINE"] = "1"
        for word in ("./model", "a/b/c", "a--b", "-a", "a.git", "a/../b",
                     "/nowhere", "demo/tiny@../x"):
            self.assertNotIn("HF_HUB_OFFLINE",
                             self.refused("--model-name-or-path=" + word,
                                          "--config",
                                          self.write("e.yaml", "seed: 1\n")))


class FetchTest(HubTest):
    def test_trains_what_is_fetched_once(self):
        self.run_qlora("train", NAME, DATA, *SMALL, "--output-dir=a")
        self.assertEqual(self.hub.fetched(), [
            "config.json", "generation_config.json", "model.safetensors",
            "tokenizer.json", "tokenizer_config.json"])
        with open(self.folder + "/a/adapter_config.json",
                  encoding="utf-8") as file:
            self.assertEqual(json.load(file)["base_model_name_or_path"], NAME)
        asked = len(self.hub.requests)
        self.run_qlora("train", MODEL, DATA, *SMALL, "--output-dir=b")
        self.assertEqual(self.adapter("a"), self.adapter("b"))
        self.run_qlora("train", NAME, DATA, "--dry-run", *SMALL)
        self.assertEqual(len(self.hub.requests), asked)

    def test_what_is_missing_is_fetched(self):
        folder = self.snapshot()
        os.remove(os.path.join(folder, "config.json"))
        self.assertEqual(self.model_of(NAME, DATA), folder)
        self.assertEqual(self.hub.fetched(), ["config.json"])

    def test_errors_say_what_to_do(self):
        self.assertIn("there is no 'demo/other' on the Hugging Face hub",
                      self.refused("demo/other", DATA))
        self.assertIn("'demo/tiny' has no such revision",
                      self.refused(NAME + "@v9", DATA))
        self.hub.gated.add(NAME)
        self.assertIn("'demo/tiny' is gated on the Hugging Face hub; accept "
                      "its terms", self.refused(NAME, DATA))
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
        self.assertIn("'demo/tiny' is not a folder here, and the Hugging Face "
                      "hub cannot be used",
                      self.refused(NAME, DATA))

    def test_a_model_without_safetensors(self):
        os.remove(os.path.join(self.source, "model.safetensors"))
        self.assertIn("'demo/tiny' was fetched but cannot be trained",
                      self.refused(NAME, DATA))
