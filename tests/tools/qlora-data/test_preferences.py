# SPDX-License-Identifier: MIT
"""Preference pairs, and answers that are desirable or not: the tokens and
labels of every shape of row."""

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
                           "rejected": "hello the user"})
        self.assertEqual(self.texts(made), ["hello the world</s>",
                                            "hello the user</s>"])
        # The space before a word is part of the answer.
        self.assertEqual(self.learned(made), [" world</s>", " user</s>"])

    def test_messages_are_learned_whole_as_in_trl(self):
        self.make_model(CHATML)
        wanted = ["<|im_start|>user\nhello<|im_end|>\n"
                  f"<|im_start|>assistant\n{text}<|im_end|>\n"
                  for text in ("world", "the")]
        answers = {"chosen": [said("world")], "rejected": [said("the")]}
        for row in ({"prompt": [USER], **answers},
                    {"chosen": [USER, said("world")],
                     "rejected": [USER, said("the")]},
                    # The prompt is a string, and repeats the messages that both
                    # answers begin with.
                    {"prompt": "hello", "chosen": [USER, said("world")],
                     "rejected": [USER, said("the")]},
                    # `messages` may repeat the prompt, and may have the answer,
                    # too.
                    {"prompt": "hello", "messages": [USER, said("world")],
                     "chosen": [USER, said("world")],
                     "rejected": [USER, said("the")]},
                    {"prompt": [USER], "chosen": [USER, said("world")],
                     "rejected": [USER, said("the")]},
                    {"chosen": [{"from": "human", "value": "hello"},
                                {"from": "gpt", "value": "world"}],
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

    def test_a_prompt_that_is_a_part_of_what_both_begin_with(self):
        self.make_model(CHATML)
        before = [USER, said("hello"), USER]
        made = self.pairs({"prompt": [USER],
                           "chosen": [*before, said("world")],
                           "rejected": [*before, said("the")]})
        self.assertEqual(self.learned(made), ["world<|im_end|>\n",
                                              "the<|im_end|>\n"])
        # The answers may be equal.
        answer = [*before, said("world")]
        made = self.pairs({"prompt": [USER], "chosen": answer,
                           "rejected": answer})
        self.assertEqual(self.learned(made), ["world<|im_end|>\n"] * 2)

    def test_a_word_that_the_answers_repeat_by_chance(self):
        self.make_model()
        made = self.pairs({"prompt": "hello", "chosen": "hello world",
                           "rejected": "hello"},
                          {"prompt": "hello world", "chosen": "hello world",
                           "rejected": "the"})
        self.assertEqual(self.learned(made)[:3], [
            "hello world</s>", "hello</s>", "hello world</s>"])
        # The prompt is refused if the answers of all pairs repeat it.
        error = self.refusal(
            {"prompt": "2+2=", "chosen": "2+2=4", "rejected": "2+2=5"},
            {"prompt": "hello", "chosen": "hello a", "rejected": "hello b"},
            flags=["--pairs"])
        self.assertIn(f"{self.data}:1: 'chosen' and 'rejected' begin with "
                      "'prompt'", error)

    def test_one_word_is_beside_a_shared_prompt(self):
        self.make_model()
        made = self.pairs({"source": "web", "id": "7", "topic": "hello the",
                           "chosen": "hello the world",
                           "rejected": "hello the user"})
        self.assertEqual(self.learned(made), [" world</s>", " user</s>"])

    def test_a_system_message_of_the_row(self):
        self.make_model(CHATML)
        made = self.pairs({"system": "say", "prompt": [USER],
                           "chosen": [said("a")], "rejected": [said("the")]})
        self.assertTrue(self.texts(made)[1].startswith(
            "<|im_start|>system\nsay<|im_end|>\n<|im_start|>user\nhello<"))

    def test_a_pair_without_a_prompt_among_others(self):
        self.make_model()
        own = {"prompt": "hello", "chosen": " world", "rejected": " user"}
        shared = {"chosen": "hello the world", "rejected": "hello the user"}
        error = self.refusal(own, own, shared, flags=["--pairs"])
        self.assertIn(f"{self.data}:3: a pair without 'prompt'", error)
        self.assertIn(f"although {self.data}:1 has it", error)

    def test_alpaca_and_columns(self):
        self.make_model()
        made = self.pairs({"instruction": "hello", "chosen": "a",
                           "rejected": "b"})
        self.assertEqual(self.learned(made), ["a</s>", "b</s>"])
        made = self.pairs({"q": "hello", "good": "a", "bad": "b"}, flags=[
            "--column", "prompt=q", "--column", "chosen=good", "--column",
            "rejected=bad"])
        self.assertEqual(self.texts(made), ["helloa</s>", "hellob</s>"])

    def test_columns_of_answers_leave_the_prompt(self):
        self.make_model(CHATML)
        flags = ["--column", "chosen=good", "--column", "rejected=bad"]
        made = self.pairs({"instruction": "hello", "good": "the user a",
                           "bad": "the user b"}, flags=flags)
        self.assertEqual(self.learned(made), ["the user a</s>",
                                              "the user b</s>"])
        self.assertIn("hello", self.texts(made)[0])
        for row in ({"messages": [USER]},
                    {"conversations": [{"from": "human", "value": "hello"}]}):
            made = self.pairs({**row, "good": [said("a")], "bad": [said("b")]},
                              flags=flags)
            self.assertEqual(self.learned(made), ["a<|im_end|>\n",
                                                  "b<|im_end|>\n"])

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
                ({"messages": chat(("user", "a"), ("assistant", "b"))},
                 "without 'chosen'"),
                ({"chosen": "a", "rejected": [said("b")]}, "two strings or two "
                 "lists of messages, but got a string and a list"),
                ({"chosen": [], "rejected": []}, "'chosen' expects"),
                ({"chosen": "a b c", "rejected": "a b"}, "'rejected' is the "
                 "beginning of the other answer"),
                ({"instruction": "a", "history": [["b", "c"]], "chosen": "d",
                  "rejected": "e"}, "'history' conflicts with"),
                ({"messages": [USER], "chosen": "a", "rejected": "b"},
                 "'messages' is a list, but its answers are a string"),
                # The answer of `messages` would be in the row twice.
                ({"messages": [USER, said("a")], "chosen": [said("a")],
                  "rejected": [said("b")]}, "'messages' ends with an "
                 "assistant's turn"),
                # There is no prompt, or it is a string and the answers are
                # messages.
                ({"system": "a", "question": "b", "chosen": "c",
                  "rejected": "d"}, "without a prompt: there is no 'prompt' "
                 "(it has 'system', 'question'), and 'chosen' and 'rejected' "
                 "do not tell it; name the column that is the prompt, as "
                 "--dataset-columns prompt=question"),
                ({"question": "b", "chosen": "hello c", "rejected": "hello d"},
                 "--dataset-columns prompt=question"),
                ({"chosen": "c", "rejected": "d"}, "it has the answers alone"),
                ({"chosen": [said("c")], "rejected": [said("d")]},
                 "without a prompt"),
                ({"chosen": [said("c"), USER, said("a")],
                  "rejected": [said("c"), USER, said("b")]},
                 "without a prompt"),
                ({"prompt": "a", "chosen": [said("c")],
                  "rejected": [said("d")]}, "'prompt' is a string, but its "
                                            "answers are a list"),
                ({"prompt": [USER], "chosen": "c", "rejected": "d"},
                 "'prompt' is a list, but its answers are a string"),
                ({"prompt": [], "chosen": [said("c")], "rejected": [said("d")]},
                 "without a prompt"),
                ({"prompt": [USER, said("a")], "chosen": [said("a")],
                  "rejected": [said("b")]}, "'prompt' ends with an "
                 "assistant's turn"),
                # The answers have the same beginning by chance.
                ({"chosen": "Green.", "rejected": "Grey."},
                 "it has the answers alone"),
                ({"ask": "Which colour?", "chosen": "a b c",
                  "rejected": "a b d"}, "--dataset-columns prompt=ask"),
                # Empty cells of CSV are empty strings.
                ({"prompt": " ", "chosen": "c", "rejected": "d"},
                 "a preference row whose 'prompt' is empty"),
                ({"instruction": "", "chosen": "c", "rejected": "d"},
                 "a preference row whose 'instruction' is empty"),
                # The prompt would be labelled as part of the answers.
                ({"prompt": "a b", "chosen": "a b c", "rejected": "a b d"},
                 "'chosen' and 'rejected' begin with 'prompt', which would be "
                 "in the loss"),
                ({"instruction": "a b", "chosen": "\na b c",
                  "rejected": "a b d"}, "begin with 'instruction'"),
                ({"prompt": "another text", "chosen": [USER, said("c")],
                  "rejected": [USER, said("d")]}, "'prompt' differs from the "
                                                  "first messages of 'chosen' "
                                                  "and 'rejected'"),
                ({"prompt": "a", "history": [["b", "c"]], "chosen": "d",
                  "rejected": "e"}, "'history' conflicts with"),
                ({"prompt": "a", "chosen": "b", "rejected": "c",
                  "label": True}, "a pair ('chosen', 'rejected') with "
                                  "'label', which belongs to a single answer; "
                                  "remove 'label'"),
                ({"chosen": [USER, USER], "rejected": [USER, said("b")]},
                 "'chosen' continues after the prompt with user"),
                ({"system": "a", "prompt": "b", "chosen": "c",
                  "rejected": "d"}, "'system' cannot be used if 'prompt' is a "
                                    "string")):
            error = self.refusal(row, flags=["--pairs"])
            self.assertIn(f"{self.data}:1: ", error)
            self.assertIn(words, error)

    def test_without_pairs_the_option_is_named(self):
        self.make_model()
        self.assertIn("train with --rl dpo", self.refusal(
            {"prompt": "a", "chosen": "b", "rejected": "c"}))


class UnpairedTest(ToolTest):
    def unpaired(self, *rows, flags=()):
        made = self.convert(*rows, flags=["--unpaired", *flags])
        self.assertEqual(len(made.desirable), len(made.ids))
        return made

    def test_strings(self):
        self.make_model()
        made = self.unpaired(
            {"prompt": "hello", "completion": " world", "label": True},
            {"prompt": "hello", "completion": " user", "kto_tag": False},
            {"instruction": "hello", "output": "a", "label": False})
        self.assertEqual(self.learned(made), [" world</s>", " user</s>",
                                              "a</s>"])
        self.assertEqual(made.desirable, [1, 0, 0])

    def test_messages_are_learned_whole_as_in_trl(self):
        self.make_model(CHATML)
        for row in ({"prompt": [USER], "completion": [said("world")]},
                    {"messages": [USER, said("world")]},
                    {"conversations": [{"from": "human", "value": "hello"},
                                       {"from": "gpt", "value": "world"}]}):
            made = self.unpaired({**row, "label": False},
                                 flags=["--assistant-only-loss", "true"])
            self.assertEqual(self.learned(made), ["world<|im_end|>\n"])
            self.assertEqual(made.desirable, [0])

    def test_a_pair_is_two_answers(self):
        self.make_model()
        made = self.unpaired({"prompt": "hello", "chosen": " world",
                              "rejected": " user"})
        self.assertEqual(self.learned(made), [" world</s>", " user</s>"])
        self.assertEqual(made.desirable, [1, 0])

    def test_columns(self):
        self.make_model()
        made = self.unpaired({"q": "hello", "a": "b", "liked": True}, flags=[
            "--column", "prompt=q", "--column", "completion=a", "--column",
            "label=liked"])
        self.assertEqual(made.desirable, [1])

    def test_what_is_left_out_has_no_judgement(self):
        self.make_model()
        row = {"prompt": "hello ", "completion": "world", "label": True}
        made = self.unpaired({**row, "prompt": "hello " * 9},
                             {**row, "label": False},
                             flags=["--max-length", "6"])
        self.assertEqual(made.desirable, [0])

    def test_what_is_no_judged_answer(self):
        self.make_model(CHATML)
        row = {"prompt": "a", "completion": "b"}
        for row, words in (
                (row, "a row without 'label', which says whether its answer is "
                 "desirable (it has 'prompt', 'completion'); add 'label': true "
                 "or false"),
                ({**row, "label": None}, "a row without 'label'"),
                ({**row, "label": 1}, "'label' expects true or false, but got "
                 "a number; fix 'label'"),
                ({**row, "kto_tag": "true"}, "'kto_tag' expects true or false"),
                ({"text": "a", "label": True}, "whose answer cannot be "
                 "separated from its prompt (it has 'text'); write 'prompt'"),
                ({"messages": [said("a"), USER], "label": True},
                 "cannot be separated from its prompt"),
                ({"instruction": "a", "output": "b", "history": [["c", "d"]],
                  "label": True}, "cannot be separated from its prompt"),
                ({**row, "label": True, "kto_tag": False},
                 "'label' and 'kto_tag' differ"),
                ({**row, "prompt": "", "label": True}, "whose prompt is empty"),
                ({"prompt": [USER, said("a")], "completion": [said("a")],
                  "label": True}, "'prompt' ends with an assistant's turn"),
                ({"prompt": [USER], "completion": [USER, said("a")],
                  "label": True}, "'completion' continues after the prompt "
                 "with user"),
                ({"prompt": "a", "chosen": "b", "rejected": "c",
                  "label": False}, "a pair ('chosen', 'rejected') with")):
            error = self.refusal(row, flags=["--unpaired"])
            self.assertIn(f"{self.data}:1: ", error)
            self.assertIn(words, error)

    def test_without_unpaired_the_option_is_named(self):
        self.make_model()
        self.assertIn("train with --rl kto", self.refusal(
            {"prompt": "a", "completion": "b", "label": True}))


if __name__ == "__main__":
    unittest.main()
