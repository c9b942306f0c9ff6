# SPDX-License-Identifier: MIT
"""Tests completion in real shells: bash, and fish and zsh if installed."""

import re
import shutil
import subprocess
import unittest

from test_qlora import QloraTest

# compadd, compset and _files are builtins and functions of a line editor, so
# these replace them: they print what is offered.
ZSH = r"""
compdef() { : }
compadd() { shift; print -l -- $@ }
compset() { PREFIX=${PREFIX#*=} }
_files() { print FILES }
source /dev/stdin <<< "$SCRIPT"
words=("$@"); CURRENT=$#; PREFIX=${@[-1]}
_qlora
"""


class CompletionTest(QloraTest):
    """`offered(words)` completes the last word of a command line."""

    def bash(self, *words, breaks=" \t\n=:"):
        script = self.run_qlora("completion", "bash").stdout
        shown = subprocess.run(
            ["bash", "-c", script + 'COMP_WORDS=("$@"); COMP_CWORD=$(($#-1));'
             '_qlora; printf "%s\\n" "${COMPREPLY[@]}"', "bash", "qlora",
             *words], capture_output=True, text=True, check=True,
            cwd=self.folder)
        return shown.stdout.split()

    def zsh(self, *words):
        script = self.run_qlora("completion", "zsh").stdout
        shown = subprocess.run(
            ["zsh", "-f", "-c", ZSH, "zsh", "qlora", *words],
            capture_output=True, text=True, check=True, cwd=self.folder,
            env={**self.environment, "SCRIPT": script})
        # The line editor drops words with another prefix.
        prefix = words[-1].split("=")[-1]
        return [word for word in shown.stdout.split()
                if word.startswith(prefix) or word == "FILES"]

    def fish(self, *words):
        script = self.run_qlora("completion", "fish").stdout
        line = " ".join(["qlora", *words])
        shown = subprocess.run(
            ["fish", "--no-config", "-c", "source; complete -C '" + line
             + "'"], input=script, capture_output=True, text=True, check=True,
            cwd=self.folder, env={**self.environment, "HOME": self.folder})
        # With --name=value, fish offers the whole word.
        return [line.split("\t")[0].split("=")[-1]
                for line in shown.stdout.splitlines()]

    def shells(self):
        for name in ("bash", "zsh", "fish"):
            if shutil.which(name):
                with self.subTest(shell=name):
                    yield getattr(self, name)

    def test_commands(self):
        for offered in self.shells():
            self.assertEqual(offered("tr"), ["train"])
            self.assertIn("compare", offered("com"))
            self.assertIn("show-data", offered("s"))

    def test_each_command_has_its_own_options(self):
        for offered in self.shells():
            self.assertEqual(sorted(offered("train", "--lora-al")),
                             ["--lora-alpha", "--lora-alpha-pattern"])
            self.assertEqual(offered("memory", "--bas"), ["--base"])
            self.assertEqual(offered("memory", "--learning"), [])
            self.assertEqual(offered("report", "--lora"), [])
            self.assertIn("--learning-rate", offered("plan", "--learning"))

    def test_values(self):
        for offered in self.shells():
            self.assertEqual(offered("train", "--eval-strategy", "e"),
                             ["epoch"])
            self.assertEqual(sorted(offered("train", "--load-in-4bit", "")),
                             ["false", "true"])
            self.assertEqual(offered("memory", "--target", "cu"), ["cuda"])

    def test_values_after_an_equals_sign(self):
        self.assertEqual(self.bash("train", "--eval-strategy", "=", "e"),
                         ["epoch"])
        self.assertEqual(sorted(self.bash("train", "--load-in-4bit", "=")),
                         ["false", "true"])
        # Without = in COMP_WORDBREAKS, it is one word.
        self.assertEqual(self.bash("train", "--eval-strategy=e"),
                         ["--eval-strategy=epoch"])
        for offered in self.shells():
            if offered != self.bash:
                self.assertEqual(offered("train", "--eval-strategy=e"),
                                 ["epoch"])

    def test_files(self):
        with open(self.folder + "/data.jsonl", "w", encoding="utf-8"):
            pass
        for words in (["train", "da"], ["train", "--train-file", "da"],
                      ["train", "--lora-r", "2", "da"]):
            for offered in self.shells():
                self.assertIn(offered(*words), (["data.jsonl"], ["FILES"]))
        for offered in self.shells():
            self.assertEqual(offered("info", "da"), [])

    def test_help_and_completion_take_words(self):
        for offered in self.shells():
            self.assertIn("memory", offered("help", "me"))
            self.assertIn("hub", offered("help", "h"))
            self.assertEqual(offered("completion", "f"), ["fish"])

    def test_the_script_of_fish(self):
        """Each line is a command of fish with balanced quotes, also where fish
        is not installed."""
        lines = self.run_qlora("completion", "fish").stdout.splitlines()
        options = [line for line in lines if line.startswith("complete ")]
        self.assertGreater(len(options), 200)
        for line in options:
            self.assertRegex(line, r"^complete -c qlora -n '[^']*'( -\S+| "
                             r"'[^']*'| [a-z][\w-]*| -a [\w-]+)*$")
        for shell in ("bash", "zsh"):
            if shutil.which(shell):
                script = self.run_qlora("completion", shell).stdout
                subprocess.run([shell, "-n"], input=script, text=True,
                               check=True)
                self.assertFalse(re.search(r"\{\{|\}\}", script))


if __name__ == "__main__":
    unittest.main()
