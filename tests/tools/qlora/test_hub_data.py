# SPDX-License-Identifier: MIT
"""Tests data sets that are named as on the Hugging Face hub."""

import glob
import json
import os

from local_hub import COMMIT, Hub
from test_qlora import DATA, MODEL, SMALL, QloraTest

NAME = "demo/rows"
PREFIX = f"hf://datasets/{NAME}@{COMMIT}?"
CARD = """---
license: mit
configs:
- config_name: long
  data_files: long/*.jsonl
- config_name: short
  default: true
  data_files:
  - split: train
    path: [b.jsonl, a.jsonl]
  - split: test
    path: test.jsonl
---
# Rows
"""


def rows_of(word, count):
    return [{"prompt": f"{word} {number}", "completion": "x"}
            for number in range(count)]


FILES = {"a.jsonl": rows_of("a", 3), "b.jsonl": rows_of("b", 4),
         "test.jsonl": rows_of("test", 2), "long/1.jsonl": rows_of("long", 2)}


class HubDataTest(QloraTest):
    def setUp(self):
        super().setUp()
        self.source = self.folder + "/source"
        self.fill(self.source)
        self.hub = Hub({"datasets/" + NAME: self.source})
        self.addCleanup(self.hub.close)
        self.cache = self.folder + "/hub"
        self.environment.update(HF_ENDPOINT=self.hub.endpoint,
                                HF_HUB_CACHE=self.cache,
                                HF_HOME=self.folder + "/home",
                                HF_HUB_DISABLE_TELEMETRY="1",
                                HF_HUB_DISABLE_XET="1")

    def fill(self, folder, *without):
        for name, rows in FILES.items():
            if name not in without:
                self.put("".join(json.dumps(row) + "\n" for row in rows),
                         folder, name)
        self.put(CARD, folder, "README.md")

    def put(self, text, *path):
        path = os.path.join(self.folder, *path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def snapshot(self, *without):
        """Creates a snapshot in the cache, in huggingface_hub's layout."""
        folder = os.path.join(self.cache, "datasets--demo--rows")
        self.put(COMMIT, folder, "refs/main")
        self.fill(os.path.join(folder, "snapshots", COMMIT), *without)
        self.environment["HF_HUB_OFFLINE"] = "1"

    def inputs(self, *words, **options):
        """Returns the data that the run gets: to train on, to evaluate with."""
        done = self.run_qlora("train", *words, "--dry-run", **options)
        self.notes = done.stderr
        line = done.stdout.splitlines()[-1].replace("'", "")
        return tuple([word.split("=", 1)[1] for word in line.split()
                      if word.startswith(flag)]
                     for flag in ("--train-file=", "--validation-file="))

    def refused(self, *words):
        return self.run_qlora("train", *words, "--dry-run", code=1).stderr

    def shown(self, *words):
        """Returns the prompts of all rows."""
        shown = self.run_qlora("show-data", MODEL, *words, "--json",
                               "--num-rows=99").stdout
        return [json.loads(line)["texts"][0]["text"]
                for line in shown.splitlines()]


class CacheTest(HubDataTest):
    def test_names_and_splits(self):
        self.snapshot()
        name = ["--dataset-name", NAME]
        for words, expected in (
                ([NAME], (["split=train"], [])),
                ([f"{NAME}@{COMMIT}"], (["split=train"], [])),
                (["--train-file", NAME + ":2"], (["split=train:2"], [])),
                (name, (["split=train"], [])),
                ([*name, "--dataset-train-split=train[:50%]",
                  "--dataset-test-split=test"],
                 (["split=train[:50%]"], ["split=test"])),
                ([*name, "--dataset-config=long"],
                 (["config=long&split=train"], [])),
                ([DATA, "--validation-file", NAME], ([DATA], ["split=test"])),
                ([*name, f"--dataset-revision={COMMIT}", "--train-file", DATA],
                 ([DATA, "split=train"], []))):
            expected = tuple([text if text == DATA else PREFIX + text
                              for text in side] for side in expected)
            self.assertEqual(self.inputs(MODEL, *words), expected, words)
        self.assertEqual(self.hub.requests, [])

    def test_rows(self):
        self.snapshot()
        b, a = ([f"{word} {number}" for number in range(count)]
                for word, count in (("b", 4), ("a", 3)))
        for words, expected in (
                ([NAME], b + a), ([NAME, "--max-samples=5"], b + a[:1]),
                ([NAME, "--dataset-train-split=train[2:-1]"], b[2:] + a[:2]),
                ([NAME, "--dataset-train-split=train[50%:]",
                  "--max-samples=2"], a[:2]),
                ([NAME, "--dataset-config=long"], ["long 0", "long 1"])):
            self.assertEqual(self.shown(*words), expected, words)

    def test_evaluation(self):
        self.snapshot()
        for words, rows in (
                ([NAME], "split=test"),
                ([NAME, "--dataset-config=long",
                  "--dataset-test-split=train[:1]"],
                 "config=long&split=train[:1]"),
                ([f"hf://datasets/{NAME}?split=train"], "split=train")):
            self.assertIn(f"--input '{PREFIX}{rows}'", self.run_qlora(
                "eval", MODEL, *words, "--dry-run").stdout)

    def test_a_run_trains_offline(self):
        self.snapshot()
        self.own_cache()
        done = self.run_qlora("train", MODEL, NAME, *SMALL,
                              "--dataset-test-split=test[:1]",
                              "--output-dir=a")
        self.assertIn("demo/rows, train: 7 rows", done.stdout)
        self.put("".join(json.dumps(row) + "\n" for row in
                         FILES["b.jsonl"] + FILES["a.jsonl"]), "rows.jsonl")
        self.put(json.dumps(FILES["test.jsonl"][0]), "test.jsonl")
        self.run_qlora("train", MODEL, "rows.jsonl", *SMALL,
                       "--validation-file=test.jsonl", "--output-dir=b")
        self.assertEqual(self.adapter("a"), self.adapter("b"))
        # The rows are kept by the commit and the split.
        kept = len(glob.glob(self.folder + "/cache/qlora/tokens/*"))
        self.run_qlora("train", MODEL, NAME, *SMALL, "--output-dir=c")
        self.assertEqual(
            len(glob.glob(self.folder + "/cache/qlora/tokens/*")), kept)

    def test_offline_nothing_is_fetched(self):
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assertIn(f"'{NAME}' is not a local file or folder and is "
                      f"incomplete in '{self.cache}': revision 'main' is "
                      "missing; HF_HUB_OFFLINE forbids fetching it",
                      self.refused(MODEL, NAME))
        self.snapshot("test.jsonl")
        self.assertIn("there is no split 'test': the data set has train",
                      self.refused(MODEL, NAME, "--dataset-test-split=test"))
        self.assertEqual(self.hub.requests, [])

    def test_a_missing_part_of_a_split_is_found(self):
        folder = os.path.join(self.cache, "datasets--demo--rows")
        self.put(COMMIT, folder, "refs/main")
        name = "data/train-0000{}-of-00002.jsonl"
        self.put("{}", folder, "snapshots", COMMIT, name.format(0))
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assertIn(f"'{name.format(1)}' is missing",
                      self.refused(MODEL, NAME))

    def test_a_file_that_is_nearly_so_called_is_named(self):
        self.put("{}", "demo/row-s.jsonl")
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assertIn(f"'{NAME}' is not a local file or folder (did you mean "
                      "'demo/row-s.jsonl'?)", self.refused(MODEL, NAME))
        self.put("{}", "demo/rows/train.jsonl")
        self.assertEqual(self.inputs(MODEL, NAME),
                         ([os.path.join(self.folder, NAME)], []))
        self.assertIn("--dataset-name: 'demo/rows' is here",
                      self.refused(MODEL, "--dataset-name", NAME))

    def test_what_is_no_name_stays_a_path(self):
        self.environment["HF_HUB_OFFLINE"] = "1"
        for word in ("rows", "a/b.jsonl", "./a/b", "a/b/", "a/b.csv.gz"):
            self.assertIn("there is no file", self.refused(MODEL, word))
        for words, what in (
                (["--dataset-config=x"], "but none is named"),
                (["--dataset-test-split=x"], "needs one data set"),
                (["--dataset-name=a/b/c"], "is no name of a data set")):
            self.assertIn(what, self.refused(MODEL, DATA, *words))

    def test_mistakes(self):
        self.snapshot()
        for words, what in (
                (["--dataset-train-split=dev"],
                 "there is no split 'dev': the data set has test, train"),
                (["--dataset-config=x"],
                 "there is no subset 'x': the data set has long, short"),
                (["--dataset-train-split=train[x]"], "is not understood")):
            self.assertIn(what, self.refused(MODEL, NAME, *words))
        self.assertIn("the split 'train[5:5]' has no rows",
                      self.run_qlora("show-data", MODEL, NAME, "--dataset-"
                                     "train-split=train[5:5]", code=1).stderr)


class FetchTest(HubDataTest):
    def test_only_the_files_of_a_split_are_fetched_once(self):
        expected = [PREFIX + "split=train"], []
        self.assertEqual(self.inputs(MODEL, NAME), expected)
        self.assertEqual(self.hub.fetched(),
                         ["README.md", "a.jsonl", "b.jsonl"])
        asked = len(self.hub.requests)
        self.assertEqual(self.inputs(MODEL, NAME), expected)
        self.assertEqual(len(self.hub.requests), asked)
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assertEqual(len(self.shown(NAME)), 7)

    def test_what_is_missing_is_fetched(self):
        self.snapshot("b.jsonl")
        del self.environment["HF_HUB_OFFLINE"]
        self.assertEqual(len(self.shown(NAME)), 7)
        self.assertIn("b.jsonl", self.hub.fetched())
        self.assertNotIn("a.jsonl", self.hub.fetched())

    def test_without_a_network_the_cache_is_used(self):
        self.snapshot()
        del self.environment["HF_HUB_OFFLINE"]
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
        self.assertEqual(self.inputs(MODEL, NAME), ([PREFIX + "split=train"],
                                                    []))
        self.assertIn("uses the files of demo/rows in the cache", self.notes)

    def test_errors_say_what_to_do(self):
        self.assertIn("there is no 'demo/other' on the Hugging Face hub",
                      self.refused(MODEL, "demo/other"))
        self.assertIn("'demo/rows' has no such revision",
                      self.refused(MODEL, NAME + "@v9"))
        self.hub.gated.add("datasets/" + NAME)
        self.assertIn("https://huggingface.co/datasets/demo/rows, and",
                      self.refused(MODEL, NAME))
        os.rename(self.source + "/README.md", self.source + "/rows.py")
        self.assertIn("demo/rows: needs the script rows.py",
                      self.refused(MODEL, NAME))
