# SPDX-License-Identifier: MIT
"""Starts `qlora` and reads its output."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_BUILD = os.path.join(_HERE, "..", "..", "..", "build", "bin")
# Exit codes after Ctrl-C or SIGTERM, both of which end a run with a checkpoint.
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


class Error(Exception):
    """The program's error message: location, problem, and fix."""


def _program(name: str) -> str:
    """Finds a program in the wheel, the build of a clone, or PATH."""
    for folder in (os.path.join(_HERE, "bin"), _BUILD):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if not found:
        raise Error(f"{name} is not installed: it is neither in this package "
                    "nor in PATH")
    return found


def _nvidia(name: str) -> list[str]:
    """Returns folders of NVIDIA's packages, such as nvidia/cu13/lib."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec else None
    return sorted(path for root in roots or ()
                  for path in glob.glob(os.path.join(root, "*", name)))


def _environment() -> dict[str, str]:
    """Makes qlora-data run in this Python if it has the packages; otherwise
    qlora-data looks for another one. Lets the programs find nvcc and the
    libraries of qlora[cuda]."""
    environment = dict(os.environ)
    if all(importlib.util.find_spec(name) for name in ("tokenizers", "jinja2")):
        environment.setdefault("QLORA_PYTHON", sys.executable)
    for variable, name in (("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")):
        if folders := _nvidia(name):
            environment[variable] = os.pathsep.join(
                filter(None, [os.environ.get(variable), *folders]))
    return environment


def _text(value: Any) -> str:
    if isinstance(value, (bool, list, tuple, dict)):
        return json.dumps(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _flags(options: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in options.items():
        # A list of data files becomes one flag per file.
        several = (name in ("train_file", "validation_file")
                   and isinstance(value, (list, tuple)))
        for one in value if several else [value]:
            if several and not isinstance(one, (str, os.PathLike)):
                raise TypeError(
                    f"{name}: expects paths of files or folders, but got a "
                    f"{type(one).__name__}. Fix: write rows to a JSONL file")
            if one is not None:
                flags.append(f"--{name.replace('_', '-')}={_text(one)}")
    return flags


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.terminate()


class Training:
    """A run. Iteration yields metrics as they arrive, and raises Error if the
    run fails. Deleting the object also ends the run (see stop())."""

    def __init__(self, command: list[str]):
        self.metrics: list[dict[str, Any]] = []  # all until now
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, env=_environment(), text=True,
            encoding="utf-8", errors="replace")
        weakref.finalize(self, _end, self._process)
        # One thread per pipe, because a full pipe would block the program. The
        # threads copy text to sys.stderr and sys.stdout, as notebooks need.
        # They hold no reference to this object, so that it can be deleted.
        self._rows: queue.SimpleQueue = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=_forward, daemon=True, args=(
                self._process.stderr, sys.stderr, self._errors)),
            threading.Thread(target=_read_rows, daemon=True, args=(
                self._process.stdout, sys.stdout, self._rows))]
        for reader in self._readers:
            reader.start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        try:
            row = self._rows.get()
        except KeyboardInterrupt:
            # A terminal sends SIGINT to the program, too; it counts both as
            # one.
            self.stop(signal.SIGINT)
            raise
        if row is None:
            self._rows.put(None)  # for the next call
            self._finish()
            raise StopIteration
        self.metrics.append(row)
        return row

    def _finish(self) -> None:
        code = self._process.wait()
        for reader in self._readers:
            reader.join()
        if code != 0 and code not in _STOPPED:
            raise Error("\n".join(self._errors)
                        or f"qlora ended with code {code}")

    def wait(self) -> list[dict[str, Any]]:
        """Waits for the end, and returns all metrics."""
        for _ in self:
            pass
        return self.metrics

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the run after its step, with a checkpoint and the adapter."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        while (row := self._rows.get()) is not None:
            self.metrics.append(row)
        self._rows.put(None)
        self._process.wait()

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the run lasts."""
        return self._process.poll()


def _forward(pipe, out, errors: list[str]) -> None:
    for line in pipe:
        out.write(line)
        out.flush()
        name, found, message = line.partition(": error: ")
        if found and name.startswith("qlora"):
            errors.append(message.rstrip())


def _read_rows(pipe, out, rows: queue.SimpleQueue) -> None:
    """Queues metrics, then None. Prints other lines (commands of dry_run)."""
    for line in pipe:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.put(row)
        else:
            out.write(line)
            out.flush()
    rows.put(None)


def train(model, data=None, **options) -> Training:
    """Starts a run. `model`: a folder, a YAML file or a compiled train.so.
    `data`: a file, a folder, or a list of them."""
    if data is not None:
        options["train_file"] = data
    options.setdefault("log_format", "json")
    return Training([_program("qlora"), "train", _text(model),
                     *_flags(options)])


def _say(command: str, model, options: dict[str, Any]) -> str:
    done = subprocess.run(
        [_program("qlora"), command, _text(model), *_flags(options)],
        capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        raise Error(done.stderr.strip())
    return done.stdout


def plan(model, **options) -> str:
    """Returns the output of `qlora plan`: memory and predicted time."""
    return _say("plan", model, options)


def memory(model, **options) -> str:
    """Returns the output of `qlora memory`: which configurations fit."""
    return _say("memory", model, options)


def main() -> None:
    """Becomes the program that the wheel's command is called after."""
    path = _program(os.path.basename(sys.argv[0]))
    os.execve(path, [path, *sys.argv[1:]], _environment())
