#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Ranks on several hosts, and faults of hosts and of the network.

    hosts.py --tools build/bin [CASE ...] [--rounds 100] [--seed 1]

The hosts are network namespaces of this machine (namespaces.py); the demo
trains on two of them, a rank on each. If the job cannot continue, both hosts
end within seconds with exit code 1 and the same line, which names the rank and
its host. Every checkpoint is complete, and no process and no socket is left on
any host. If the network is only slow or lossy, the results have the bytes of
one machine.

Without --rounds each case is run once. With it, each fault during training is
tried that many times, at a moment that the seed determines, and the number of
passes is printed.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from checkpoint_runs import DEMO, Failure, Runs, check, steps_of
from host_jobs import PORT, SECRET, STEPS, Job, side_by_side
from namespaces import why_not

FAULTS = []
CASES = []


def case(function):
    CASES.append(function)
    return function


def fault(function):
    """Registers a case with a fault during training."""
    FAULTS.append(function)
    return case(function)


# -------------------------------------------------------- during training ---

@fault
def pulled_cable(setting):
    job = setting.trains()
    setting.hosts.all[setting.dice.randrange(2)].plug("down")
    job.expect(r"no heartbeat between rank 0 \(node0\) and rank 1 "
               r"\(node1\) for 10 s\. Fix: check")


@fault
def killed_host(setting):
    job = setting.trains()
    lost = setting.dice.randrange(2)
    setting.hosts.all[lost].kill()
    job.expect(rf"rank {lost} \(node{lost}\) ended without an error message",
               within=5, survivors=[1 - lost])


@fault
def stopped_rank(setting):
    """The rank hangs: all its threads stop, while its host answers."""
    job = setting.trains()
    lost = setting.dice.randrange(2)
    host = setting.hosts.all[lost]
    for pid in job.ranks_on(lost):
        os.kill(pid, signal.SIGSTOP)
    job.started.pop(lost)
    job.expect_line(r"no heartbeat between rank 0 \(node0\) and rank 1 "
                    r"\(node1\) for 10 s")
    host.kill()
    job.check_clean()


@fault
def loss(setting):
    job = setting.job()
    for host in setting.hosts.all:
        host.lose(setting.dice.choice([1, 3]))
    job.start_all()
    job.expect_bytes("--gpus", "2")


@fault
def narrow_link(setting):
    job = setting.job()
    for host in setting.hosts.all:
        host.narrow("30mbit")
    job.start_all()
    job.expect_bytes("--gpus", "2")


@fault
def delay(setting):
    job = setting.job()
    setting.hosts.delay(setting.dice.uniform(0.005, 0.03))
    job.start_all()
    job.expect_bytes("--gpus", "2")


# --------------------------------------------------- before training starts ---

@case
def unreachable_host(setting):
    job = setting.job()
    setting.hosts.all[1].plug("down")
    job.start_all("--ddp-timeout", "5")
    job.expect(r"rank 0 at 10\.77\.0\.1:29500 was not reached in 5 s by rank "
               r"1\. Fix: start the missing ranks", within=15)


@case
def port_taken(setting):
    """Another program listens on the port, and does not answer as a rank
    does."""
    job = setting.job()
    other = setting.hosts.all[0].popen(
        [sys.executable, "-c", "import socket; s = socket.create_server(("
         f"'0.0.0.0', {PORT}));\n"
         "while True: s.accept()[0].send(b'220 mail'*9)"])
    while not setting.hosts.all[0].sockets():
        time.sleep(0.05)
    job.start_all()
    for process in job.started:
        process.wait(timeout=15)
    os.killpg(other.pid, signal.SIGKILL)
    other.wait()
    job.expect(r"rank 0 cannot listen at 10\.77\.0\.1:29500: another program "
               r"uses the port\. Fix: set another MASTER_PORT", within=1)


ANOTHER_SECRET = (
    r"rank 1 \(10\.77\.0\.2\) has another QLORA_JOB_SECRET than rank 0 "
    r"at 10\.77\.0\.1:29500\. Fix: give all ranks")


@case
def other_secret(setting):
    job = setting.job()
    job.start(0)
    job.start(1, QLORA_JOB_SECRET="another" + SECRET)
    job.expect(ANOTHER_SECRET, within=15)


@case
def missing_secret(setting):
    job = setting.job()
    job.start(0)
    job.start(1, TORCHELASTIC_RUN_ID="none", MASTER_PORT=PORT - 1,
              wrap=("env", "-u", "QLORA_JOB_SECRET"))
    job.expect(ANOTHER_SECRET, within=15)


@case
def other_program(setting):
    job = setting.job()
    job.start(0)
    job.start(1, program="other.so")
    job.expect(r"rank 1 \(node1\): differs from rank 0 in --loraplus-lr-ratio; "
               "start every rank with the same", within=10)


@case
def other_plan(setting):
    """One host has a program that recomputes more, as for a GPU with less
    memory."""
    job = setting.job()
    job.start(0)
    job.start(1, program="plan.so")
    job.expect_bytes("--gpus", "2")


@case
def no_program(setting):
    job = setting.job()
    job.start(0)
    job.start(1, program="none.so")
    job.expect(r"rank 1 \(node1\): .*none\.so", within=10)


