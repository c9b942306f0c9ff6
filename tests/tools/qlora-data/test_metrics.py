# SPDX-License-Identifier: MIT
"""Scores of answers: ROUGE, exact match, F1, and a user's own."""

import json
import os
import subprocess
import sys
import unittest

from fixtures import CHATML, TOOL, ToolTest

sys.path.insert(0, os.path.dirname(TOOL))
from qlora_data.metrics import (answer_ids, f1, reference_ids,  # noqa: E402
                                scores_of)
from qlora_data.porter import stem  # noqa: E402
from qlora_data.rouge import rouge, words_of  # noqa: E402

NAMES = ["exact_match", "f1", "rouge1", "rouge2", "rougeL", "rougeLsum"]


class StemTest(unittest.TestCase):
    def test_examples_of_the_paper(self):
        for words in """caresses caress, ponies poni, cats cat, feed feed,
                agreed agre, plastered plaster, bled bled, motoring motor,
                sing sing, conflated conflat, troubled troubl, sized size,
                hopping hop, tanned tan, falling fall, hissing hiss,
                fizzed fizz, failing fail, filing file, happy happi,
                relational relat, conditional condit, rational ration,
                vietnamization vietnam, triplicate triplic, hopeful hope,
                goodness good, revival reviv, adoption adopt, probate probat,
                rate rate, cease ceas, controll control, roll roll""".split(
                    ","):
            word, expected = words.split()
            self.assertEqual(stem(word), expected)

    def test_extensions_of_nltk(self):
        for word, expected in (
                ("sky", "sky"), ("skies", "sky"), ("dying", "die"),
                ("flies", "fli"), ("dies", "die"), ("spied", "spi"),
                ("died", "die"), ("enjoy", "enjoy"), ("fly", "fli"),
                ("geologi", "geolog"), ("hopefulli", "hope"),
                ("succeed", "succeed"), ("as", "as"), ("y2k9s", "y2k9")):
            self.assertEqual(stem(word), expected)


class RougeTest(unittest.TestCase):
    def check(self, reference, answer, stems=False, **expected):
        scores = rouge(reference, answer, stems)
        for name, value in expected.items():
            self.assertAlmostEqual(scores[name], value, 12, name)

    def test_words(self):
        self.assertEqual(words_of("Don't X-RAY 3.14, é日K!", False),
                         ["don", "t", "x", "ray", "3", "14", "k"])
        # Only words of more than three characters have a stem.
        self.assertEqual(words_of("cats his running", True),
                         ["cat", "his", "run"])

    def test_hand_computed(self):
        # Equal words: the, cat, on, the, mat. Equal neighbours: the cat, on
        # the, the mat.
        self.check("the cat sat on the mat", "the cat lay on the mat",
                   rouge1=5 / 6, rouge2=3 / 5, rougeL=5 / 6, rougeLsum=5 / 6)
        # Precision 1, recall 1/4: F = 2 * 1/4 / (5/4).
        self.check("a b c d", "c", rouge1=0.4, rouge2=0, rougeL=0.4)
        # The order counts for rougeL: a subsequence of one or two words.
        self.check("a b c", "c b a", rouge1=1, rouge2=0, rougeL=1 / 3)
        # A repeated word counts as often as both texts have it.
        self.check("a a b", "a a a a", rouge1=2 * 2 / 7, rouge2=2 * 1 / 5)

    def test_lines(self):
        # As lines, both are found; as one text, only one of them.
        self.check("a b\nc d", "c d\na b", rougeL=0.5, rougeLsum=1)
        # The paper's example: the union of w1 w2 and w1 w3 w5 has 4 words.
        self.check("w1 w2 w3 w4 w5", "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5",
                   rougeLsum=2 * 4 / 15)

    def test_empty(self):
        for texts in (("", ""), ("a", ""), ("", "a"), ("日本", "日本"),
                      ("\n", "!\n")):
            self.assertEqual(set(rouge(*texts).values()), {0.0})

    def test_the_stemmer(self):
        self.check("connected cats", "connection cat", rouge1=0)
        self.check("connected cats", "connection cat", True, rouge1=1)
        self.check("connected his", "connection hi", True, rouge1=0.5)


class ScoresTest(unittest.TestCase):
    def test_f1(self):
        for reference, answer, expected in (
                ("The Cat!", "a cat", 1), ("cat dog", "cat", 2 / 3),
                ("x y z", "z z q", 1 / 3), ("", "", 1), ("the", "", 1),
                ("cat", "", 0), ("日本", "日本", 1), ("it's", "its", 1)):
            self.assertAlmostEqual(f1(reference, answer), expected)

    def test_exact_match(self):
        for reference, answer, expected in (
                (" a b", "a b\n", 1), ("a b", "a  b", 0), ("A", "a", 0),
                ("", " ", 1)):
            self.assertEqual(scores_of(reference, answer, False)[
                "exact_match"], expected)

    def test_end_tokens(self):
        self.assertEqual(reference_ids([5, 6, 2, 7], {2, 3}), [5, 6])
        self.assertEqual(reference_ids([5, 6], {2}), [5, 6])
        self.assertEqual(answer_ids([5, 2], "stop"), [5])
        self.assertEqual(answer_ids([5, 2], "length"), [5, 2])


class CommandTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.output = self.path("predictions.jsonl")

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def row(self, prompt, output, reference, finish="stop"):
        return {"prompt_ids": self.ids(prompt), "output_ids": self.ids(output),
                "reference_ids": self.ids(reference), "finish_reason": finish}

    def run_metrics(self, *flags, code=0):
        done = subprocess.run(
            [sys.executable, TOOL, "metrics", "--model", self.model, "--input",
             self.data, *flags], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.errors = done.stderr
        return json.loads(done.stdout) if done.stdout else None

    def refused(self, *flags):
        self.assertIsNone(self.run_metrics(*flags, code=1))
        self.assertEqual(self.errors.count("\n"), 1, self.errors)
        return self.errors

    def own(self, text):
        with open(self.path("own.py"), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path("own.py")

    def test_means_and_predictions(self):
        self.write_data(
            self.row("<s>say<|im_end|>", " hello<|im_end|>",
                     "hello<|im_end|>\n"),
            self.row("say", "hello world", "hello user", "length"))
        summary = self.run_metrics("--output", self.output)
        self.assertEqual(summary["rows"], 2)
        for name, value in (("exact_match", 0.5), ("f1", 0.75), ("stopped", .5),
                            ("rouge1", 0.75), ("rouge2", 0), ("rougeL", 0.75)):
            self.assertAlmostEqual(summary[name], value, 12, name)
        with open(self.output, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertEqual(list(rows[0]), ["index", "prompt", "prediction",
                                         "reference", *NAMES, "finish_reason"])
        self.assertEqual([rows[0][name] for name in (
            "index", "prompt", "prediction", "reference", "exact_match",
            "finish_reason")], [0, "<s>say<|im_end|>", " hello", "hello", 1,
                                "stop"])
        self.assertEqual((rows[1]["prediction"], rows[1]["finish_reason"]),
                         ("hello world", "length"))

    def test_end_tokens_of_the_model(self):
        number = self.ids("the")[0]
        self.write_model("generation_config.json",
                         json.dumps({"eos_token_id": number}))
        self.write_data(self.row("a", "hello the", "hello the user"))
        self.run_metrics("--output", self.output)
        with open(self.output, encoding="utf-8") as file:
            self.assertEqual(json.loads(file.read())["reference"][:6],
                             "hello ")

    def test_own_metrics(self):
        path = self.own("from dataclasses import dataclass\n"
                        "import helper\n"
                        "@dataclass\nclass A:\n    x: 'int' = 1\n"
                        "def compute_metrics(predictions, references):\n"
                        "    print('printed', helper.X)\n"
                        "    assert predictions == ['hello', 'user']\n"
                        "    return {'answers': len(references), 'x': 0.25}\n")
        with open(self.path("helper.py"), "w", encoding="utf-8") as file:
            file.write("X = 3\n")
        self.write_data(self.row("a", "hello</s>", "hello"),
                        self.row("a", "user</s>", "x"))
        summary = self.run_metrics("--compute-metrics", path)
        self.assertEqual((summary["answers"], summary["x"]), (2, 0.25))
        self.assertEqual(self.errors, "printed 3\n")

    def test_mistakes_in_own_metrics(self):
        self.write_data(self.row("a", "hello</s>", "hello"))
        begin = "def compute_metrics(predictions, references):\n    "
        for text, message in (
                ("x = 1\n", "own.py: has no function compute_metrics; define"),
                ("\ndef (:\n", "own.py:2: cannot be loaded: SyntaxError"),
                ("\nimport none_such\n", "own.py:2: cannot be loaded: "
                 "ModuleNotFoundError: No module named 'none_such'"),
                (begin + "return 1 / 0\n", "own.py:2: compute_metrics failed: "
                 "ZeroDivisionError: division by zero; correct"),
                ("import json\n" + begin + "json.loads('x')\n",
                 "own.py:3: compute_metrics failed: JSONDecodeError"),
                (begin + "raise SystemExit(3)\n", "own.py:2: compute_metrics "
                 "failed: SystemExit: 3"),
                (begin + "return 3\n", "expects to return a dict, but got a "
                 "number"),
                (begin + "return {'a': 'b'}\n", "returned 'b' as 'a', which is "
                 "no finite number"),
                (begin + "return {'a': float('nan')}\n", "returned nan as 'a'"),
                (begin + "return {'f1': 1}\n", "returned 'f1', which is no "
                 "name or that of another metric"),
                (begin + "return {3: 1}\n", "returned 3, which is no name")):
            with self.subTest(text):
                self.assertIn(message, self.refused(
                    "--compute-metrics", self.own(text)))
        self.assertIn("cannot be read: No such file", self.refused(
            "--compute-metrics", self.path("none.py")))

    def test_mistakes_in_rows(self):
        row = self.row("a", "b", "c")
        for change, message in (
                ({"output_ids": "x"}, "'output_ids' expects a list of token"),
                ({"prompt_ids": [1, -1]}, "'prompt_ids' expects a list of"),
                ({"reference_ids": None}, "'reference_ids' expects a list"),
                ({"finish_reason": "x"}, "'finish_reason' expects stop or")):
            self.write_data(row, {**row, **change})
            self.assertIn(f"{self.data}:2: {message}", self.refused())
        self.write_data("")
        self.assertIn("malformed JSON", self.refused())
        open(self.data, "w", encoding="utf-8").close()
        self.assertIn("has no rows", self.refused())
        os.remove(self.data)
        self.assertIn("cannot be read: No such file", self.refused())


if __name__ == "__main__":
    unittest.main()
