#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Runs that resume, with allowed changes and with refused ones.

    resume_changed.py --tools build/bin [PART ...]

  changes  other ranks, options, data and programs: refusals and messages
  best     the best adapter at the end, early stopping
  readers  transformers reads our trainer_state.json
  targets  a run changes from a CPU to CUDA (the software platform), and back
"""

import argparse
import os
import random
import shutil
import struct

from checkpoint_runs import (DEMO, HERE, SAVE_STEPS, check, lines_of_trouble,
                             metrics_of, run_parts, steps_of, without_times)


def changes(runs, arguments):
    chance = random.Random(arguments.seed)
    before = runs.folder("before")
    runs.run(before)
    start = os.path.join(before, f"checkpoint-{SAVE_STEPS}")

    def resumed(name, *flags, **named):
        return runs.run(runs.folder(name), "--resume-from-checkpoint", start,
                        *flags, **named)

    def refused(words, *flags, **named):
        done = resumed("refused", *flags, expect=1, **named)
        for word in words:
            check(word in done.stderr, word, "is not in", done.stderr)
        check(len(lines_of_trouble(done.stderr)) == 1, done.stderr)

    # Resume on another number of ranks, with the same data in the same order.
    losses = [line["loss"] for line in metrics_of(before) if "loss" in line]
    runs.compile("half.so", os.path.join(DEMO, "model"),
                 "--per-device-train-batch-size", "4")
    done = resumed("ranks", "--gpus", "2", "--per-device-train-batch-size", "4",
                   program="half.so")
    check("another number of ranks" in done.stderr, done.stderr)
    others = [line["loss"] for line in metrics_of(
        os.path.join(runs.work, "ranks")) if "loss" in line]
    check(len(losses) == len(others), losses, others)
    for own, other in zip(losses, others):
        check(abs(own - other) < 1e-3 * own, losses, others)
    refused(["8 rows", "3 ranks"], "--gpus", "3")
    refused(["--seed is 7", "is 8"], "--seed", "8")
    done = resumed("rate", "--learning-rate", "1e-3")
    check("--learning-rate is 0.001; before the checkpoint it was 0.005"
          in done.stderr, done.stderr)
    # Another program, model or data is refused.
    runs.compile("rank4.so", os.path.join(DEMO, "model"), "--lora-r", "4")
    refused(["--lora-r is 8", "is 4"], "--lora-r", "4", program="rank4.so")
    data = os.path.join(runs.work, "other.jsonl")
    with open(os.path.join(DEMO, "data", "train.jsonl")) as file:
        lines = file.readlines()
    lines[chance.randrange(1, len(lines))] = lines[0]
    with open(data, "w") as file:
        file.writelines(lines)
    refused(["training data"], "--train-file", data)
    model = os.path.join(runs.work, "model")
    shutil.copytree(os.path.join(DEMO, "model"), model, dirs_exist_ok=True)
    with open(os.path.join(model, "model.safetensors"), "r+b") as file:
        header = struct.unpack("<Q", file.read(8))[0]
        file.seek(8 + header + 2)
        file.write(b"\x12\x3c")
    refused(["model is"], "--model-name-or-path", model)
    # Only a resumed run may have a non-empty output folder.
    done = runs.run(before, expect=1)
    check("or resume with --resume-from-checkpoint latest" in done.stderr,
          done.stderr)
    done = runs.run(before, "--resume-from-checkpoint", "latest",
                    "--overwrite-output-dir", expect=1)
    check("would overwrite; remove one" in done.stderr, done.stderr)
    done = runs.run(runs.folder("fresh"), "--resume-from-checkpoint", "latest")
    check("training starts from scratch" in done.stderr, done.stderr)
    done = runs.run(runs.folder("fresh"), "--resume-from-checkpoint",
                    os.path.join(runs.work, "nothing"), expect=1)
    check("is not a complete checkpoint" in done.stderr, done.stderr)
    print("changes   said or refused")


def best(runs, arguments):
    valid = os.path.join(DEMO, "data", "valid.jsonl")
    flags = ("--validation-file", valid, "--eval-strategy", "steps",
             "--eval-steps", str(SAVE_STEPS), "--load-best-model-at-end",
             "--save-total-limit", "1")
    # With greater_is_better, a falling loss becomes worse at each evaluation
    # after the first.
    bad = (*flags, "--greater-is-better", "true", "--early-stopping-patience",
           "2")
    folder = runs.folder("best")
    done = runs.run(folder, *bad)
    evaluations = {line["step"]: line["eval_loss"]
                   for line in metrics_of(folder) if "eval_loss" in line}
    evaluations.pop(0)  # before training
    expected = max(evaluations, key=evaluations.get)
    check("stopped early: no better evaluation since step "
          f"{expected}" in done.stdout, done.stdout, evaluations)
    check(expected + 2 * SAVE_STEPS == max(evaluations), evaluations)
    check(steps_of(folder) == [expected, max(evaluations)], steps_of(folder))
    adapters = []
    for path in (folder, os.path.join(folder, f"checkpoint-{expected}")):
        with open(os.path.join(path, "adapter_model.safetensors"),
                  "rb") as file:
            adapters.append(file.read())
    check(adapters[0] == adapters[1], "the best adapter is not at the end")
    done = runs.run(runs.folder("mistake"), "--load-best-model-at-end",
                    expect=1)
    check("--load-best-model-at-end: needs evaluations: " in done.stderr,
          done.stderr)
    done = runs.run(runs.folder("mistake"), *flags, "--save-steps", "8",
                    expect=1)
    check("needs an evaluation at every checkpoint: " in done.stderr,
          done.stderr)
    done = runs.run(runs.folder("mistake"), "--metric-for-best-model", "bleu",
                    expect=1)
    check("'bleu' is not supported" in done.stderr, done.stderr)
    # A resumed run ends at the early stop, too.
    done = runs.run(folder, "--resume-from-checkpoint", "true", *bad)
    check(steps_of(folder)[-1] == max(evaluations), steps_of(folder))
    folder = runs.folder("limited")
    runs.run(folder, "--save-total-limit", "2")
    check(steps_of(folder) == sorted(
        {runs.steps // SAVE_STEPS * SAVE_STEPS - (
            SAVE_STEPS if runs.steps % SAVE_STEPS == 0 else 0), runs.steps}),
          steps_of(folder))
    print("best      at the end")


def readers(runs, arguments):
    from transformers.trainer_callback import TrainerState
    runs.reference("--gpus", "2")
    folder = os.path.join(runs.work, "reference--gpus2")
    for step in steps_of(folder):
        state = TrainerState.load_from_json(
            os.path.join(folder, f"checkpoint-{step}", "trainer_state.json"))
        check(state.global_step == step and state.max_steps == runs.steps,
              state)
        logged = [line for line in metrics_of(folder)
                  if line["step"] <= step and "train_loss" not in line
                  and not (step == runs.steps and "eval_loss" in line
                           and line["step"] == step)]
        own = [without_times(line) for line in state.log_history]
        check(own == logged, own, logged)
    print("readers   agree")


def targets(runs, arguments):
    runs.compile_for_cards("cuda.so")
    start = runs.folder("cpu")
    runs.run(start)
    at = os.path.join(start, f"checkpoint-{2 * SAVE_STEPS}")
    onward, back = runs.folder("cuda"), runs.folder("back")
    done = runs.run(onward, "--resume-from-checkpoint", at, program="cuda.so",
                    environment=runs.cards(1))
    check("another backend" in done.stderr, done.stderr)
    runs.run(back, "--resume-from-checkpoint",
             os.path.join(onward, f"checkpoint-{3 * SAVE_STEPS}"))
    losses = [[line["loss"] for line in metrics_of(folder) if "loss" in line]
              for folder in (start, onward, back)]
    for own, *others in zip(*losses, strict=True):
        for other in others:
            check(abs(own - other) < 1e-3 * own, losses)
    print("targets   CPU, CUDA, CPU: the same losses")


PARTS = (changes, best, readers, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("parts", nargs="*", default=[])
    run_parts(PARTS, parser.parse_args())


if __name__ == "__main__":
    main()
