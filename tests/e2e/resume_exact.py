#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""A run that is killed or stopped, and resumed, equals an uninterrupted run:
same bytes of adapter and moments, same metrics except times.
SessionFaultsTest.cpp tests failing calls and kills at each call.

    resume_exact.py --tools build/bin [--kills 200] [--flips 2000]
                   [--steps 60] [PART ...]

  kills    the launcher or a rank is killed at random moments, and the run is
           restarted until it ends, on one and on two ranks
  flips    a flipped bit in a checkpoint is always found; an automatic resume
           then uses the previous checkpoint
  signals  SIGINT (Ctrl-C) and SIGTERM write a checkpoint and end the run.
           SIGUSR1 writes a checkpoint; a signal every 10 ms changes no result

The defaults of --kills, --flips and --steps are the short form for the test
suite.
"""

import argparse
import os
import random
import signal
import subprocess
import time

from checkpoint_runs import check, run_parts, steps_of, verify


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
    check("checkpoint skipped: " in done.stderr, done.stderr)
    print(f"flips     {arguments.flips} found")


def stop(runs, folder, number, *flags, after="4/", again=None):
    """Sends signal `number` to the launcher when it prints the line of a step,
    and once more after `again` seconds."""
    process = subprocess.Popen(
        runs.command(folder, *flags), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.strip().startswith(after):
            break
    process.send_signal(number)
    if again is not None:
        time.sleep(again)
        process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def one_request_of_all(runs):
    """Signals the ranks one after the other, within a second. They write one
    checkpoint, and another one at a later request."""
    folder = runs.folder("asked")
    process = subprocess.Popen(
        runs.command(folder, "--gpus", "2", "--save-strategy", "no",
                     "--max-steps", "100000"), stdout=subprocess.PIPE,
        text=True)
    try:
        for line in process.stdout:
            if line.strip().startswith("4/"):
                break
        ranks = children_of(process.pid)
        check(len(ranks) == 2, ranks)
        for number in (1, 2):
            for rank in ranks:
                os.kill(rank, signal.SIGUSR1)
                time.sleep(0.3)
            time.sleep(1.2)
            check(len(steps_of(folder)) == number, steps_of(folder))
    finally:
        process.kill()
        process.communicate()


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
    one_request_of_all(runs)
    # Send signals at any time, even while a kernel runs (StopSignal.cpp).
    folder = runs.folder("often")
    process = subprocess.Popen(runs.command(folder, "--save-total-limit", "1"),
                               stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    while process.poll() is None:
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.01)
    process.communicate()
    check(process.returncode == 0, process.returncode)
    runs.compare(folder)
    folder = runs.folder("killed")
    got, _, _ = stop(runs, folder, signal.SIGINT, "--gpus", "2",
                     "--gradient-accumulation-steps", "1",
                     "--max-steps", "100000", again=0.0)
    check(got == 130, "two signals at once are one, but got", got)
    print("signals   as they should")


PARTS = (kills, flips, signals)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--flips", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("parts", nargs="*", default=[])
    run_parts(PARTS, parser.parse_args())


if __name__ == "__main__":
    main()
