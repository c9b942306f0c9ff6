#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""A run that is killed, stopped or short of disk, and resumed, is the run that
was not: the same bytes of adapter and moments, the same metrics but for times.

    checkpoints.py --tools build/bin [--kills 200] [--every 1] [--flips 2000]
                   [--steps 60] [PART ...]

  kills    a run killed at random moments, launcher or a rank, and started
           again until it ends, on one and on two ranks
  calls    killed at a call that changes the output folder: every --every-th
           call of the run. Whatever is named checkpoint-N is whole
  faults   ENOSPC, EIO, EROFS and short writes at those calls, and a disk that is
           full from there on: one clear line, and the run goes on or ends whole
  flips    a byte of a checkpoint changed: always found, and the checkpoint before
           is taken
  signals  Ctrl-C, SIGTERM, a second one, SIGUSR1
  changes  other ranks, options, data and programs: what is refused, what is said
  best     the best adapter at the end, early stopping
  readers  transformers reads trainer_state.json; what it says is ours
  targets  begun on a CPU, gone on with on CUDA (the software platform), and back

Without numbers it is the short form, which the tests run.
"""

import argparse
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from checkpoint_runs import (DEMO, HERE, SAVE_STEPS, Failure, Runs, check,
                             lines_of_trouble, metrics_of, steps_of, verify,
                             without_times)


def children_of(process):
    try:
        with open(f"/proc/{process}/task/{process}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def kills(runs, arguments):
    chance = random.Random(arguments.seed)
    for ranks in ("1", "2"):
        flags = ("--gpus", ranks)
        runs.reference(*flags)
        start = time.monotonic()
        runs.run(runs.folder("timed"), *flags)
        whole = time.monotonic() - start
        done = 0
        while done < arguments.kills // 2:
            folder = runs.folder("killed")
            while True:
                process = subprocess.Popen(
                    runs.command(folder, "--resume-from-checkpoint", "true",
                                 *flags),
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    process.wait(chance.uniform(0.1, 1) * whole)
                    break
                except subprocess.TimeoutExpired:
                    victims = [process.pid, *children_of(process.pid)]
                    try:
                        os.kill(chance.choice(victims), signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    process.wait()
                    done += 1
            check(process.returncode == 0 or done, "the run failed")
            runs.finish(folder, *flags)
            check(not [name for name in os.listdir(folder) if ".part" in name],
                  "parts are left in", os.listdir(folder))
        print(f"kills     {done} on {ranks} ranks, {whole:.1f} s a run")


def count_calls(runs):
    """Of a run into a new folder, and the shim that counts them."""
    shim = os.path.join(runs.work, "faults.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim,
                    os.path.join(HERE, "checkpoint_faults.c"), "-ldl"],
                   check=True)
    folder = runs.folder("counted")
    count = os.path.join(runs.work, "count")
    runs.run(folder, environment={"LD_PRELOAD": shim, "FAULT_FOLDER": folder,
                                  "FAULT_COUNT": count})
    with open(count) as file:
        return shim, int(file.read())


def numbers(total, every, chance):
    """Every every-th call, from a random one on."""
    return range(chance.randint(1, every), total + 1, every)


def calls(runs, arguments):
    chance = random.Random(arguments.seed)
    shim, total = count_calls(runs)
    tried = 0
    for number in numbers(total, arguments.every, chance):
        folder = runs.folder("called")
        runs.run(folder, expect=None, environment={
            "LD_PRELOAD": shim, "FAULT_FOLDER": folder, "FAULT_KIND": "kill",
            "FAULT_AT": str(number)})
        for step in steps_of(folder):
            verify(os.path.join(folder, f"checkpoint-{step}"))
        done = runs.finish(folder)
        check("passed over" not in done.stderr, done.stderr)
        tried += 1
    print(f"calls     killed at {tried} of {total} calls")


def faults(runs, arguments):
    chance = random.Random(arguments.seed)
    shim, total = count_calls(runs)
    kinds = ("ENOSPC", "EIO", "EROFS", "short", "full")
    tried = ended = 0
    for kind in kinds:
        every = arguments.every * (1 if arguments.every == 1 else len(kinds))
        for number in numbers(total, every, chance):
            folder = runs.folder("faulty")
            done = runs.run(folder, expect=None, environment={
                "LD_PRELOAD": shim, "FAULT_FOLDER": folder,
                "FAULT_KIND": kind, "FAULT_AT": str(number)})
            check(done.returncode in (0, 1), kind, number, done.stderr)
            trouble = lines_of_trouble(done.stderr)
            check(kind == "short" or len(trouble) <= 3 or kind == "full",
                  kind, number, done.stderr)
            check(kind != "short" or not trouble, kind, number, done.stderr)
            for step in steps_of(folder):
                verify(os.path.join(folder, f"checkpoint-{step}"))
            if done.returncode == 0:
                with open(os.path.join(folder, "adapter_model.safetensors"),
                          "rb") as file:
                    check(file.read() == runs.reference()[0], kind, number,
                          "the adapter differs")
            else:
                check(len(trouble) >= 1, kind, number, done.stderr)
                ended += 1
            shutil.rmtree(folder, ignore_errors=True)
            tried += 1
    print(f"faults    {tried}, of which {ended} ended the run")


def flips(runs, arguments):
    chance = random.Random(arguments.seed)
    folder = runs.folder("flipped")
    runs.run(folder)
    newest = os.path.join(folder, f"checkpoint-{steps_of(folder)[-1]}")
    names = sorted(os.listdir(newest))
    for _ in range(arguments.flips):
        path = os.path.join(newest, chance.choice(names))
        with open(path, "rb") as file:
            whole = file.read()
        at, bit = chance.randrange(len(whole)), 1 << chance.randrange(8)
        damaged = whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1:]
        with open(path, "wb") as file:
            file.write(damaged)
        done = runs.run(folder, "--resume-from-checkpoint", newest, expect=1)
        check("error: --resume-from-checkpoint: '" in done.stderr, path, at,
              done.stderr)
        with open(path, "wb") as file:
            file.write(whole)
    with open(path, "wb") as file:
        file.write(damaged)
    done = runs.finish(folder)
    check("checkpoint passed over: " in done.stderr, done.stderr)
    print(f"flips     {arguments.flips} found")


def stop(runs, folder, number, *flags, after="4/", again=0):
    """Sends a signal to the launcher when a line of a step is there."""
    process = subprocess.Popen(
        runs.command(folder, *flags), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.strip().startswith(after):
            break
    process.send_signal(number)
    if again:
        time.sleep(again)
        process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def signals(runs, arguments):
    for ranks in ("1", "2"):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for flags in (("--gpus", ranks),
                          ("--gpus", ranks, "--gradient-accumulation-steps",
                           "3")):
                folder = runs.folder("stopped")
                got, out, errors = stop(runs, folder, number, *flags)
                check(got == code, got, "instead of", code, out, errors)
                check("--resume-from-checkpoint latest" in out, out)
                last = steps_of(folder)[-1]
                check(f"interrupted after step {last} of" in out, out, last)
                verify(os.path.join(folder, f"checkpoint-{last}"))
                runs.finish(folder, *flags)
        folder = runs.folder("saved")
        got, out, errors = stop(runs, folder, signal.SIGUSR1, "--gpus", ranks,
                                "--save-strategy", "no")
        check(got == 0 and len(steps_of(folder)) == 1, got, errors,
              steps_of(folder))
        verify(os.path.join(folder, f"checkpoint-{steps_of(folder)[0]}"))
    folder = runs.folder("killed")
    got, _, _ = stop(runs, folder, signal.SIGINT, "--gpus", "2",
                     "--gradient-accumulation-steps", "1",
                     "--max-steps", "100000", again=0.0)
    check(got == 130, "two signals at once are one, but got", got)
    print("signals   as they should")


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

    # Another number of ranks, with the same data in the same order.
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
    check("--learning-rate is 0.001, and was 0.005" in done.stderr,
          done.stderr)
    # Another program, model, data.
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
    # The folder: it need not be empty where it is gone on with, alone then.
    done = runs.run(before, expect=1)
    check("go on with --resume-from-checkpoint latest" in done.stderr,
          done.stderr)
    done = runs.run(before, "--resume-from-checkpoint", "latest",
                    "--overwrite-output-dir", expect=1)
    check("leave one of them out" in done.stderr, done.stderr)
    done = runs.run(runs.folder("fresh"), "--resume-from-checkpoint", "latest")
    check("training starts from the beginning" in done.stderr, done.stderr)
    done = runs.run(runs.folder("fresh"), "--resume-from-checkpoint",
                    os.path.join(runs.work, "nothing"), expect=1)
    check("is no checkpoint" in done.stderr, done.stderr)
    print("changes   said or refused")


def best(runs, arguments):
    valid = os.path.join(DEMO, "data", "valid.jsonl")
    flags = ("--validation-file", valid, "--eval-strategy", "steps",
             "--eval-steps", str(SAVE_STEPS), "--load-best-model-at-end",
             "--save-total-limit", "1")
    # What is learned is worse then, from the first evaluation on.
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
    # An early stop is the end for whoever resumes it too.
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
    runs.compile("cuda.so", os.path.join(DEMO, "model"), "--target", "cuda",
                 "--cuda-arch", "90", "--cuda-compiler",
                 os.path.join(HERE, "..", "cuda", "host-nvcc"))
    platform = {"QLORA_TEST_CUDA_DEVICES": "sm_90:4096",
                "LD_LIBRARY_PATH": os.path.join(
                    os.path.dirname(runs.tools), "cuda-platform")}
    start = runs.folder("cpu")
    runs.run(start)
    at = os.path.join(start, f"checkpoint-{2 * SAVE_STEPS}")
    onward, back = runs.folder("cuda"), runs.folder("back")
    done = runs.run(onward, "--resume-from-checkpoint", at, program="cuda.so",
                    environment=platform)
    check("another backend" in done.stderr, done.stderr)
    runs.run(back, "--resume-from-checkpoint",
             os.path.join(onward, f"checkpoint-{3 * SAVE_STEPS}"))
    losses = [[line["loss"] for line in metrics_of(folder) if "loss" in line]
              for folder in (start, onward, back)]
    for own, *others in zip(*losses, strict=True):
        for other in others:
            check(abs(own - other) < 1e-3 * own, losses)
    print("targets   CPU, CUDA, CPU: the same losses")


PARTS = (kills, calls, faults, flips, signals, changes, best, readers, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--flips", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("parts", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(arguments.tools), work, arguments.steps)
        for part in PARTS:
            if not arguments.parts or part.__name__ in arguments.parts:
                part(runs, arguments)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"checkpoints.py: {failure}")
