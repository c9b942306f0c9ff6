# SPDX-License-Identifier: MIT
"""Every command has its own --help."""

import os
import re
import unittest

from test_qlora import HERE, QloraTest

README = os.path.normpath(os.path.join(HERE, "../../../README.md"))


class HelpTest(QloraTest):
    def commands(self):
        text = self.run_qlora("--help").stdout.split("\n\n")[1]
        return [line.split()[0] for line in text.splitlines()]

    def test_every_command(self):
        commands = self.commands()
        self.assertEqual(len(commands), 16)
        for command in commands:
            with self.subTest(command=command):
                shown = self.run_qlora(command, "--help").stdout
                self.assertTrue(shown.startswith(f"usage: qlora {command}"))
                self.assertIn("\nexample:\n  ", shown)
                self.assertEqual(self.run_qlora(command, "-h").stdout, shown)
                full = self.run_qlora(command, "--help-all").stdout
                for line in (shown + full).splitlines():
                    self.assertLessEqual(len(line), 80, line)

    def test_a_command_lists_only_options_that_it_takes(self):
        for command in self.commands():
            full = self.run_qlora(command, "--help-all").stdout
            # These belong to trainings.
            has = {flag for flag in ("--learning-rate", "--push-to-hub")
                   if f"  {flag}" in full}
            trains = command in ("train", "plan", "check", "show-data", "data")
            self.assertEqual(len(has), 2 if trains else 0, command)
            if not trains:
                done = self.run_qlora(command, "--learning-rate=1", code=1)
                self.assertIn("--learning-rate", done.stderr)

    def test_train_shows_the_options_of_the_readme(self):
        with open(README, encoding="utf-8") as file:
            yaml = re.search(r"```yaml\n(model_name_or_path:.*?)```",
                             file.read(), re.DOTALL)[1]
        names = re.findall(r"^(\w+):", yaml, re.MULTILINE)
        self.assertGreater(len(names), 15)
        shown = self.run_qlora("train", "--help").stdout
        listed = self.run_qlora("--help").stdout.split()
        for name in names:
            flag = "--" + name.replace("_", "-")
            self.assertRegex(shown, rf"(?m)^  (-\w, )?{flag}\b")
            self.assertIn(flag, listed)

    def test_help_about_a_command(self):
        for command in ("export", "compare"):
            self.assertEqual(self.run_qlora("help", command).stdout,
                             self.run_qlora(command, "--help").stdout)


if __name__ == "__main__":
    unittest.main()
