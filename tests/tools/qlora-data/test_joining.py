# SPDX-License-Identifier: MIT
"""Rows of pieces, of windows and of joined rows, and another end token. The
expected ids follow the code of axolotl (prompt_strategies/completion.py and
pretrain.py), TRL (pack_dataset) and LLaMA-Factory (processor/pretrain.py)."""

from fixtures import ToolTest, adds, byte_level

IGNORED = -100
LENGTH = ["--max-length=8"]


class JoiningTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model(tokenizer=adds(byte_level(), "<s> $A"))
        self.begin, self.end = map(self.tokenizer.token_to_id, ("<s>", "</s>"))
        self.texts = ["abcdefghijkl", "mno", "pqrstuvwx"]

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def rows(self, *flags):
        """Checks that the labels are the ids, and returns the ids."""
        made = self.convert(*({"text": text} for text in self.texts),
                            flags=[*LENGTH, *flags])
        for ids, labels in zip(made.ids, made.labels):
            self.assertEqual(labels, [IGNORED, *ids[1:]])
        return made.ids

    def documents(self):
        return [[self.begin, *self.ids(text), self.end] for text in self.texts]

    def test_split(self):
        expected = [row[first:first + 8] for row in self.documents()
                    for first in range(0, len(row), 8)]
        self.assertEqual(self.rows("--excess-length-strategy=split"), expected)

    def test_split_keeps_masks(self):
        made = self.convert({"prompt": "abcdefghij", "completion": "klmno"},
                            flags=[*LENGTH, "--excess-length-strategy=split"])
        # <s> to g and </s> are no rows: they would have no token in the loss.
        ids = self.ids("abcdefghij" + "klmno")
        self.assertEqual(made.ids, [ids[7:]])
        self.assertEqual(made.labels, [[IGNORED] * 3 + ids[10:]])

    def test_windows(self):
        expected = []
        for text in self.texts:
            ids = self.ids(text)
            # HF: max_length 7 with <s>; stride min(256, (8 - 1) // 2).
            most, step = 6, 6 - 3
            for first in range(0, len(ids), step):
                expected.append([self.begin, *ids[first:first + most],
                                 self.end])
                if first + most >= len(ids):
                    break
        self.assertEqual(self.rows("--excess-length-strategy=windows"),
                         expected)

    def test_wrapped(self):
        joined = sum(self.documents(), [])
        expected = [joined[first:first + 8]
                    for first in range(0, len(joined), 8)]
        self.assertEqual(self.rows("--packing-strategy=wrapped"), expected)

    def test_wrapped_as_llama_factory(self):
        joined = sum(([*self.ids(text), self.end] for text in self.texts), [])
        expected = [[self.begin, *joined[first + 1:first + 8]]
                    for first in range(0, len(joined) // 8 * 8, 8)]
        flags = [*LENGTH, "--packing-strategy=llamafactory-wrapped"]
        for pad, unlearned in ((None, self.end), ("a", self.ids("a")[0])):
            if pad:
                self.make_model(tokenizer=adds(byte_level(), "<s> $A"),
                                pad_token=pad)
            made = self.convert(*({"text": text} for text in self.texts),
                                flags=flags)
            self.assertEqual(made.ids, expected)
            self.assertEqual(made.labels, [
                [IGNORED, *(IGNORED if token == unlearned else token
                            for token in row[1:])] for row in expected])

    def test_wrapped_by_several_processes(self):
        self.texts = self.texts * 5000
        flags = ["--packing-strategy=wrapped"]
        self.assertEqual(self.rows(*flags, "--workers=3"),
                         self.rows(*flags, "--workers=1"))

    def test_wrapped_rows_keep_the_labels_of_rows(self):
        made = self.convert({"prompt": "abc", "completion": "de"},
                            {"prompt": "f", "completion": "g"},
                            flags=[*LENGTH, "--packing-strategy=wrapped"])
        ids = [self.begin, *self.ids("abc" + "de"), self.end, self.begin,
               *self.ids("f" + "g"), self.end]
        self.assertEqual(made.ids, [ids[:8], ids[8:]])
        masked = {0, 1, 2, 3, 7, 8}
        self.assertEqual(
            sum(made.labels, []),
            [IGNORED if at in masked else number
             for at, number in enumerate(ids)])

    def test_flags_that_conflict(self):
        self.assertIn("needs --max-length", self.refusal(
            {"text": "a"}, flags=["--packing-strategy=wrapped"]))
        self.assertIn("rows that are not joined", self.refusal(
            {"text": "a"}, flags=[
                *LENGTH, "--excess-length-strategy=split", "--pairs"]))


class EndTokenTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model()

    def test_a_token_of_the_vocabulary(self):
        made = self.convert({"text": "hello"}, flags=["--eos-token=<|eot_id|>"])
        self.assertEqual(made.ids[0][-1],
                         self.tokenizer.token_to_id("<|eot_id|>"))
        other = self.convert({"text": "hello"})
        self.assertEqual(other.ids[0][:-1], made.ids[0][:-1])
        self.assertEqual(other.ids[0][-1], self.tokenizer.token_to_id("</s>"))

    def test_another_token(self):
        self.assertIn("--eos-token: '<|new|>' is not in the vocabulary",
                      self.refusal({"text": "a"},
                                   flags=["--eos-token=<|new|>"]))
