# SPDX-License-Identifier: MIT
"""Pairs of answers: every shape of row, as two rows of tokens."""

import unittest

from fixtures import CHATML, ToolTest, chat

USER = {"role": "user", "content": "hello"}


def said(text):
    return {"role": "assistant", "content": text}


class PreferencesTest(ToolTest):
    def pairs(self, *rows, flags=()):
        made = self.convert(*rows, flags=["--pairs", *flags])
        self.assertEqual(made.metadata["pairs"], "true")
        return made

    def texts(self, made):
        return [self.decode(ids) for ids in made.ids]

    def test_strings(self):
        self.make_model()
        made = self.pairs({"prompt": "hello", "chosen": " world",
                           "rejected": " user"})
        self.assertEqual(self.texts(made), ["hello world</s>",
                                            "hello user</s>"])
        self.assertEqual(self.learned(made), [" world</s>", " user</s>"])

    def test_strings_with_the_prompt_in_both(self):
        self.make_model()
        made = self.pairs({"chosen": "hello the world",
                           "rejected": "hello the user"},
                          {"chosen": "a", "rejected": "b"})
        self.assertEqual(self.texts(made)[:2], ["hello the world</s>",
                                                "hello the user</s>"])
        # The blank belongs to the answer.
        self.assertEqual(self.learned(made)[:2], [" world</s>", " user</s>"])

    def test_messages_are_learned_whole_as_in_trl(self):
        self.make_model(CHATML)
        wanted = ["<|im_start|>user\nhello<|im_end|>\n"
                  f"<|im_start|>assistant\n{text}<|im_end|>\n"
                  for text in ("world", "the")]
        answers = {"chosen": [said("world")], "rejected": [said("the")]}
        for row in ({"prompt": [USER], **answers},
                    {"chosen": [USER, said("world")],
                     "rejected": [USER, said("the")]},
                    # A prompt of another kind repeats what is in both.
                    {"prompt": "hello", "chosen": [USER, said("world")],
                     "rejected": [USER, said("the")]},
                    {"messages": [USER], "chosen": said("world"),
                     "rejected": said("the")},
                    {"conversations": [{"from": "human", "value": "hello"}],
                     "chosen": {"from": "gpt", "value": "world"},
                     "rejected": {"from": "gpt", "value": "the"}}):
            made = self.pairs(row, flags=["--assistant-only-loss", "true"])
            self.assertEqual(self.texts(made), wanted)
            self.assertEqual(self.learned(made), ["world<|im_end|>\n",
                                                  "the<|im_end|>\n"])

    def test_alpaca_and_columns(self):
        self.make_model()
        made = self.pairs({"instruction": "hello", "chosen": "a",
                           "rejected": "b"})
        self.assertEqual(self.learned(made), ["a</s>", "b</s>"])
        made = self.pairs({"q": "hello", "good": "a", "bad": "b"}, flags=[
            "--column", "prompt=q", "--column", "chosen=good", "--column",
            "rejected=bad"])
        self.assertEqual(self.texts(made), ["helloa</s>", "hellob</s>"])

    def test_a_pair_stays_or_goes_as_one(self):
        self.make_model()
        row = {"prompt": "hello ", "chosen": "world", "rejected": "user"}
        made = self.pairs(row, {**row, "prompt": "hello " * 9},
                          flags=["--max-length", "6"])
        self.assertEqual(len(made.ids), 2)
        self.assertEqual(self.summary["dropped_rows"], 1)

    def test_what_is_no_pair(self):
        self.make_model(CHATML)
        for row, words in (
                ({"prompt": "a", "chosen": "b"}, "without 'rejected' (it has "
                 "'prompt', 'chosen'); add 'rejected', or train without --rl"),
                ({"prompt": "a", "rejected": "b"}, "without 'chosen'"),
                ({"messages": chat(("user", "a"), ("assistant", "b"))}, "without 'chosen'"),
                ({"chosen": "a", "rejected": [said("b")]}, "two strings or two "
                 "lists of messages, but got a string and a list"),
                ({"chosen": [], "rejected": []}, "'chosen' expects"),
                ({"chosen": "a b", "rejected": "a"}, "'rejected' is the "
                 "beginning of the other one"),
                ({"instruction": "a", "history": [["b", "c"]], "chosen": "d",
                  "rejected": "e"}, "'history' does not go with"),
                ({"messages": [USER], "chosen": "a", "rejected": "b"},
                 "'messages' and its answers do not go together")):
            error = self.refusal(row, flags=["--pairs"])
            self.assertIn(f"{self.data}:1: ", error)
            self.assertIn(words, error)

    def test_without_pairs_the_option_is_named(self):
        self.make_model()
        self.assertIn("train with --rl dpo", self.refusal(
            {"prompt": "a", "chosen": "b", "rejected": "c"}))


if __name__ == "__main__":
    unittest.main()
