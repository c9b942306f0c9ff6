# SPDX-License-Identifier: MIT
"""What a newcomer tries in the first hour, and what qlora answers. Points with
a better home have their tests there."""

import json
import os
import subprocess
import sys
import unittest

from test_qlora import DATA, HERE, MODEL, SMALL, QloraTest

PYTHON = os.path.normpath(os.path.join(HERE, "../../../tools/python"))


class NewcomerTest(QloraTest):
    def write(self, name, *rows):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        return path

    def test_roles_of_sharegpt_in_messages(self):
        """Messages with the roles human and gpt are refused with the line and
        the role, instead of leaving all rows out."""
        path = self.write("rows.jsonl", {"messages": [
            {"role": "human", "content": "Hi"},
            {"role": "gpt", "content": "Hello"}]})
        done = self.run_qlora("data", path, "--show", "3", "--model", MODEL,
                              code=1)
        self.assertIn("rows.jsonl:1: messages[0] has the role 'human'",
                      done.stderr)
        self.assertIn("write the role user or assistant", done.stderr)

    def test_options_of_other_command_lines(self):
        """The model is an option in TRL's commands, and some of their options
        are keys of files here."""
        words = ["--model_name_or_path", MODEL, "--train_file", DATA]
        done = self.run_qlora("train", *words, "--dry-run")
        self.assertIn(f"--train-file={DATA}", done.stdout)
        done = self.run_qlora("train", *words, "--use_peft", code=1)
        self.assertIn("'--use_peft' is a key of other tools' files. Fix: write "
                      "it into a YAML file", done.stderr)
        done = self.run_qlora("train", *words, "--hub-token=x", code=1)
        self.assertIn("hf auth login", done.stderr)

    def test_data_is_another_spelling_of_show_data(self):
        words = ["--show", "2", "--max-length", "32"]
        shown = self.run_qlora("data", DATA, "--model", MODEL, *words).stdout
        self.assertEqual(shown.count("\nloss  ") + shown.startswith("loss"), 2)
        self.assertEqual(shown, self.run_qlora("show-data", MODEL, DATA,
                                               *words).stdout)
        self.assertEqual(shown, self.run_qlora("data", MODEL, DATA,
                                               *words).stdout)
        done = self.run_qlora("data", DATA, *words, code=1)
        self.assertIn("needs a model", done.stderr)

    def test_a_report_says_what_a_run_did(self):
        self.run_qlora("train", MODEL, DATA, *SMALL, "--output-dir=out",
                       "--logging-steps=1", "--save-strategy=no")
        lines = self.run_qlora("report", "out").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         ["run", "data", "steps", "loss", "time", "report"])
        self.assertIn("LoRA r 2, alpha 8", lines[0])
        self.assertRegex(lines[2], r"2 steps, 0\.\d+ epochs, \d+ tokens$")
        self.assertRegex(lines[3], r"\d\.\d{4} at the first .* \d\.\d{4} at ")
        self.assertRegex(lines[4], r"0:00:\d\d, peak memory \S+ MiB$")
        self.assertEqual(lines[5], "report written to out/report.html")
        # A run that was killed has no last line.
        with open(self.folder + "/out/metrics.jsonl", encoding="utf-8") as file:
            kept = file.read().splitlines(keepends=True)[:-1]
        with open(self.folder + "/out/metrics.jsonl", "w",
                  encoding="utf-8") as file:
            file.writelines(kept)
        self.assertIn("has not ended", self.run_qlora("report", "out").stdout)
        done = self.run_qlora("report", "none", code=1)
        self.assertIn("no run in 'none'", done.stderr)

    def test_compare_names_the_options_that_differ_first(self):
        for rank in "23":
            self.run_qlora("train", MODEL, DATA, *SMALL, f"--lora-r={rank}",
                           f"--output-dir=r{rank}", "--save-strategy=no")
        lines = self.run_qlora("compare", "r2", "r3").stdout.splitlines()
        self.assertEqual(lines[0].split(), ["lora_r", "2", "|", "3"])
        self.assertEqual(lines[1], "")
        self.assertIn("no option differs",
                      self.run_qlora("compare", "r2", "r2").stdout)

    def test_the_log_and_the_card_of_dpo_name_it(self):
        rows = [{"prompt": f"say {word} ", "chosen": word, "rejected": "no"}
                for word in ("a", "b", "c", "d")]
        path = self.write("pairs.jsonl", *rows)
        done = self.run_qlora("train", MODEL, path, *SMALL, "--rl=dpo",
                              "--beta=0.2", "--output-dir=out",
                              "--logging-steps=1")
        self.assertRegex(done.stdout, r"(?m)^ +step +epoch +loss +acc +margin "
                         r"+grad norm +lr +ms/step +time left$")
        self.assertRegex(done.stdout, r"(?m)^ +2/2 +2\.00 +0\.\d{4} +[01]\.\d\d"
                         r" +\S+ +\S+ +\S+ +\S+ +0:00:\d\d$")
        with open(self.folder + "/out/README.md", encoding="utf-8") as file:
            card = file.read()
        self.assertIn("on preferences (`--rl dpo`).", card)
        for line in ("  - dpo", "| rl | dpo |", "| beta | 0.2 |",
                     "| loss\\_type | "):
            self.assertIn("\n" + line, card)

    def python(self, text):
        return subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True,
            cwd=self.folder, env={**self.environment, "PYTHONPATH": PYTHON},
            check=False)

    def test_an_adapter_instead_of_a_model(self):
        """The file of an adapter is told at once to be one."""
        os.mkdir(self.folder + "/run")
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            self.write("run/" + name, {"base_model_name_or_path": "base"})
        for name in ("run", "run/adapter_model.safetensors"):
            done = self.run_qlora("train", name, DATA, code=1)
            self.assertIn("run' holds an adapter, not a model; give its base "
                          "model, 'base', and the adapter with "
                          "--adapter-name-or-path ", done.stderr)

    def test_unequal_indentation_of_a_yaml_file(self):
        """An error of YAML's syntax names the indentation that causes it."""
        for text, message in (
                ("datasets:\n- path: a\n type: alpaca\n",
                 "t.yaml:3: end of sequence not found; line 3 is indented by "
                 "1, line 2 by 0. Fix: indent keys of one level alike"),
                ("model: x\n\n# a comment\n  seed: 3\n",
                 "; line 4 is indented by 2, line 1 by 0. Fix: "),
                ("model: {x\n", "t.yaml:")):
            with open(self.folder + "/t.yaml", "w", encoding="utf-8") as file:
                file.write(text)
            done = self.run_qlora("train", "t.yaml", code=1)
            self.assertIn(message, done.stderr)
            self.assertEqual("Fix: indent" in done.stderr, "line" in message)

    def test_rows_in_python(self):
        """Rows instead of files are refused in Python's words."""
        done = self.python(
            f"import qlora; qlora.train({MODEL!r}, [{{'text': 'a'}}])")
        self.assertIn("TypeError: train_file: expects paths of files or "
                      "folders, but got a dict", done.stderr)

    def test_a_python_without_packages(self):
        """The package does not force its own Python on qlora-data if that lacks
        the packages."""
        done = self.python(
            "import importlib.util as u\n"
            "from qlora import _run\n"
            "print('QLORA_PYTHON' in _run._environment())\n"
            "u.find_spec = lambda name: None\n"
            "print('QLORA_PYTHON' in _run._environment())")
        self.assertEqual(done.stdout.split(), ["True", "False"], done.stderr)


if __name__ == "__main__":
    unittest.main()
