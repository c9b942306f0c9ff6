# SPDX-License-Identifier: MIT
"""What axolotl's files may do with rows: its prompts, rows that are too short
or equal, system messages, its template for Qwen3."""

import unittest

from fixtures import CHATML, ToolTest

CITY = {"instruction": "Name a city.", "input": "", "output": "Lisbon"}
OPENING = ("Below is an instruction that describes a task{}. Write a response "
           "that appropriately completes the request.")
PAIRED = ", paired with an input that provides further context"
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant",
                                            "content": "b"}]


class AxolotlRowsTest(ToolTest):
    def texts(self, *rows, flags=()):
        """Returns the prompt and the text in the loss of each row."""
        made = self.convert(*rows, flags=list(flags))
        found = []
        for ids, labels in zip(made.ids, made.labels):
            parts = [[token for token, label in zip(ids, labels)
                      if (label != -100) == learned]
                     for learned in (False, True)]
            found.append(tuple(self.decode(part) for part in parts))
        return found

    def test_prompts_of_instructions(self):
        self.make_model(CHATML)
        given = {**CITY, "input": "in Italy"}
        for style, question, with_input in (
                ("alpaca-chat",
                 "SYSTEM: {}\nUSER: Name a city.\nASSISTANT:",
                 "SYSTEM: {}\nUSER: Name a city.\nin Italy\nASSISTANT:"),
                ("alpaca-phi",
                 "<|system|>\n{}<|end|>\n<|user|>\nName a city.<|end|>\n"
                 "<|assistant|>\n",
                 "<|system|>\n{}<|end|>\n<|user|>\nName a city.<|end|>"
                 "in Italy<|assistant|>")):
            self.assertEqual(
                self.texts(CITY, given, flags=["--row-format", style]),
                [(question.format(OPENING.format("")),
                  "Lisbon</s>"),
                 (with_input.format(OPENING.format(PAIRED)),
                  "Lisbon</s>")])
        row = {"question": "It shines", "category": "STARS",
               "answer": "the sun"}
        self.assertEqual(
            self.texts(row, flags=["--row-format", "jeopardy"]),
            [(OPENING.format(PAIRED) + "\n\n### Instruction:\nIt shines\n\n"
              "### Input:\nSTARS\n\n### Response:\n",
              "what is the sun</s>")])

    def test_prompts_of_preferences(self):
        self.make_model(CHATML)
        row = {"prompt": "a", "chosen": TURNS, "rejected": [
            TURNS[0], {"role": "assistant", "content": "c"}]}
        prompt = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(
            self.texts(row, flags=["--pairs", "--row-format", "chatml-ultra"]),
            [(prompt, "b<|im_end|></s>"),
             (prompt, "c<|im_end|></s>")])
        row = {"prompt": "a", "completion": "b", "label": True, "system": "s"}
        self.assertEqual(
            self.texts(row, flags=["--unpaired", "--row-format",
                                   "llama3-ultra"]),
            [("<|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
              "b<|eot_id|></s>")])

    def test_rows_left_out(self):
        self.make_model(CHATML)
        short, long = ({"text": text} for text in ("hello", "hello " * 9))
        only = self.convert(long).ids
        self.assertEqual(
            self.convert(short, long, flags=["--min-length=6"]).ids, only)
        equal = ["--drop-duplicates"]
        self.assertEqual(self.convert(long, long, flags=equal).ids, only)
        both = self.convert(short, long).ids
        self.assertEqual(
            self.convert(short, long, short, flags=equal).ids, both)
        # The same tokens with other labels are another row.
        row = {"prompt": "hello world ", "completion": "user"}
        self.assertEqual(len(self.convert(
            row, {"text": "hello world user"}, row, flags=equal).ids), 2)
        pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
        other = {**pair, "chosen": "c", "rejected": "b"}
        self.assertEqual(len(self.convert(
            pair, other, pair, flags=["--pairs", *equal]).ids), 4)

    def test_system_messages(self):
        self.make_model(CHATML)
        system = {"role": "system", "content": "s"}
        expected = self.convert({"messages": TURNS}).ids
        for row in ({"messages": [system, *TURNS]},
                    {"messages": TURNS, "system": "s"},
                    {"messages": TURNS}):
            self.assertEqual(self.convert(
                row, flags=["--drop-system-messages"]).ids, expected)

    def test_template_of_qwen3(self):
        self.make_model(CHATML)
        talk = [*TURNS, TURNS[0], {"role": "assistant", "content": "c"}]
        flags = ["--chat-template", "axolotl-qwen3"]
        question = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(
            self.texts({"messages": talk}, flags=flags),
            [(question + "\n" + question + "<think>\n\n</think>\n\n\n",
              "b<|im_end|>c<|im_end|>")])
        thinks = [TURNS[0], {**TURNS[1], "reasoning_content": "r"}]
        self.assertEqual(
            self.texts({"messages": thinks}, flags=flags),
            [(question + "<think>\n\n", "r\n</think>\n\nb<|im_end|>")])


if __name__ == "__main__":
    unittest.main()