@case
def other_data(setting):
    job = setting.job()
    rows = os.path.join(setting.runs.work, setting.name + ".jsonl")
    with open(os.path.join(DEMO, "data", "train.jsonl")) as file, \
            open(rows, "w") as shorter:
        shorter.writelines(file.readlines()[:-1])
    job.start(0)
    job.start(1, "--train-file", rows)
    job.expect(r"rank 1 \(node1\): differs from rank 0 in the rows of "
               "--train-file", within=10)


@case
def other_model(setting):
    job = setting.job()
    model = os.path.join(setting.runs.work, setting.name + ".model")
    shutil.copytree(os.path.join(DEMO, "model"), model)
    config = os.path.join(model, "config.json")
    with open(config) as file:
        text = file.read()
    with open(config, "w") as file:
        file.write(re.sub(r'"rms_norm_eps": [^,\s]+', '"rms_norm_eps": 0.5',
                          text))
    job.start(0)
    job.start(1, "--model-name-or-path", model)
    job.expect(r"rank 1 \(node1\): ", within=10)


@case
def other_number_of_ranks(setting):
    job = setting.job()
    job.start(0)
    job.start(1, WORLD_SIZE=3)
    job.expect(r"rank 1 \(node1\) was started as one of 3 ranks, but rank 0 as "
               "one of 2", within=10)


@case
def too_small_a_card(setting):
    """Trains on GPUs of the software platform, one of which has too little
    memory."""
    job = setting.job()
    for rank, megabytes in enumerate((4096, 8)):
        cards = setting.runs.cards(1)
        cards["QLORA_TEST_CUDA_DEVICES"] = f"sm_90:{megabytes}"
        job.start(rank, program="cards.so", **cards)
    job.expect(r"rank 1 \(node1\): GPU 0 .* has 8\.0 MiB free .*the plan "
               "needs", within=10)


# --------------------------------------------------------------- restarts ---

@case
def torchrun_restarts(setting):
    job = setting.job()
    job.start_torchrun("--resume-from-checkpoint", "true")
    job.until_step(7)
    killed = job.ranks_on(1)
    check(len(killed) == 1, setting.name, "runs", killed)
    os.kill(killed[0], signal.SIGKILL)
    text = "".join(process.communicate(timeout=90)[0]
                   for process in job.started)
    check([process.returncode for process in job.started] == [0, 0],
          setting.name, text)
    check("resumes from" in text, setting.name, text)
    setting.runs.compare(job.folder, "--gpus", "2")
    job.check_clean()


@case
def fewer_hosts(setting):
    """Loses one of two hosts for good. The other host resumes alone, with the
    same number of rows per step."""
    job = setting.trains()
    setting.hosts.all[1].kill()
    job.errors(5)
    before = steps_of(job.folder)[-1]
    alone = Job(setting.runs, setting.hosts, setting.name + "-alone",
                before + 14)
    shutil.move(job.folder, alone.folder)
    done = setting.hosts.all[0].popen(
        alone.command("--resume-from-checkpoint", "true", "--max-steps",
                      str(before + 14)), {"RANK": "0", "WORLD_SIZE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text, _ = done.communicate(timeout=60)
    check(done.returncode == 0, setting.name, text)
    check("another number of ranks" in text and "x 2 accumulated = 16 rows"
          in text, setting.name, text)
    check(steps_of(alone.folder)[-1] == before + 14, setting.name, text)
    alone.check_clean()


# ------------------------------------------------------------------------

def prepare(runs, chosen):
    if other_program in chosen:
        runs.compile("other.so", os.path.join(DEMO, "model"),
                     "--loraplus-lr-ratio", "2")
    if other_plan in chosen:
        runs.compile("plan.so", os.path.join(DEMO, "model"),
                     "--gradient-checkpointing", "true")
    if too_small_a_card in chosen:
        runs.compile_for_cards("cards.so")
    runs.reference("--gpus", "2")


def once(runs, chosen, arguments):
    def report(name, seconds):
        print(f"{name.replace('_', ' '):22} as it should be ({seconds:.1f} s)",
              flush=True)

    wrong = side_by_side(runs, [(function, random.Random(arguments.seed),
                                 function.__name__) for function in chosen],
                         arguments.at_once, report)
    check(not wrong, "\n".join(wrong))


def many(runs, chosen, arguments):
    dice = random.Random(arguments.seed)
    passed = dict.fromkeys((function.__name__ for function in chosen), 0)

    def report(name, _):
        passed[name.split("-")[0]] += 1
        shutil.rmtree(os.path.join(runs.work, name), ignore_errors=True)

    for number in range(1, arguments.rounds + 1):
        tries = [(function, random.Random(dice.random()),
                  f"{function.__name__}-{number}") for function in chosen]
        for text in side_by_side(runs, tries, arguments.at_once, report):
            print(text, flush=True)
        print(f"round {number}: {sum(passed.values())} of "
              f"{number * len(chosen)}", flush=True)
    for name, count in passed.items():
        print(f"{name:22} {count} of {arguments.rounds}")
    check(min(passed.values()) == arguments.rounds, "not every round passed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"hosts.py: skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Start the longest cases first.
    known = FAULTS if arguments.rounds else [*reversed(CASES[:3]),
                                             *reversed(CASES[3:])]
    chosen = [function for function in known
              if not arguments.cases or function.__name__ in arguments.cases]
    check(chosen, "no such case; there are", [f.__name__ for f in known])
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(os.path.abspath(arguments.tools), work, STEPS)
        prepare(runs, chosen)
        (many if arguments.rounds else once)(runs, chosen, arguments)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"hosts.py: {failure}")
