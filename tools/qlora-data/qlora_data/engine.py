# SPDX-License-Identifier: MIT
"""A running `qlora-run PROGRAM --generate`, which generates tokens.
runtime/Session/GenerationSession.h describes its requests and answers."""

from __future__ import annotations

import json
import os
import subprocess
from queue import SimpleQueue
from threading import Thread

from .errors import DataError

_SECONDS_TO_STOP = 5


class Engine:
    """Starts the engine; waits until its model is loaded. As a context manager,
    it ends the engine: after its last answer, or at once if an exception ends
    the block. `slots`: rows that are generated at the same time."""

    def __init__(self, command: list[str]):
        self._name = os.path.basename(command[0])
        try:
            # A session of its own, so that Ctrl-C reaches only this program.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True)
        except OSError as error:
            raise DataError(f"cannot start '{command[0]}': {error.strerror}",
                            "install qlora again") from None
        # A thread reads the answers. Otherwise both programs could wait to
        # write to full pipes.
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()
        try:
            self.slots: int = self.receive()["ready"]["slots"]
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            self._stop()
            return
        self._process.stdin.close()
        if self._process.wait():
            raise self._ended()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def send(self, message: dict) -> None:
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> dict:
        """Returns the next answer; waits for it."""
        line = self._lines.get()
        if line is None:
            raise self._ended()
        answer = json.loads(line)
        if answer.get("id", 0) is None:
            raise DataError(f"{self._name} does not understand a request: "
                            f"{answer['error']}", "install qlora again")
        return answer

    def _ended(self) -> DataError:
        """Returns the error for an engine that ended too early. The engine has
        written the cause to stderr."""
        code = self._process.wait()
        how = f"with code {code}" if code >= 0 else f"by signal {-code}"
        return DataError(f"{self._name} ended {how} before the last answer",
                         "see its error above")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
