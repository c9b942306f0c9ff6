# SPDX-License-Identifier: MIT
"""`qlora-data chat` shows reasoning apart from the answer, for published chat
templates."""

import os
import unittest

from chats import HERE, PipeChatTest, chatml
from fixtures import byte_level

TEMPLATES = os.path.normpath(os.path.join(HERE, "../../Inputs/chat_templates"))


class ReasoningTest(PipeChatTest):
    """Reasoning in a pipe is between <think> and </think>."""

    def template(self, name):
        with open(os.path.join(TEMPLATES, name + ".jinja"),
                  encoding="utf-8") as file:
            source = file.read()
        self.make_model(source, byte_level(("<|channel|>", "<|message|>",
                                            "<|start|>", "<|end|>",
                                            "<|return|>")
                                           if name == "gpt-oss" else ()))

    def reasoned(self, name, answer, shown, message):
        """Checks what is printed, and the saved message."""
        with self.subTest(name, answer=answer):
            self.template(name)
            self.answers(answer)
            path = self.path("saved.jsonl")
            self.assertEqual(self.chat("say", "/save " + path), shown + "\n")
            self.assertEqual(self.saved()[0]["messages"][1],
                             {"role": "assistant", **message})
            # The templates of DeepSeek-R1 and QwQ drop all reasoning.
            self.convert(*self.saved(),
                         flags=["--allow-template-drops=true"]
                         if name == "qwq" else [])
            os.remove(path)

    def test_templates(self):
        apart = {"content": "world", "reasoning_content": "the user"}
        whole = {"content": "<think>\nthe user\n</think>\n\nworld"}
        shown = whole["content"]
        for name, answer, message in (
                ("qwen3", "<think>\nthe user\n</think>\n\nworld<|im_end|>",
                 apart),
                ("nemotron-3", "<think>the user</think>world<|eot_id|>", apart),
                ("qwq", "the user\n</think>\n\nworld<|im_end|>", whole),
                ("smollm3", "<think>\n the user\n</think>\nworld<|im_end|>",
                 whole),
                ("gpt-oss", "<|channel|>analysis<|message|>the user<|end|>"
                 "<|start|>assistant<|channel|>final<|message|>world<|return|>",
                 apart)):
            self.reasoned(name, answer, shown, message)

    def test_answers_without_reasoning(self):
        for name, answer in (
                ("qwen3", "<think>\n\n</think>\n\nworld"),
                ("qwen3", "world"), ("qwq", "</think>world"),
                ("gpt-oss", "<|channel|>final<|message|>world<|return|>"),
                ("gpt-oss", "world")):
            self.reasoned(name, answer, "world", {"content": "world"})

    def test_several_channels(self):
        self.reasoned(
            "gpt-oss", "<|channel|>analysis<|message|>hello<|end|><|start|>"
            "assistant<|channel|>commentary to=f <|message|>the<|end|><|start|>"
            "assistant<|channel|>commentary<|message|>say<|end|><|start|>"
            "assistant<|channel|>final<|message|>world<|return|>",
            "<think>\nhello\n\nthe\n</think>\n\nsay\n\nworld",
            {"content": "say\n\nworld", "reasoning_content": "hello\n\nthe"})

    def test_reasoning_that_does_not_end(self):
        self.reasoned("qwen3", "<think>\nthe user\n",
                      "<think>\nthe user\n</think>",
                      {"content": "", "reasoning_content": "the user"})

    def test_an_almost_marker(self):
        self.reasoned("qwen3", "say <thi world </thin", "say <thi world </thin",
                      {"content": "say <thi world </thin"})

    def test_earlier_reasoning_is_the_templates(self):
        self.template("qwen3")
        self.answers("<think>\nthe user\n</think>\n\nworld<|im_end|>", "the")
        self.chat("a", "b")
        self.assertEqual(self.prompts()[1], chatml("a", "world", "b"))


if __name__ == "__main__":
    unittest.main()
