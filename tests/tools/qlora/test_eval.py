# SPDX-License-Identifier: MIT
"""qlora eval measures a model, a run's adapter or a program on rows."""

import json
import math
import os
import shlex
import shutil
import unittest

from test_qlora import DATA, DEMO, MODEL, SMALL, QloraTest

VALID = os.path.join(DEMO, "data/valid.jsonl")
FAST = ["--generation-length=128", "--max-new-tokens=4",
        "--compute-dtype=float32", "--base-cache=none", "--json"]


class EvalTest(QloraTest):
    def few(self, count, name="few.jsonl"):
        """Returns a file with the first rows of the validation data."""
        path = os.path.join(self.folder, name)
        with open(VALID, encoding="utf-8") as rows, \
                open(path, "w", encoding="utf-8") as file:
            file.writelines(rows.readlines()[:count])
        return path

    def metrics(self, *words, code=0):
        self.done = self.run_qlora("eval", *words, *FAST, code=code)
        return json.loads(self.done.stdout) if self.done.stdout else None

    def loss(self, *words):
        self.done = self.run_qlora("eval", *words, "--generate=false",
                                   *(flag for flag in FAST
                                     if flag != "--max-new-tokens=4"))
        return json.loads(self.done.stdout)

    def train(self, *words, data=DATA, length=64):
        small = [f"--max-length={length}", *SMALL[1:]]
        self.run_qlora("train", MODEL, data, *small, "--learning-rate=0.05",
                       "--save-strategy=no", "--output-dir=run", *words)
        return os.path.join(self.folder, "run")

    def losses(self, run):
        """Returns the eval_loss of each evaluation of a run."""
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [row["eval_loss"] for row in rows if "eval_loss" in row]

    def words(self, *words):
        """Returns the last command of --dry-run: qlora-data's words, and those
        of its engine."""
        shown = self.run_qlora("eval", *words, "--dry-run").stdout
        words = shlex.split(shown.splitlines()[-1])
        end = words.index("--")
        return words[1:end], words[end + 1:]


class LossTest(EvalTest):
    def test_the_loss_is_that_of_validation(self):
        rows = self.few(30)
        run = self.train("--validation-file", rows, "--eval-steps=2")
        before, *_, after = self.losses(run)
        self.assertGreater(abs(before - after), 0.01)
        for words, expected in (([run], after), ([MODEL], before),
                                ([run, "--adapter=none"], before)):
            got = self.loss(*words, rows)
            self.assertLess(abs(got["loss"] - expected), 1e-5)
            self.assertAlmostEqual(got["perplexity"], math.exp(got["loss"]))
            self.assertEqual(got["rows"], 30)

    def test_early_evaluations_are_left_out(self):
        # --max-steps is 2, and an evaluation before and one after always run.
        for flags, steps in ((["--eval-steps=1"], [0, 1, 2]),
                             (["--eval-steps=1", "--eval-delay=2"], [0, 2])):
            run = self.train("--validation-file", self.few(4), *flags,
                             "--overwrite-output-dir")
            self.assertEqual(len(self.losses(run)), len(steps))

    def test_masks_of_the_run(self):
        rows = self.few(12)
        run = self.train("--validation-file", rows, "--eval-steps=2",
                         "--assistant-only-loss=false", "--load-in-4bit",
                         "--chat-template=chatml", length=128)
        got = self.loss(run, rows)
        self.assertLess(abs(got["loss"] - self.losses(run)[-1]), 1e-5)
        own = self.loss(run, rows, "--assistant-only-loss")
        self.assertLess(own["tokens"], got["tokens"])

    def test_columns_of_the_run(self):
        rows = os.path.join(self.folder, "columns.jsonl")
        with open(rows, "w", encoding="utf-8") as file:
            for number in range(8):
                file.write(json.dumps({"q": f"Say {number}:",
                                       "a": f" {number + 1}"}) + "\n")
        run = self.train("--validation-file", rows, "--eval-steps=2",
                         "--dataset-columns", "prompt=q,completion=a",
                         data=rows)
        got = self.metrics(run, rows)
        self.assertLess(abs(got["loss"] - self.losses(run)[-1]), 1e-5)


