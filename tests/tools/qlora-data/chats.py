# SPDX-License-Identifier: MIT
"""Tests of `qlora-data chat` with an engine that gives prepared tokens."""

import json
import os
import subprocess
import sys

from fixtures import CHATML, TOOL, ToolTest

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINE = [sys.executable, os.path.join(HERE, "fake_engine.py")]


class ChatTest(ToolTest):
    """`self.script` is the fake engine's."""

    def setUp(self):
        super().setUp()
        self.script = {"answers": [], "capacity": 999,
                       "log": self.path("requests")}
        self.make_model(CHATML)

    def tokens(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def answers(self, *texts):
        """Lets the engine answer with the tokens of these texts."""
        self.script["answers"] = [self.tokens(text) for text in texts]

    def command(self, *flags):
        with open(self.path("script.json"), "w", encoding="utf-8") as file:
            json.dump(self.script, file)
        return [sys.executable, TOOL, "chat", "--model", self.model, *flags,
                "--", *ENGINE, self.path("script.json")]

    def requests(self):
        with open(self.script["log"], encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def asked(self):
        """Returns the requests, without cancellations."""
        return [request for request in self.requests()
                if "input_ids" in request]

    def prompts(self):
        """Returns the texts of all requests."""
        return [self.decode(request["input_ids"]) for request in self.asked()]

    def saved(self, name="saved.jsonl"):
        with open(self.path(name), encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def chatml(*texts, system=""):
    """Returns the prompt of a conversation that begins with the user."""
    turns = [("user", "assistant")[index % 2] + "\n" + text
             for index, text in enumerate(texts)]
    if system:
        turns.insert(0, "system\n" + system)
    return "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) \
        + "<|im_start|>assistant\n"


class PipeChatTest(ChatTest):
    def chat(self, *lines, code=0, flags=()):
        """Returns what is printed. Sets self.errors."""
        text = "".join(line + "\n" for line in lines)
        done = subprocess.run(self.command(*flags), input=text.encode(
            "utf-8", "surrogateescape"), capture_output=True, check=False)
        self.errors = done.stderr.decode()
        self.assertEqual(done.returncode, code, self.errors)
        return done.stdout.decode()
