# SPDX-License-Identifier: MIT
"""Tests everything around the rows: help without packages, the search for a
Python with packages, progress, and several processes."""

import json
import os
import pty
import signal
import shutil
import subprocess
import sys
import time

from fixtures import CHATML, TOOL, ToolTest, chat

ROOT = os.path.abspath(os.path.join(os.path.dirname(TOOL), "..", ".."))
TALK = {"messages": chat(("user", "hello"), ("assistant", "world " * 60))}
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


class PythonTest(ToolTest):
    """Runs a copy of the tool in a folder without .venv, in a Python without
    packages (-S hides them)."""

    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.write_data({"text": "hello world"})
        self.copy = self.path("repository", "tools", "qlora-data")
        shutil.copytree(os.path.dirname(TOOL), self.copy)
        self.bare = self.script("bare", f'exec {sys.executable} -S "$@"')
        self.good = self.script(
            "good", f'echo good >> {self.path("log")}\n'
            f'exec {sys.executable} "$@"')

    def script(self, name, text):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, 0o755)
        return path

    def run_bare(self, *flags, **variables):
        if not flags:
            flags = ("--tokenizer", self.model, "--input", self.data,
                     "--output", self.output)
        return subprocess.run(
            [self.bare, os.path.join(self.copy, "qlora-data"), *flags],
            env={**CLEAN, **variables}, capture_output=True, text=True,
            check=False)

    def used(self):
        with open(self.path("log"), encoding="utf-8") as file:
            return file.read()

    def test_help_and_usage_without_packages(self):
        done = self.run_bare("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--chat-template", done.stdout)
        for flags, message in (
                (["--shuffle"], "the following arguments are required"),
                (["--max-length", "x"], "expects a number above 0")):
            done = self.run_bare(*flags)
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_advice_where_nothing_has_them(self):
        done = self.run_bare()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        venv = self.path("repository", ".venv")
        self.assertIn(f"python3 -m venv {venv} && {venv}/bin/pip install "
                      "tokenizers jinja2", done.stderr)
        self.assertIn("scripts/install.sh", done.stderr)

    def test_the_environment_beside(self):
        self.script("repository/.venv/bin/python",
                    f'exec {self.good} "$@"')
        done = self.run_bare()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.used(), "good\n")
        # A usage error is printed once, not by two Pythons.
        self.write_data({"prompt": "x"})
        self.assertEqual(self.run_bare().stderr.count("\n"), 1)

    def test_a_link_finds_it_too(self):
        self.script("repository/.venv/bin/python", f'exec {self.good} "$@"')
        link = self.path("bin", "qlora-data")
        os.mkdir(self.path("bin"))
        os.symlink(os.path.join(self.copy, "qlora-data"), link)
        done = subprocess.run(
            [self.bare, link, "--tokenizer", self.model, "--input", self.data,
             "--output", self.output], env=CLEAN, capture_output=True,
            text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_active_environment_comes_first(self):
        self.script("repository/.venv/bin/python", "exit 9")
        self.script("active/bin/python", f'exec {self.good} "$@"')
        done = self.run_bare(VIRTUAL_ENV=self.path("active"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_environment_without_packages_is_passed_over(self):
        self.script("repository/.venv/bin/python", f'exec {self.good} "$@"')
        self.script("active/bin/python", f'exec {self.bare} "$@"')
        done = self.run_bare(VIRTUAL_ENV=self.path("active"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.used(), "good\n")

    def test_qlora_python_wins(self):
        self.script("repository/.venv/bin/python", "exit 9")
        done = self.run_bare(QLORA_PYTHON=self.good)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.run_bare(QLORA_PYTHON=self.bare)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"run: {self.bare} -m pip install", done.stderr)
        done = self.run_bare(QLORA_PYTHON="no-such-python")
        self.assertIn("QLORA_PYTHON: cannot execute 'no-such-python'",
                      done.stderr)

    def test_the_repository_s_own(self):
        venv = os.path.join(ROOT, ".venv", "bin", "python")
        if not os.access(venv, os.X_OK):
            self.skipTest("scripts/install.sh was not run")
        done = subprocess.run(
            [self.bare, TOOL, "--tokenizer", self.model, "--input", self.data,
             "--output", self.output], env=CLEAN, capture_output=True,
            text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


class ProgressTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)

    def test_lines_for_a_program(self):
        self.convert(*[TALK] * 600, flags=["--progress"])
        lines = [line.split(": ")[-1].split()
                 for line in self.warnings.splitlines()
                 if line.startswith("qlora-data: progress: ")]
        total = os.path.getsize(self.data)
        self.assertEqual(lines[0], ["0", str(total)])
        self.assertEqual(lines[-1], [str(total), str(total)])
        done = [int(line[0]) for line in lines]
        self.assertEqual(done, sorted(done))

    def test_nothing_in_a_pipe(self):
        self.convert(*[TALK] * 600)
        self.assertEqual(self.warnings, "")

    def test_one_line_on_a_terminal(self):
        self.write_data(*[TALK] * 40000)
        parent, terminal = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, TOOL, "--tokenizer", self.model, "--input",
             self.data, "--output", self.output], stderr=terminal,
            stdout=subprocess.DEVNULL)
        os.close(terminal)
        text = b""
        try:
            while part := os.read(parent, 4096):
                text += part
        except OSError:  # the terminal is closed
            pass
        os.close(parent)
        self.assertEqual(process.wait(), 0)
        self.assertIn(b"\rtokenising ", text)
        self.assertIn(b" MiB/s", text)
        self.assertTrue(text.endswith(b"\r\x1b[K"), text[-80:])
        self.assertNotIn(b"\n", text)


class WorkersTest(ToolTest):
    """Tests files of more than 1 MiB, which are distributed over processes."""

    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.rows = [{"messages": chat(("user", f"{number}"), (
            "assistant", "hello world " * (number % 60 + 1)))}
            for number in range(4000)]

    def test_the_same_bytes(self):
        files = []
        for cpus in (os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}):
            self.write_data(*self.rows)
            done = self.run_tool(
                "--max-length", "90",
                preexec_fn=lambda: os.sched_setaffinity(0, cpus))
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(self.output, "rb") as file:
                files.append((file.read(), done.stdout, done.stderr))
        self.assertEqual(*files)
        self.assertGreater(json.loads(files[0][1])["truncated_rows"], 100)

    def start(self, *flags):
        """Starts the tool on a long file. Returns its process and its
        workers."""
        self.write_data(*self.rows * 10)
        process = subprocess.Popen(
            [sys.executable, TOOL, "--tokenizer", self.model, "--input",
             self.data, "--output", self.output, "--progress", *flags],
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        # The second line is printed when rows are made: all workers run then.
        process.stderr.readline()
        process.stderr.readline()
        return process, self.children(process.pid)

    def test_as_many_as_are_asked_for(self):
        for workers in (2, 3):
            process, children = self.start("--workers", str(workers))
            self.assertEqual(len(children), workers)
            process.kill()
            process.wait()
        self.assertIn("expects a number above 0",
                      self.refusal(flags=["--workers", "0"]))

    def test_a_worker_that_ends_is_not_always_memory(self):
        for number, message in (
                (signal.SIGSEGV, "a worker ended with code 139; run it again"),
                (signal.SIGKILL, "out of memory")):
            process, children = self.start("--workers", "2")
            os.kill(int(children[0]), number)
            _, errors = process.communicate()
            self.assertEqual(process.returncode, 1)
            self.assertIn(f"error: {message}", errors.splitlines()[-1])
            self.assertFalse(os.path.exists(self.output))

    def test_a_mistake_in_a_worker_says_what_it_was(self):
        self.write_data(*self.rows)
        program = (
            "import sys; from qlora_data import convert, main\n"
            "def bad(*_): raise ValueError('a mistake')\n"
            "convert.labels_of = bad\n"
            "sys.exit(main.main(sys.argv[1:]))\n")
        done = subprocess.run(
            [sys.executable, "-c", program, "--tokenizer", self.model,
             "--input", self.data, "--output", self.output, "--workers", "2"],
            env={**os.environ, "PYTHONPATH": os.path.dirname(TOOL)},
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.splitlines()[-1], "ValueError: a mistake")
        self.assertIn("in bad", done.stderr)

    def test_a_signal_leaves_nothing_behind(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, children = self.start("--workers", "2")
            before = set(os.listdir(self.folder))
            process.send_signal(number)
            process.send_signal(signal.SIGTERM)
            process.communicate()
            self.assertGreaterEqual(process.returncode, 128)
            self.assertFalse([pid for pid in children
                              if not self.is_zombie(pid)])
            self.assertEqual(set(os.listdir(self.folder)), before)

    def test_a_signal_while_writing_leaves_no_part(self):
        self.write_data(*self.rows)
        # The process ends when it would write the bytes to the disk.
        program = (
            "import os, signal, sys; from qlora_data import main, safetensors\n"
            "def stop(file):\n"
            "    for number in (signal.SIGINT, signal.SIGTERM):\n"
            "        os.kill(os.getpid(), number)\n"
            "safetensors.os.fsync = stop\n"
            "sys.exit(main.main(sys.argv[1:]))\n")
        before = set(os.listdir(self.folder))
        done = subprocess.run(
            [sys.executable, "-c", program, "--tokenizer", self.model,
             "--input", self.data, "--output", self.output],
            env={**os.environ, "PYTHONPATH": os.path.dirname(TOOL)},
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 130, done.stderr)
        self.assertEqual(set(os.listdir(self.folder)), before)

    def test_the_first_error_of_the_file(self):
        self.rows[1500] = self.rows[3100] = {"prompt": "x"}
        self.assertIn(f"{self.data}:1501: ", self.refusal(*self.rows))

    def test_nothing_goes_on_without_the_parent(self):
        process, children = self.start()
        process.send_signal(signal.SIGKILL)
        process.wait()
        for _ in range(1000):
            if not any(os.path.exists(f"/proc/{pid}") and not
                       self.is_zombie(pid) for pid in children):
                return
            time.sleep(0.02)
        self.fail("workers are still running")

    @staticmethod
    def children(pid):
        path = f"/proc/{pid}/task/{pid}/children"
        with open(path, encoding="ascii") as file:
            return file.read().split()

    @staticmethod
    def is_zombie(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True
