# SPDX-License-Identifier: MIT
"""`qlora-data evaluate` with an engine that gives prepared tokens."""

import json
import math
import os
import subprocess
import sys
import unittest

from fixtures import CHATML, TOOL, chat
from test_generate import ENGINE, GenerateTest

HERE = os.path.dirname(os.path.abspath(__file__))


class EvaluateTest(GenerateTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.script["scores"] = True

    def answer_rows(self, *texts, variants=1):
        """Lets the engine answer rows with these texts."""
        # Answers have even ids, scores odd ones.
        self.answers(*(text for text in texts for _ in range(2 * variants)))

    def command(self, *flags):
        with open(self.path("script.json"), "w", encoding="utf-8") as file:
            json.dump(self.script, file)
        return [sys.executable, TOOL, "evaluate", "--model", self.model,
                "--tokenizer", self.model, "--input", self.data, *flags, "--",
                *ENGINE, self.path("script.json")]

    def evaluate(self, *rows, flags=(), code=0):
        """Returns the metrics."""
        self.write_data(*rows)
        text = self.generate("--json", *flags, code=code)
        return json.loads(text) if text else None

    def refused_rows(self, *rows, flags=()):
        self.evaluate(*rows, flags=flags, code=1)
        return self.errors

    def loss_of(self, rows):
        """Returns the loss that the fake engine gives rows of labels, and the
        number of tokens in it."""
        losses = [(label % 7) / 10 for labels in rows for label in labels
                  if label != -100]
        return math.fsum(losses) / len(losses), len(losses)

    def labels(self, *rows):
        """Returns the labels that training has."""
        data, output = self.data, self.output
        self.data = self.path("training.jsonl")
        self.output = self.path("training.safetensors")
        labels = self.convert(*rows).labels
        self.data, self.output = data, output
        return labels


TALKS = [{"messages": chat(("user", "say"), ("assistant", "hello world"))},
         {"messages": chat(("system", "user"), ("user", "a"),
                           ("assistant", "the user"), ("user", "b"),
                           ("assistant", "say é"))}]


class RowsTest(EvaluateTest):
    def test_a_conversation(self):
        self.answer_rows("hello user<|im_end|>", "say é<|im_end|>")
        metrics = self.evaluate(*TALKS, flags=["--output", self.output])
        results = self.results()
        self.assertEqual([row["prompt"] for row in results], [
            "<|im_start|>user\nsay<|im_end|>\n<|im_start|>assistant\n",
            "<|im_start|>system\nuser<|im_end|>\n<|im_start|>user\na<|im_end|>"
            "\n<|im_start|>assistant\nthe user<|im_end|>\n<|im_start|>user\nb"
            "<|im_end|>\n<|im_start|>assistant\n"])
        self.assertEqual([(row["prediction"], row["reference"],
                           row["exact_match"]) for row in results],
                         [("hello user", "hello world", 0),
                          ("say é", "say é", 1)])
        loss, tokens = self.loss_of(self.labels(*TALKS))
        self.assertAlmostEqual(metrics["loss"], loss, 12)
        self.assertAlmostEqual(metrics["perplexity"], math.exp(loss), 12)
        for name, value in (("rows", 2), ("tokens", tokens), ("stopped", 1),
                            ("exact_match", 0.5), ("rouge1", 0.75)):
            self.assertEqual(metrics[name], value, name)
        with open(self.path("answers.metrics.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file), metrics)

    def test_requests(self):
        self.answer_rows("hello")
        self.write_model("generation_config.json", json.dumps(
            {"do_sample": True, "temperature": 0.9, "top_k": 5,
             "eos_token_id": 77}))
        self.evaluate(*TALKS, flags=["--seed=3", "--max-new-tokens=4"])
        by_id = {one["id"]: one for one in self.requests()}
        self.assertEqual(sorted(by_id), [0, 1, 2, 3])
        answer, score = by_id[2], by_id[3]
        self.assertEqual((answer["temperature"], answer["top_k"],
                          answer["seed"], answer["max_new_tokens"]),
                         (0, 5, 4, 4))
        self.assertEqual(answer["eos_token_id"], sorted(
            [77, *self.tokens("</s><|im_end|>")]))
        self.assertEqual((score["prompt_logprobs"], score["max_new_tokens"]),
                         (True, 0))
        self.assertTrue(self.decode(score["input_ids"]).endswith(
            "assistant\nsay é<|im_end|>\n"))
        self.assertEqual(score["input_ids"][:len(answer["input_ids"])],
                         answer["input_ids"])

    def test_prompt_and_completion(self):
        self.make_model()
        self.script["capacity"] = 200
        self.answer_rows(" world</s>", "x</s>")
        rows = [{"prompt": "hello", "completion": " world"},
                {"instruction": "say", "output": "user"}]
        metrics = self.evaluate(*rows, flags=["--output", self.output])
        first, second = self.results()
        self.assertEqual((first["prompt"], first["reference"]),
                         ("hello", " world"))
        self.assertTrue(second["prompt"].endswith("### Response:\n"))
        self.assertEqual(metrics["exact_match"], 0.5)
        self.assertAlmostEqual(metrics["loss"],
                               self.loss_of(self.labels(*rows))[0], 12)

    def test_columns_and_rules_of_training(self):
        self.make_model()
        self.answer_rows("user")
        metrics = self.evaluate(
            {"question": "say", "answer": "user"}, flags=[
                "--column=prompt=question", "--column=completion=answer",
                "--completion-only-loss=false", "--output", self.output])
        # All tokens but the first are in the loss.
        self.assertEqual(metrics["tokens"], len(self.tokens("sayuser</s>")) - 1)
        self.assertIn("unrecognized arguments: --max-length",
                      self.refused_rows({"a": 1}, flags=["--max-length=3"]))

    def test_no_answers(self):
        metrics = self.evaluate(*TALKS, flags=["--generate=false", "--output",
                                               self.output])
        self.assertEqual(list(metrics), ["rows", "loss", "perplexity",
                                         "tokens"])
        self.assertTrue(all(one["id"] % 2 for one in self.requests()))
        self.assertEqual(list(self.results()[0]), ["index", "loss", "tokens"])

    def test_max_rows(self):
        self.answer_rows("hello")
        self.assertEqual(self.evaluate(*TALKS * 3, flags=["--max-rows=4"])
                         ["rows"], 4)

    def test_stop_strings_and_stopped(self):
        self.answer_rows("hello world the user", "hello world")
        metrics = self.evaluate(*TALKS, flags=["--stop=the", "--output",
                                               self.output])
        self.assertEqual([row["prediction"] for row in self.results()],
                         ["hello world ", "hello world"])
        self.assertEqual(metrics["stopped"], 0.5)

    def test_broken_rows(self):
        self.answer_rows("hello")
        long = {"messages": chat(("user", "a " * 99), ("assistant", "b"))}
        rows = [TALKS[0], "{", {"messages": chat(("user", "a"))}, long,
                {"name": 3}, TALKS[1]]
        self.write_data(*rows)
        shown = json.loads(self.generate("--json", "--output", self.output,
                                         code=1))
        self.assertEqual((shown["rows"], shown["broken_rows"]), (2, 3))
        results = self.results()
        self.assertEqual([row["index"] for row in results], list(range(5)))
        for row, message in zip(results, (
                "", f"{self.data}:2: malformed JSON", f"{self.data}:4: the row "
                "has ", f"{self.data}:5: the shape of this row", "")):
            self.assertIn(message, row.get("error", ""))
            self.assertEqual("error" in row, bool(message))
        warning, error = self.errors.splitlines()
        self.assertIn(f"{self.data}:3: 1 rows left out because none", warning)
        self.assertIn("3 of 5 rows have no result; the first: " + self.data,
                      error)

    def test_no_rows(self):
        self.assertIn("has no row with a token in the loss",
                      self.refused_rows({"messages": chat(("user", "a"))}))
        self.assertIn("1 of 1 rows have no result", self.refused_rows("{"))

    def test_own_metrics(self):
        self.answer_rows("hello")
        with open(self.path("own.py"), "w", encoding="utf-8") as file:
            file.write("def compute_metrics(predictions, references):\n"
                       "    return {'both': len(predictions + references)}\n")
        flags = ["--compute-metrics", self.path("own.py")]
        self.assertEqual(self.evaluate(*TALKS, flags=flags)["both"], 4)
        os.remove(self.script["log"])
        os.remove(self.path("own.py"))
        self.assertIn("cannot be read", self.refused_rows(*TALKS, flags=flags))
        self.assertFalse(os.path.exists(self.script["log"]))

    def test_the_table(self):
        self.answer_rows("hello world<|im_end|>")
        self.write_data(TALKS[0])
        lines = self.generate().splitlines()
        self.assertEqual(lines[0].split(), ["rows", "1"])
        self.assertEqual(lines[1].split(), ["exact_match", "100.0", "%"])
        self.assertEqual(len(set(map(len, lines))), 1)


class ResumeTest(EvaluateTest):
    def test_resuming(self):
        self.answer_rows("hello", "world", "the", "user")
        rows = [{"messages": chat(("user", letter), ("assistant", letter * 2))}
                for letter in "abcd"]
        flags = ["--output", self.output]
        whole = self.evaluate(*rows, flags=flags)
        with open(self.output, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        for kept in (b"", lines[0], lines[0] + lines[1][:-1], b"".join(lines)):
            os.remove(self.script["log"])
            with open(self.output, "wb") as file:
                file.write(kept)
            self.assertEqual(self.evaluate(*rows, flags=flags), whole)
            with open(self.output, "rb") as file:
                self.assertEqual(file.read(), b"".join(lines))
            if kept != b"".join(lines):
                self.assertEqual(len(self.requests()),
                                 2 * (4 - kept.count(b"\n")))

    def test_results_of_other_rows(self):
        self.answer_rows("hello")
        flags = ["--output", self.output]
        self.evaluate(*TALKS, flags=flags)
        message = "is no result of row 0 of '"
        self.assertIn(message, self.refused_rows(*TALKS[::-1], flags=flags))
        self.assertIn(message, self.refused_rows(
            *TALKS, flags=[*flags, "--generate=false"]))
        self.assertIn("is no result of row 1 of '",
                      self.refused_rows(TALKS[0], flags=flags))


class VariantsTest(EvaluateTest):
    def test_several_adapters_and_the_base(self):
        self.script["adapters"] = ["one", "two"]
        self.answers(*(text for text in ("say", "hello world", "x")
                       for _ in range(2)))
        flags = ["--output", self.output, "--compare-base"]
        metrics = self.evaluate(TALKS[0], flags=flags)
        self.assertEqual([(one["adapter"], one["exact_match"])
                          for one in metrics],
                         [(None, 0), ("one", 1), ("two", 0)])
        self.assertEqual([(row["index"], row["adapter"])
                          for row in self.results()],
                         [(0, None), (1, "one"), (2, "two")])
        requests = self.requests()
        self.assertEqual({one["id"]: one["adapter"] for one in requests},
                         {0: None, 1: None, 2: "one", 3: "one", 4: "two",
                          5: "two"})
        self.assertEqual({one["seed"] for one in requests if "seed" in one},
                         {0})
        self.assertEqual([one["adapter"] for one in self.evaluate(TALKS[0])],
                         ["one", "two"])
        head = self.generate().splitlines()[0]
        self.assertEqual(head.split(), ["one", "two"])

    def test_one_adapter(self):
        self.script["adapters"] = ["one"]
        self.answer_rows("hello")
        self.assertNotIn("adapter", self.evaluate(TALKS[0]))
        self.assertNotIn("adapter", self.requests()[0])

    def test_ranks(self):
        self.answer_rows(*"abcdefgh")
        one = self.evaluate(*TALKS * 4)
        self.assertEqual(self.evaluate(*TALKS * 4, flags=["--ranks=3"]), one)


if __name__ == "__main__":
    unittest.main()
