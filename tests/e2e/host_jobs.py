# SPDX-License-Identifier: MIT

"""Starts the demo on hosts (namespaces.py), and checks what must hold when it
has ended. Used by hosts.py."""

import concurrent.futures
import os
import re
import signal
import subprocess
import time

from checkpoint_runs import Failure, check, steps_of, verify
from namespaces import Hosts

STEPS = 30
ENDLESS = 100000
PORT = 29500
SECRET = "0123456789abcdef" * 2
# Seconds until all hosts have ended. A rank is lost after ten silent seconds;
# the remainder is slack for a loaded machine.
SOON = 25


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def said_by(process, name, seconds):
    """Waits for the end of a process, and returns its output."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{name} has not ended in {seconds} s: " +
                      (late.stdout or b"").decode()) from None


class Job:
    """A job: the demo on some hosts, with the environment variables that
    torchrun sets."""

    def __init__(self, runs, hosts, name, steps=STEPS):
        self.runs, self.hosts, self.name = runs, hosts, name
        self.folder = runs.folder(name)
        self.steps = steps
        self.started = []

    def environment(self, rank, **other):
        variables = {"RANK": rank, "WORLD_SIZE": len(self.hosts.all),
                     "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                     "MASTER_ADDR": self.hosts.all[0].address,
                     "MASTER_PORT": PORT, "QLORA_JOB_SECRET": SECRET, **other}
        return {name: str(value) for name, value in variables.items()}

    def command(self, *flags, program="train.so"):
        command = self.runs.command(self.folder, *flags, program=program)
        command[command.index("--max-steps") + 1] = str(self.steps)
        return command

    def start(self, rank, *flags, program="train.so", wrap=(), **variables):
        host = self.hosts.all[rank]
        process = host.popen([*wrap, *self.command(*flags, program=program)],
                             self.environment(rank, **variables),
                             stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def start_all(self, *flags):
        for rank in range(len(self.hosts.all)):
            self.start(rank, *flags)

    def start_torchrun(self, *flags):
        """Starts torchrun on each host. Debian's torch 1.13 needs -r and -t."""
        logs = os.path.join(self.runs.work, self.name + ".logs")
        command = ["torchrun", "-r", "1", "-t", "1", "--log_dir", logs,
                   "--nnodes", "2", "--nproc_per_node", "1", "--max_restarts",
                   "3", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                   "node0:29400", "--no_python", *self.command(*flags)]
        for host in self.hosts.all:
            self.started.append(host.popen(
                command, {"QLORA_JOB_SECRET": SECRET}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT))

    def ranks_on(self, number):
        return [pid for pid in self.hosts.all[number].pids()
                if name_of(pid) == "qlora-run"]

    def until_step(self, step):
        """Waits for a checkpoint of that step or a later one."""
        deadline = time.monotonic() + 60
        while not [done for done in steps_of(self.folder) if done >= step]:
            check(time.monotonic() < deadline and
                  all(p.poll() is None for p in self.started),
                  self.name, "does not train")
            time.sleep(0.02)

    def errors(self, within, code=1):
        """Waits until all hosts have ended. Returns the error lines of each."""
        deadline = time.monotonic() + within
        texts = []
        for process in self.started:
            try:
                _, text = process.communicate(
                    timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure(f"{self.name}: a host has not ended in "
                              f"{within} s") from None
            texts.append(text)
            if process.returncode != -signal.SIGKILL:
                check(process.returncode == code, self.name, "exit code",
                      process.returncode, texts)
        return [[line for line in text.splitlines() if "error" in line]
                for text in texts]

    def expect(self, cause, within=SOON, survivors=None):
        self.expect_line(cause, within, survivors)
        self.check_clean()

    def expect_line(self, cause, within=SOON, survivors=None):
        """Checks that each host prints one line, and that the lines are equal
        except in brackets."""
        errors = self.errors(within)
        if survivors is not None:
            errors = [errors[rank] for rank in survivors]
        for lines in errors:
            check(len(lines) == 1, self.name, "not one line:", errors)
            check(re.search(f"^qlora-run: error: {cause}", lines[0]),
                  self.name, "not", cause, "but", lines[0])
        check(len({re.sub(r" \([^()]*\)$", "", lines[0])
                   for lines in errors}) == 1,
              self.name, "hosts say different things:", errors)

    def expect_bytes(self, *flags, within=60):
        check(self.errors(within, code=0), self.name)
        self.runs.compare(self.folder, *flags)
        self.check_clean()

    def check_clean(self):
        for step in steps_of(self.folder):
            verify(os.path.join(self.folder, f"checkpoint-{step}"))
        deadline = time.monotonic() + 5
        while left := [host.leftovers() for host in self.hosts.all]:
            if not any(left):
                break
            check(time.monotonic() < deadline, self.name, "left behind:", left)
            time.sleep(0.1)
        check(not [name for name in os.listdir("/dev/shm")
                   if "qlora" in name], self.name, "left in /dev/shm")


class Setting:
    """The environment of a case: separate hosts, and random moments."""

    def __init__(self, runs, name, dice):
        self.runs, self.name, self.dice = runs, name, dice
        self.hosts = Hosts(2, runs.work)

    def job(self, steps=STEPS):
        return Job(self.runs, self.hosts, self.name, steps)

    def trains(self):
        """Starts a job, lets it train for a random time, and returns it."""
        job = self.job(ENDLESS)
        job.start_all()
        job.until_step(7)
        time.sleep(self.dice.uniform(0, 1.5))
        return job


def run_case(runs, function, dice, name):
    setting = Setting(runs, name, dice)
    start = time.monotonic()
    with setting.hosts:
        function(setting)
    return time.monotonic() - start


def side_by_side(runs, tries, at_once, report):
    """Runs the tries (function, dice, name), `at_once` at a time, because most
    of them wait most of the time. Returns the number that passed, and errors of
    the others."""
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        names = {pool.submit(run_case, runs, *one): one[2] for one in tries}
        for done in concurrent.futures.as_completed(names):
            try:
                report(names[done], done.result())
            except Failure as failure:
                wrong.append(str(failure))
    return wrong
