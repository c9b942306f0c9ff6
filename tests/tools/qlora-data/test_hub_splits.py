# SPDX-License-Identifier: MIT
"""Files of a split are those that the library datasets takes, and so are the
rows of a slice. The expected values are those of datasets 5.2."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "..", "..", "tools", "qlora-data"))

from qlora_data.errors import DataError  # noqa: E402
from qlora_data.hub_reference import (parse_reference,  # noqa: E402
                                      parse_split)
from qlora_data.hub_splits import files_of  # noqa: E402


def files(names, query="", card=None, name="a/b"):
    reference = parse_reference(f"hf://datasets/{name}?{query}".rstrip("?"))
    return files_of(reference, names.split(), card or {})


class SplitsTest(unittest.TestCase):
    def refused(self, what, *words, **options):
        with self.assertRaises(DataError) as caught:
            files(*words, **options)
        self.assertIn(what, str(caught.exception))

    def test_names_of_files_and_folders(self):
        for names, split, expected in (
                ("README.md data.jsonl", "train", "data.jsonl"),
                ("b.csv a.csv .c.csv __d/e.csv", "train", "a.csv b.csv"),
                ("train.json test.json", "test", "test.json"),
                ("x/train-2.json x/my_train.json latest.json", "train",
                 "x/train-2.json x/my_train.json"),
                ("dev.json train.json", "validation", "dev.json"),
                ("train/x.json train_2/y.json test.json", "train",
                 "train/x.json train_2/y.json"),
                ("train.jsonl.gz train.txt train_b.jsonl", "train",
                 "train.jsonl.gz train_b.jsonl"),
                ("data/train-00001-of-00002.parquet "
                 "data/train-00000-of-00002.parquet "
                 "data/test_sft-00000-of-00001-a1.parquet train.json", "train",
                 "data/train-00000-of-00002.parquet "
                 "data/train-00001-of-00002.parquet"),
                ("data/test_sft-00000-of-00001-a1.parquet", "test_sft",
                 "data/test_sft-00000-of-00001-a1.parquet")):
            self.assertEqual(files(names, "split=" + split), expected.split(),
                             names)

    def test_configs_of_the_readme(self):
        card = {"configs": [
            {"config_name": "en", "data_files": "en/*.json"},
            {"config_name": "de", "default": True, "data_files": [
                {"split": "train", "path": ["de/b.json", "de/a?.json"]},
                {"split": "hard", "path": "**/hard/*"}]},
            {"config_name": "fr", "data_dir": "fr"}]}
        names = ("en/1.json en/x/2.json de/a1.json de/b.json de/hard/1.json "
                 "fr/train.json fr/test.json")
        for query, expected in (
                ("", "de/b.json de/a1.json"),
                ("config=de&split=hard", "de/hard/1.json"),
                ("config=en", "en/1.json"),
                ("config=fr&split=test", "fr/test.json"),
                ("files=fr/t*.json,en/1.json",
                 "fr/test.json fr/train.json en/1.json")):
            self.assertEqual(files(names, query, card), expected.split())
        self.refused("there is no subset 'it': the data set has de, en, fr",
                     names, "config=it", card)
        self.refused("there is no split 'test': the data set has hard, train",
                     names, "split=test", card)
        del card["configs"][1]["default"]
        self.refused("has several subsets: de, en, fr; choose one with "
                     "--dataset-config", names, "", card)

    def test_what_cannot_be_read(self):
        self.refused("needs the script b.py", "b.py train.json")
        self.refused("its files are images (.png)", "a.png b.png c.jsonl")
        self.refused("has no files with rows", "README.md config.json")
        self.refused("no file matches x/*", "train.json", "files=x/*")
        self.refused("has no subsets", "train.json", "config=en")

    def test_references(self):
        text = "hf://datasets/a/b@refs/pr/1?config=c&split=train[:1%]&files=d,e"
        self.assertEqual(str(parse_reference(text)), text)
        for wrong, what in (("a/../b", "is no name"), ("a/b/c", "is no name"),
                            ("a/b@../x", "is no revision"),
                            ("a/b?rows=1", "'rows=1' is not understood"),
                            ("a/b?split=", "'split=' is not understood")):
            with self.assertRaisesRegex(DataError, what):
                parse_reference("hf://datasets/" + wrong)


class SlicesTest(unittest.TestCase):
    def test_the_rows_of_a_slice(self):
        for text, count, rows in (
                ("train", 10, (0, 10)), ("train[:3]", 10, (0, 3)),
                ("train[2:]", 10, (2, 10)), ("train[-3:]", 10, (7, 10)),
                ("train[:-3]", 10, (0, 7)), ("train[4:99]", 10, (4, 10)),
                ("train[:1_0]", 99, (0, 10)), ("train[-99:2]", 10, (0, 2)),
                ("train[:1%]", 250, (0, 2)), ("train[:1%]", 350, (0, 4)),
                ("train[10%:20%]", 99, (10, 20)), ("test[-5%:]", 52, (49, 52)),
                ("train[33%:66%]", 999, (330, 659)),
                ("train[:1%](pct1_dropremainder)", 399, (0, 3))):
            self.assertEqual(parse_split(text).rows(count), rows, text)

    def test_what_is_no_slice(self):
        for text in ("train[5]", "train+test", "tr-ain", "train[:101%]",
                     "train[:1%](up)", "train[:5](closest)", ""):
            with self.assertRaises(DataError):
                parse_split(text)


if __name__ == "__main__":
    unittest.main()
