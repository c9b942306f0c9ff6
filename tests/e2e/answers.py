#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""answers.py --tools build/bin: answers during training.

Trains the demo for some steps with --predict-with-generate. Losses and adapter
are those of a run without it. The answers after training are those of `qlora
generate` with the adapter. One rank, two data-parallel ranks and two fsdp ranks
write the same file of answers, and a resumed run writes those of a complete
one. The best model is the one with the best metric of answers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from checkpoint_runs import DEMO, metrics_of

MODEL = os.path.join(DEMO, "model")
ROWS, STEPS, EVERY, NEW_TOKENS = 11, 18, 6, 24
SCORES = ("exact_match", "f1", "rouge1", "rouge2", "rougeL", "rougeLsum",
          "stopped")


class Failure(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failure(" ".join(str(part) for part in what))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Test:
    def __init__(self, tools, work):
        self.tools, self.work = tools, work
        self.environment = {**os.environ, "XDG_CACHE_HOME": work}
        self.valid = self.path("valid.jsonl")
        rows = rows_of(os.path.join(DEMO, "data", "valid.jsonl"))[:ROWS - 1]
        # The reference is the last turn.
        rows.append({"messages": rows[0]["messages"] + rows[1]["messages"]})
        self.rows = rows
        self.write(self.valid, rows)

    def path(self, *names):
        return os.path.join(self.work, *names)

    @staticmethod
    def write(path, rows):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def qlora(self, *words, code=0):
        done = subprocess.run(
            [os.path.join(self.tools, "qlora"), *words], capture_output=True,
            text=True, env=self.environment, check=False)
        check(done.returncode == code, "qlora", *words, "exited",
              done.returncode, done.stdout, done.stderr)
        return done

    def train(self, name, *flags, code=0):
        """Returns the output folder, and what the run printed."""
        out = self.path(name)
        done = self.qlora(
            "train", os.path.join(DEMO, "train.yaml"), "--validation-file",
            self.valid, "--max-length", "128", "--max-steps", str(STEPS),
            "--eval-steps", str(EVERY), "--save-steps", str(EVERY),
            "--lora-dropout", "0.1", "--neftune-noise-alpha", "5",
            "--warmup-steps", "2", "--threads", "1", "--output-dir", out,
            *flags, code=code)
        return out, done.stdout + done.stderr

    def answer(self, name, *flags):
        return self.train(name, "--predict-with-generate",
                          f"--generation-max-new-tokens={NEW_TOKENS}",
                          "--generation-batch=3", *flags)

    def evaluate(self, name, adapter, *flags):
        """Returns the answers of an adapter, without training."""
        out, _ = self.answer(name, "--num-train-epochs", "0", "--max-steps",
                             "-1", "--adapter-name-or-path", adapter, *flags)
        return read(answers_in(out, 0))


def answers_in(folder, step):
    return os.path.join(folder, "predictions", f"step-{step}.jsonl")


def evaluations_of(folder):
    return [line for line in metrics_of(folder) if "eval_loss" in line]


def adapter_of(folder):
    return read(os.path.join(folder, "adapter_model.safetensors"))


def check_training(test):
    """Answers do not change a training. Returns its folder."""
    plain, _ = test.train("plain")
    out, _ = test.answer("answers")
    check(adapter_of(plain) == adapter_of(out), "the adapter differs")
    losses = [[{key: line[key] for key in line if not key.startswith("eval_")
                or key == "eval_loss"} for line in metrics_of(folder)]
              for folder in (plain, out)]
    check(losses[0] == losses[1], "losses differ:", *losses)
    return out


def check_metrics(out):
    evaluations = evaluations_of(out)
    check([line["step"] for line in evaluations] ==
          list(range(0, STEPS + 1, EVERY)), evaluations)
    for line in evaluations:
        rows = rows_of(answers_in(out, line["step"]))
        check([row["index"] for row in rows] == list(range(ROWS)), rows)
        for name in SCORES[:-1]:
            mean = sum(row[name] for row in rows) / ROWS
            check(abs(line["eval_" + name] - mean) < 1e-12, name, line, mean)
        stopped = sum(row["finish_reason"] == "stop" for row in rows) / ROWS
        check(abs(line["eval_stopped"] - stopped) < 1e-12, line)
        check("eval_unanswered" not in line, line)
    logged = [line for line in rows_of(os.path.join(out, "trainer_log.jsonl"))
              if "eval_rougeL" in line]
    check([line["eval_rougeL"] for line in logged] ==
          [line["eval_rougeL"] for line in evaluations], logged)
    report = read(os.path.join(out, "report.html")).decode()
    check(f'"after step {STEPS}"' in report, "the report has no answers")


def check_generate(test, out):
    """The last answers are those of qlora generate."""
    prompts, answers = test.path("prompts.jsonl"), test.path("answers.jsonl")
    test.write(prompts, [{"messages": row["messages"][:-1]}
                         for row in test.rows])
    test.qlora("generate", out, "--input", prompts, "--output", answers,
               "--max-new-tokens", str(NEW_TOKENS), "--generation-length",
               str(128 + NEW_TOKENS), "--threads", "1")
    expected = rows_of(answers_in(out, STEPS))
    for got, row, source in zip(rows_of(answers), expected, test.rows):
        check(got["output"] == row["prediction"] and
              got["finish_reason"] == row["finish_reason"], got, row)
        check(row["reference"].strip() ==
              source["messages"][-1]["content"].strip(), row, source)


def check_ranks(test, out):
    """All ranks together give the answers of one rank."""
    one = test.evaluate("one", out)
    check(one == read(answers_in(out, STEPS)), "one rank differs from training")
    check(test.evaluate("two", out, "--gpus=2") == one, "two ranks differ")
    # Five ranks for 11 rows: some have fewer rows.
    check(test.evaluate("five", out, "--gpus=5") == one, "five ranks differ")
    for mesh in ("fsdp=2", "fsdp=2,zero1=2"):
        check(test.evaluate(mesh, out, "--gpus=2", "--parallel", mesh) == one,
              mesh, "differs")
    _, said = test.train("tensor", "--predict-with-generate", "--gpus=2",
                         "--parallel", "tp=2", code=1)
    check("--predict-with-generate does not work with --parallel tp=2" in said,
          said)


def check_resumed(test, out):
    """A run that was killed after its first checkpoint, and resumed."""
    killed = test.path("killed")
    shutil.copytree(out, killed)
    for step in range(2 * EVERY, STEPS + 1, EVERY):
        shutil.rmtree(os.path.join(killed, f"checkpoint-{step}"))
        os.remove(answers_in(killed, step))
    stale = answers_in(killed, 999)
    test.write(stale, [{"index": 0}])
    os.remove(os.path.join(killed, "adapter_model.safetensors"))
    test.answer("killed", "--resume-from-checkpoint", "latest")
    check(adapter_of(killed) == adapter_of(out), "the resumed adapter differs")
    for step in range(0, STEPS + 1, EVERY):
        check(read(answers_in(killed, step)) == read(answers_in(out, step)),
              "resumed answers differ after step", step)
    check(not os.path.exists(stale), "answers of another run are left")


def check_best(test, out):
    """The best by a user's metric, which is best after the second evaluation,
    and by rougeL."""
    own = test.path("own.py")
    with open(own, "w", encoding="utf-8") as file:
        file.write("def compute_metrics(predictions, references):\n"
                   "    return {'letters': sum(map(len, predictions))}\n")
    best, said = test.answer("best", "--load-best-model-at-end",
                             "--metric-for-best-model=eval_rougeL",
                             "--compute-metrics", own)
    evaluations = evaluations_of(best)[1:]
    step = max(evaluations, key=lambda line: line["eval_rougeL"])["step"]
    check(adapter_of(best) ==
          adapter_of(os.path.join(best, f"checkpoint-{step}")),
          "the best adapter is not that of step", step)
    for line in evaluations:
        rows = rows_of(answers_in(best, line["step"]))
        check(line["eval_letters"] == sum(len(row["prediction"])
                                          for row in rows), line)
        check(read(answers_in(best, line["step"])) ==
              read(answers_in(out, line["step"])), "answers differ")
    check("letters " in said, said)


def check_long_prompts(test, out):
    """Prompts that fill a slot are counted, and warned of once."""
    rows = [len(row["messages"]) for row in test.rows]
    short, said = test.answer("short", "--generation-length=40",
                              "--num-train-epochs=0", "--max-steps=-1",
                              "--adapter-name-or-path", out)
    line = evaluations_of(short)[0]
    check(1 <= line["eval_unanswered"] < len(rows), line)
    unanswered = [row for row in rows_of(answers_in(short, 0))
                  if not row["prediction"] and row["finish_reason"] == "length"]
    check(len(unanswered) >= line["eval_unanswered"], unanswered)
    check(said.count("validation rows are not answered") == 1, said)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        test = Test(os.path.abspath(args.tools), work)
        try:
            out = check_training(test)
            check_metrics(out)
            check_generate(test, out)
            check_ranks(test, out)
            check_resumed(test, out)
            check_best(test, out)
            check_long_prompts(test, out)
        except Failure as failure:
            sys.exit(f"FAIL {failure}")
    print("answers: fine")


if __name__ == "__main__":
    main()
