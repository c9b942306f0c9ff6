# SPDX-License-Identifier: MIT
"""All problems of a configuration file are listed in one run."""

import unittest

import test_foreign_configs

HEAD = test_foreign_configs.WordsTest.HEAD


class ProblemsTest(test_foreign_configs.ForeignTest):
    def problems(self, text, command="train"):
        done = self.run_qlora(command, self.write(text), code=1)
        self.assertEqual(done.stdout, "")
        lines = done.stderr.splitlines()
        for line in lines[1:]:
            self.assertRegex(line, r"train\.yaml:\d+: '\w+': \w")
        return lines[0], [line.split("train.yaml:")[1].split(":")[0]
                          for line in lines[1:]]

    def test_of_other_tools(self):
        text = (HEAD + "use_galore: true\nlora_r: sixteen\nsome_key: 3\n"
                "quantization_bit: 5\nlearning_rate: fast\n")
        for command in ("train", "check", "plan"):
            title, lines = self.problems(text, command)
            self.assertIn("train.yaml' has 5 problems:", title)
            self.assertEqual(lines, ["3", "4", "5", "6", "7"])

    def test_of_our_own_options(self):
        title, lines = self.problems("model: x\nlora_r: none\nfoo: 3\n"
                                     "r: 4\nlearning_rate: 1e-3\nlr: 2e-3\n")
        self.assertIn("has 3 problems:", title)
        self.assertEqual(lines, ["2", "3", "6"])

    def test_one_problem_has_one_line(self):
        title, lines = self.problems(HEAD + "use_galore: true\n")
        self.assertIn("train.yaml:3: 'use_galore': configures an unsupported "
                      "optimizer", title)
        self.assertEqual(lines, [])


if __name__ == "__main__":
    unittest.main()
