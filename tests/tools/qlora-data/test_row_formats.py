# SPDX-License-Identifier: MIT
"""Rows as other tools interpret them: their form, columns that are not read,
rows that are too long, LLaMA-Factory's templates."""

import json
import os
import unittest

from fixtures import CHATML, ToolTest, chat

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs")
TURNS = ["--row-format", "turns"]
CITY = {"instruction": "Name a city.", "input": "", "output": "Lisbon"}


class TurnsTest(ToolTest):
    def test_instructions_as_turns(self):
        self.make_model(CHATML)
        rows = self.convert(
            CITY, {"instruction": "Add.", "input": "1 2", "output": "3"},
            {"instruction": "a", "output": "b", "system": "s",
             "history": [["c", "d"]]}, flags=TURNS)
        self.assertEqual(self.decode(rows.ids[0]).rstrip("\n"), (
            "<|im_start|>user\nName a city.<|im_end|>\n"
            "<|im_start|>assistant\nLisbon<|im_end|>"))
        self.assertIn("user\nAdd.\n1 2<|im_end|>", self.decode(rows.ids[1]))
        self.assertEqual(self.decode(rows.ids[2]).rstrip("\n"), "\n".join(
            f"<|im_start|>{role}\n{text}<|im_end|>" for role, text in (
                ("system", "s"), ("user", "c"), ("assistant", "d"),
                ("user", "a"), ("assistant", "b"))))
        self.assertEqual(self.learned(rows), [
            "Lisbon<|im_end|>", "3<|im_end|>", "d<|im_end|>b<|im_end|>"])

    def test_pairs_learn_the_answer_alone(self):
        self.make_model(CHATML)
        rows = self.convert({"instruction": "a", "input": "", "chosen": "b",
                             "rejected": "c"}, flags=[*TURNS, "--pairs"])
        self.assertEqual([text.rstrip("\n") for text in self.learned(rows)],
                         ["b<|im_end|>", "c<|im_end|>"])

    def test_texts_of_llama_factory(self):
        with open(os.path.join(INPUTS, "llamafactory-texts.json"),
                  encoding="utf-8") as file:
            cases = json.load(file)
        self.make_model()
        for case in cases:
            with self.subTest(case["template"], turns=case["turns"]):
                talk = [(role, text) for turn in case["turns"]
                        for role, text in zip(("user", "assistant"), turn)]
                if case["system"]:
                    talk.insert(0, ("system", case["system"]))
                rows = self.convert({"messages": chat(*talk)},
                                    flags=["--chat-template", case["ours"]])
                pieces = case["pieces"]
                self.assertEqual(self.decode(rows.ids[0]), "".join(
                    asked + said for asked, said in pieces))
                self.assertEqual(self.learned(rows), [
                    "".join(said for _, said in pieces)])

    def test_turns_that_they_do_not_write(self):
        self.make_model()
        error = self.refusal({"messages": chat(
            ("user", "a"), ("tool", "b"), ("assistant", "c"))},
            flags=["--chat-template", "llamafactory-qwen3"])
        self.assertIn("a turn of tool or with tool calls is not written", error)


class FormTest(ToolTest):
    def test_the_form_that_is_named_is_read(self):
        self.make_model(CHATML)
        row = {"messages": chat(("user", "a"), ("assistant", "b")), **CITY}
        self.assertEqual(self.learned(self.convert(row)), ["b<|im_end|>"])
        rows = self.convert(row, flags=["--row-format", "alpaca"])
        self.assertEqual(self.learned(rows), ["Lisbon</s>"])
        rows = self.convert(row, flags=TURNS)
        self.assertEqual(self.learned(rows), ["Lisbon<|im_end|>"])

    def test_another_form_is_refused(self):
        self.make_model(CHATML)
        for row, form in ((CITY, "chat"), ({"text": "a"}, "completion"),
                          ({"prompt": "a", "completion": "b"}, "text")):
            error = self.refusal(row, flags=["--row-format", form])
            self.assertIn(f"--row-format allows only {form}", error)
            self.assertIn(".jsonl:1: ", error)

    def test_a_row_of_two_forms_that_are_named_is_refused(self):
        self.make_model(CHATML)
        both = ["--row-format", "alpaca", "--row-format", "text"]
        # Rows of tatsu-lab/alpaca also have a `text`.
        row = {**CITY, "text": "Name a city. Lisbon"}
        self.convert(CITY, {"text": "hello world"}, flags=both)
        error = self.refusal(CITY, row, flags=both)
        self.assertIn(f"{self.data}:2: a row that could be alpaca or text (it "
                      "has 'instruction', 'output', 'text'); name one form "
                      "with --row-format", error)

    def test_columns_that_are_not_read(self):
        self.make_model()
        row = {**CITY, "input": "Europe", "system": "s"}
        rows = self.convert(row, flags=["--column", "input=", "--column",
                                        "system="])
        self.assertEqual(rows.ids, self.convert(
            {"instruction": CITY["instruction"], "output": "Lisbon"}).ids)


    def test_a_system_of_another_name(self):
        self.make_model(CHATML)
        talk = chat(("user", "a"), ("assistant", "b"))
        for row in ({"messages": talk},
                    {"prompt": talk[:1], "completion": talk[1:]}):
            rows = self.convert({**row, "sys": "hello"},
                                flags=["--column", "system=sys"])
            self.assertTrue(self.decode(rows.ids[0]).startswith(
                "<|im_start|>system\nhello<"))


class LengthTest(ToolTest):
    ROWS = ({"prompt": "a\n", "completion": "b"},
            {"prompt": "a\n", "completion": "a b c d e f g h i"})

    def test_longer_rows(self):
        self.make_model()
        length = ["--max-length", "8", "--excess-length-strategy"]
        cut = self.convert(*self.ROWS, flags=[*length, "truncate"])
        self.assertEqual(len(cut.ids), 2)
        kept = self.convert(*self.ROWS, flags=[*length, "drop"])
        self.assertEqual(kept.ids, cut.ids[:1])
        self.assertEqual(self.summary["dropped_rows"], 1)
        self.assertEqual(kept.metadata["too_long_rows"], "1")
        error = self.refusal(*self.ROWS, flags=[*length, "raise"])
        self.assertRegex(error, r"\.jsonl:2: has \d+ tokens, more than "
                         "--max-length 8")
        error = self.refusal(self.ROWS[1], flags=[*length, "drop"])
        self.assertIn("all 1 rows have more tokens than --max-length 8", error)


if __name__ == "__main__":
    unittest.main()
