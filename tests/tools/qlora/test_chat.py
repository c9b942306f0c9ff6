# SPDX-License-Identifier: MIT
"""qlora chat answers with a model, a run's adapter or several adapters."""

import json
import os
import shlex
import shutil
import subprocess
import unittest

from test_generate import FAST, CommandTest
from test_qlora import DATA, MODEL, SMALL

FIRST, SECOND = "Lena wants to meet Ivan.", "Who?"


class ChatTest(CommandTest):
    def chat(self, *words, lines, code=0):
        done = subprocess.run(
            ["qlora", "chat", *words, *FAST], cwd=self.folder, text=True,
            capture_output=True, env=self.environment,
            input="".join(line + "\n" for line in lines))
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def answer(self, *words, prompt):
        return self.run_qlora("generate", *words, prompt, *FAST).stdout

    def test_words_of_both_programs(self):
        shown = self.run_qlora("chat", MODEL, "--system=s", "--temperature=0.5",
                               "--stop=a b", "--chat-template=chatml",
                               "--dry-run").stdout.splitlines()
        words = shlex.split(shown[-1])
        end = words.index("--")
        self.assertEqual(words[1:end], [
            "chat", "--model=" + MODEL, "--seed=42", "--chat-template=chatml",
            "--system=s", "--stop=a b", "--temperature=0.5"])
        self.assertIn("--generate", words[end:])
        self.assertIn("--generation-batch=1", shlex.split(shown[1]))
        shown = self.run_qlora("chat", MODEL, "--generation-batch=3",
                               "--dry-run").stdout.splitlines()
        self.assertIn("--generation-batch=3", shlex.split(shown[1]))

    def test_mistakes(self):
        for words, message in (
                ((), "no model is named; usage: qlora chat MODEL [options]"),
                ((MODEL, "a"), "expects only a model, but got 'a' too. Fix: "),
                ((MODEL, "--input=a"), "unknown option"),
                ((MODEL, "--top-p=2"), "--top-p"),
                (("./none",), "none")):
            with self.subTest(words=words):
                done = self.run_qlora("chat", *words, code=1)
                self.assertIn(message, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_a_conversation(self):
        done = self.chat(MODEL, lines=[FIRST, "/reset", SECOND, "/undo", FIRST])
        first, second = (self.answer(MODEL, prompt=prompt)
                         for prompt in (FIRST, SECOND))
        self.assertEqual(done.stdout, first + second + first)
        self.assertNotEqual(first, second)

    def test_plain_text(self):
        model = shutil.copytree(MODEL, os.path.join(self.folder, "plain"))
        path = os.path.join(model, "tokenizer_config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        del config["chat_template"]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        done = self.chat(model, lines=[FIRST, SECOND])
        self.assertEqual(done.stdout, self.answer(model, prompt=FIRST)
                         + self.answer(model, prompt=SECOND))
        self.assertIn("the tokenizer has no chat template", done.stderr)

    def test_a_conversation_fills_the_cache(self):
        lines = ["Who wants to meet Lena on Wednesday?"] * 9
        done = self.chat(MODEL, lines=lines, code=1)
        errors = done.stderr.splitlines()
        self.assertIn("but --generation-length allows 64, answer included",
                      errors[-2])
        self.assertRegex(errors[-1], "[1-8] of 9 lines failed")
        self.assertTrue(done.stdout)

    def test_adapters_of_a_chat(self):
        folders = []
        for name, rank in (("one", 2), ("two", 9)):
            self.run_qlora("train", MODEL, DATA, *SMALL,
                           "--learning-rate=0.05", f"--lora-r={rank}",
                           "--save-strategy=no", "--output-dir=run")
            folders.append(shutil.move(os.path.join(self.folder, "run"),
                                       os.path.join(self.folder, name)))
        flags = [MODEL, *("--adapter=" + folder for folder in folders)]
        shown = self.chat(*flags, lines=[
            FIRST, "/reset", "/adapter two", FIRST, "/reset", "/adapter none",
            FIRST, "/reset", "/adapter one", FIRST]).stdout
        one, two, base = (self.answer(*words, prompt=FIRST) for words in (
            [folders[0]], [folders[1]], [MODEL]))
        self.assertEqual(shown, one + two + base + one)
        self.assertEqual(len({one, two, base}), 3)
        alone = self.chat(folders[0], lines=[FIRST]).stdout
        self.assertEqual(alone, one)


if __name__ == "__main__":
    unittest.main()
