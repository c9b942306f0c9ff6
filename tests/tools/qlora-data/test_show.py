# SPDX-License-Identifier: MIT
"""--show prints rows with the tokens in the loss marked."""

import json
import os
import subprocess
import sys
import unittest

from fixtures import CHATML, FORGETFUL, TOOL, ToolTest, adds, byte_fallback, \
    byte_level, chat

SAID = {"prompt": "hello ", "completion": "world"}
TALK = {"messages": chat(("user", "the user"), ("assistant", "hello"),
                         ("user", "say é日本"), ("assistant", "world"))}
PAIR = {"prompt": "say ", "chosen": "hello world", "rejected": "user"}


class ShowTest(ToolTest):
    def shown(self, *flags, path=None, code=0):
        done = subprocess.run(
            [sys.executable, TOOL, "--tokenizer", self.model, "--input",
             path or self.data, "--show", *flags],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.errors = done.stderr
        return done.stdout

    def objects(self, *flags, path=None):
        text = self.shown("--json", "--num-rows=99", *flags, path=path)
        return [json.loads(line) for line in text.splitlines()]


class EndTest(ShowTest):
    def test_a_row_whose_loss_has_no_end_token_gets_a_warning(self):
        """A template that ends turns with plain text teaches no end token."""
        warning = "warning: the last token in the loss is no end token"
        for template, ends in (
                (CHATML, True),
                (CHATML.replace("<|im_end|>", "END"), False)):
            with self.subTest(ends=ends):
                self.make_model(template)
                self.write_data(TALK)
                self.assertEqual([row["ends"] for row in self.objects()],
                                 [ends])
                self.assertEqual(warning in self.shown(), not ends)

    def test_completions_end_with_the_end_token(self):
        self.make_model()
        self.write_data(SAID)
        self.assertEqual([row["ends"] for row in self.objects()], [True])
        # The end of a row that is cut says nothing.
        self.assertEqual([row["ends"] for row in
                          self.objects("--max-length=3")], [True])


class SameTokensTest(ShowTest):
    """Checks that the shown tokens are those that the conversion writes, and
    that showing the written file gives the same."""

    def check(self, *rows, flags=()):
        made = self.convert(*rows, flags=flags)
        every = self.objects(*flags)
        kept = [row for row in every if not row["left_out"]]
        self.assertEqual([row["input_ids"] for row in kept], made.ids)
        self.assertEqual([row["labels"] for row in kept], made.labels)
        self.assertEqual(sum(row["tokens_in_loss"] for row in kept),
                         self.summary["labelled_tokens"])
        self.assertEqual(sum(row["tokens_cut"] for row in kept),
                         self.summary["truncated_tokens"])
        for row in every:
            self.assertEqual("".join(text["text"] for text in row["texts"]),
                             self.decode(row["input_ids"]))
        read = self.objects(path=self.output)
        for name in ("input_ids", "labels", "texts", "answer"):
            self.assertEqual([row[name] for row in read],
                             [row[name] for row in kept])
        return every

    def test_texts_completions_and_conversations(self):
        self.make_model(CHATML)
        for flags in ((), ("--max-length=12",), ("--max-length=30",),
                      ("--assistant-only-loss=false",
                       "--completion-only-loss=false"),
                      ("--max-length=12", "--excess-length-strategy=drop")):
            with self.subTest(flags=flags):
                self.check({"text": "hello world"}, SAID, TALK, flags=flags)

    def test_tokens_that_the_tokenizer_adds(self):
        self.make_model(tokenizer=adds(byte_level(), "<s> $A"))
        self.check({"text": "hello"}, SAID)

    def test_conversations_that_become_several_rows(self):
        self.make_model(FORGETFUL)
        rows = self.check(TALK, SAID)
        self.assertEqual([row["row"] for row in rows], [1, 1, 2])
        self.assertIn("1 conversations are split into several rows",
                      self.errors + self.warnings)

    def test_pairs(self):
        self.make_model()
        rows = self.check(PAIR, PAIR, flags=("--pairs",))
        self.assertEqual([(row["row"], row["answer"]) for row in rows],
                         [(1, "chosen"), (1, "rejected"),
                          (2, "chosen"), (2, "rejected")])

    def test_judged_answers(self):
        self.make_model()
        rows = self.check({**SAID, "label": True}, {**SAID, "label": False},
                          flags=("--unpaired",))
        self.assertEqual([row["answer"] for row in rows],
                         ["desirable", "undesirable"])


class PrintedTest(ShowTest):
    def test_lines_in_the_loss_are_marked(self):
        self.make_model(CHATML)
        self.write_data(TALK)
        head, *lines = self.shown().splitlines()
        self.assertRegex(head, rf"^row 1, {self.data}:1: \d+ tokens, "
                               r"\d+ in the loss$")
        self.assertEqual(lines, [
            "      <|im_start|>user↵",
            "      the user<|im_end|>↵",
            "      <|im_start|>assistant↵",
            "loss  hello<|im_end|>",
            "      ↵",
            "      <|im_start|>user↵",
            "      say é日本<|im_end|>↵",
            "      <|im_start|>assistant↵",
            "loss  world<|im_end|>",
            "      ↵", ""])

    def test_control_characters_are_escaped(self):
        self.make_model()
        self.write_data({"prompt": "a", "completion": "\x1b[2Jb\tc\r\u2028d"})
        self.assertEqual(self.shown().splitlines()[1:3], [
            "      a", "loss  \\x1b[2Jb\\tc\\r\\u2028d</s>"])

    def test_one_token_per_line(self):
        self.make_model()
        self.write_data(SAID)
        lines = self.shown("--token-ids").splitlines()[1:-1]
        ids, labels = (self.objects()[0][name]
                       for name in ("input_ids", "labels"))
        self.assertEqual(lines, [
            f"{'loss' if label != -100 else '    '}  {number:>7}  "
            f"{self.tokenizer.id_to_token(number)}"
            for number, label in zip(ids, labels)])

    def test_a_row_that_is_left_out_says_why(self):
        self.make_model()
        self.write_data({"text": "h"}, {**SAID, "prompt": "hello user "},
                        {"text": "hello world, user"})
        heads = [line for line in self.shown("--max-length=2").splitlines()
                 if line.startswith("row")]
        self.assertIn(": 2 tokens, 1 in the loss", heads[0])
        self.assertRegex(heads[1], r"0 in the loss, \d+ more are cut; left "
                                   r"out: --max-length cuts off its answer$")
        self.assertRegex(heads[2], r"1 in the loss, \d+ more are cut$")
        self.assertIn("1 rows cut to 2 tokens", self.errors)
        head = self.shown("--max-length=4", "--excess-length-strategy=drop",
                          "--rows", "3").splitlines()[0]
        self.assertTrue(head.endswith(
            "; left out: it has more tokens than --max-length"), head)

    def test_a_tokenizer_without_a_decoder(self):
        self.make_model(tokenizer=byte_fallback())
        self.write_data({"prompt": "ab ", "completion": "cé"})
        self.assertIn("\n       ab \nloss  cé</s>\n", self.shown())


class ChosenRowsTest(ShowTest):
    def setUp(self):
        super().setUp()
        self.make_model()
        self.write_data(*({"text": f"row {number}"} for number in range(1, 9)),
                        "no row")

    def numbers(self, *flags):
        return [json.loads(line)["row"] for line
                in self.shown("--json", *flags).splitlines()]

    def test_the_first_or_those_that_are_named(self):
        self.assertEqual(self.numbers(), [1, 2, 3])
        self.assertEqual(self.numbers("--num-rows=5"), [1, 2, 3, 4, 5])
        # The last row is damaged, and is not read.
        self.assertEqual(self.numbers("--rows", "2", "8"), [2, 8])

    def test_a_row_that_does_not_exist(self):
        self.write_data({"text": "hello"})
        self.shown("--rows", "1", "3", code=1)
        self.assertIn(f"{self.data}: has no row 3; choose", self.errors)
        self.assertEqual(self.numbers("--num-rows=5"), [1])

    def test_a_refused_row_is_an_error_as_in_training(self):
        self.shown("--rows", "9", code=1)
        self.assertIn(f"{self.data}:9: ", self.errors)
        self.assertEqual(self.errors, self.run_tool().stderr)

    def test_a_reader_that_stops(self):
        self.write_data(*({"text": "hello " * 999} for _ in range(500)))
        done = subprocess.run(
            f"{sys.executable} {TOOL} --tokenizer {self.model} --input "
            f"{self.data} --show --num-rows 500 | head -1", shell=True,
            capture_output=True, text=True, check=True)
        self.assertTrue(done.stdout.startswith("row 1,"))
        self.assertEqual(done.stderr, "")


class TokenFileTest(ShowTest):
    def write(self, **tensors):
        import numpy
        from safetensors.numpy import save_file
        save_file({name: numpy.array(values, numpy.int32)
                   for name, values in tensors.items()}, self.output)

    def test_segments_of_micro_batches(self):
        self.make_model()
        ids = [[[5, 6, 7, 8, 9, 0]], [[9, 8, 7, 6, 5, 4]]]
        self.write(input_ids=ids, labels=ids,
                   segment_ids=[[[1, 1, 1, 2, 2, 0]], [[1] * 6]])
        rows = self.objects(path=self.output)
        self.assertEqual([(row["row"], row["input_ids"], row["labels"])
                          for row in rows],
                         [(1, [5, 6, 7], [-100, 6, 7]),
                          (1, [8, 9], [-100, 9]),
                          (2, ids[1][0], [-100, *ids[1][0][1:]])])

    def test_other_files_are_refused(self):
        self.make_model()
        self.write(weights=[1, 2])
        self.shown(path=self.output, code=1)
        self.assertIn("has no tensors input_ids and labels", self.errors)
        with open(self.output, "w", encoding="utf-8") as file:
            file.write("hello world, this is text")
        self.shown(path=self.output, code=1)
        self.assertIn("is not a safetensors file of integers", self.errors)
        os.remove(self.output)
        self.shown(path=self.output, code=1)
        self.assertIn("cannot be read: No such file", self.errors)


if __name__ == "__main__":
    unittest.main()