class AnswerTest(EvalTest):
    def test_answers(self):
        output = os.path.join(self.folder, "out.jsonl")
        rows = self.few(5)
        run = self.train()
        got = self.metrics(run, rows, "--compare-base", "--output", output)
        self.assertEqual([one["adapter"] for one in got], [None, "run"])
        self.assertEqual([one["rows"] for one in got], [5, 5])
        with open(output, encoding="utf-8") as file:
            written = file.read()
        results = [json.loads(line) for line in written.splitlines()]
        self.assertEqual([row["index"] for row in results], list(range(10)))
        with open(rows, encoding="utf-8") as file:
            answers = [json.loads(line)["messages"][-1]["content"]
                       for line in file]
        self.assertEqual([row["reference"].strip() for row in results[::2]],
                         answers)
        # generate gives the same answers to the same prompts.
        prompts = os.path.join(self.folder, "prompts.jsonl")
        with open(rows, encoding="utf-8") as file, \
                open(prompts, "w", encoding="utf-8") as chats:
            for line in file:
                chats.write(json.dumps(
                    {"messages": json.loads(line)["messages"][:-1]}) + "\n")
        done = self.run_qlora("generate", run, "--input", prompts, *FAST[:-1])
        self.assertEqual([json.loads(line)["output"]
                          for line in done.stdout.splitlines()],
                         [row["prediction"] for row in results[1::2]])
        # Again: nothing is left to do.
        self.assertEqual(self.metrics(run, rows, "--compare-base", "--output",
                                      output), got)
        with open(output, encoding="utf-8") as file:
            self.assertEqual(file.read(), written)

    def test_ranks_and_programs(self):
        rows = self.few(9)
        one = self.metrics(MODEL, rows)
        program = self.words(MODEL, rows, *FAST)[1][1]
        for words in ([MODEL, rows, "--gpus=3"], [program, rows]):
            other = self.metrics(*words)
            self.assertEqual(list(other), list(one))
            for name, value in one.items():  # products may round otherwise
                self.assertLess(abs(other[name] / (value or 1) - (
                    value / (value or 1))), 1e-5, name)

    def test_broken_and_long_rows(self):
        rows = self.few(2)
        with open(rows, "a", encoding="utf-8") as file:
            file.write("{\n")
            file.write(json.dumps({"prompt": "a b " * 99,
                                   "completion": "c"}) + "\n")
        got = self.metrics(MODEL, rows, code=1)
        self.assertEqual((got["rows"], got["broken_rows"]), (2, 2))
        self.assertIn("2 of 4 rows have no result; the first: " + rows + ":3",
                      self.done.stderr)

    def test_own_metrics(self):
        own = os.path.join(self.folder, "own.py")
        with open(own, "w", encoding="utf-8") as file:
            file.write("def compute_metrics(predictions, references):\n"
                       "    return {'count': len(predictions)}\n")
        got = self.metrics(MODEL, self.few(3), "--compute-metrics", own)
        self.assertEqual(got["count"], 3)


class DryRunTest(EvalTest):
    def test_flags(self):
        front, engine = self.words(
            MODEL, VALID, "--max-rows=7", "--use-stemmer", "--output=o.jsonl",
            "--temperature=0.5", "--stop=x", "--gpus=2", "--json",
            "--dataset-columns", "prompt=q", "--row-format", "completion")
        for flag in ("--model=" + MODEL, "--tokenizer", "--max-rows=7",
                     "--use-stemmer=true", "--stop=x",
                     f"--output={self.folder}/o.jsonl",
                     "--temperature=0.5", "--ranks=2", "--json", "prompt=q"):
            self.assertIn(flag, front)
        self.assertNotIn("--max-length", front)
        self.assertEqual(os.path.basename(engine[0]), "qlora-run")
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_template_of_a_run(self):
        run = os.path.join(self.folder, "run")
        os.mkdir(run)
        template = os.path.join(self.folder, "own.jinja")
        copy = os.path.join(run, "chat_template.jinja")

        def write(name, text):
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)

        write(os.path.join(run, "adapter_config.json"), json.dumps(
            {"base_model_name_or_path": MODEL, "target_modules": ["q_proj"]}))
        write(copy, "x")
        write(template, "x")
        settings = os.path.join(run, "config.resolved.yaml")
        for recorded, flags, expected in (
                (None, [], copy), ("", [], None), ("chatml", [], "chatml"),
                (template, [], template),
                (self.folder + "/gone.jinja", [], copy),
                ("chatml", ["--chat-template=phi3"], "phi3")):
            with self.subTest(recorded):
                if recorded is not None:
                    write(settings, json.dumps({"chat_template": recorded}))
                front = self.words(run, VALID, *flags)[0]
                got = (front[front.index("--chat-template") + 1]
                       if "--chat-template" in front else None)
                self.assertEqual(got, expected)

    def test_mistakes(self):
        plain = os.path.join(self.folder, "dora")
        os.mkdir(plain)
        with open(plain + "/adapter_config.json", "w",
                  encoding="utf-8") as file:
            json.dump({"use_dora": True, "base_model_name_or_path": MODEL,
                       "target_modules": ["q_proj"]}, file)
        for words, message in (
                ((), "expects a model and data; usage: qlora eval MODEL DATA"),
                ((MODEL,), "expects a model and data; usage"),
                ((MODEL, VALID, "c"), "got 'c' too; remove it"),
                ((MODEL, "none.jsonl"), "no file or folder 'none.jsonl'"),
                ((MODEL, VALID, "--system=a"), "rows of training data have"),
                ((MODEL, VALID, "--compute-metrics=x.py"), "--compute-metrics: "
                 "there is no file '"),
                ((MODEL, VALID, "--generate=false", "--top-k=3"), "--top-k "
                 "needs answers, but --generate is false"),
                ((MODEL, VALID, "--generate=false", "--compute-metrics", DATA),
                 "--compute-metrics needs answers"),
                ((MODEL, VALID, "--compare-base"), "--compare-base needs"),
                ((plain, VALID, "--compare-base"), "measure the base with"),
                ((MODEL, VALID, "--max-length=3"), "no row is cut, because"),
                ((MODEL, VALID, "--learning-rate=1"), "unknown option")):
            with self.subTest(words=words):
                done = self.run_qlora("eval", *words, code=1)
                self.assertIn(message, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
