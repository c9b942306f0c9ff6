# SPDX-License-Identifier: MIT
"""Running processes of `qlora-run PROGRAM --generate`, which generate tokens.
runtime/Session/GenerationSession.h describes their requests and answers."""

from __future__ import annotations

import json
import os
import subprocess
from queue import SimpleQueue
from threading import Thread

from .errors import DataError

_SECONDS_TO_STOP = 5


class EngineError(DataError):
    """The error of an engine that has ended."""


class _Rank:
    """A process, and the ids of the rows that it has."""

    def __init__(self, command: list[str], number: int, ranks: int):
        self._name = os.path.basename(command[0])
        self.rows: set[int] = set()
        try:
            # A session of its own, so that Ctrl-C reaches only this program.
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=_environment(number, ranks), start_new_session=True)
        except OSError as error:
            raise DataError(f"cannot start '{command[0]}': {error.strerror}",
                            "install qlora again") from None

    def send(self, message: dict) -> None:
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.ended() from None

    def parsed(self, line: bytes | None) -> dict:
        """Returns a line of the process as an object. None is its end."""
        if line is None:
            raise self.ended()
        answer = json.loads(line)
        if answer.get("id", 0) is None:
            raise DataError(f"{self._name} does not understand a request: "
                            f"{answer['error']}", "install qlora again")
        return answer

    def ended(self) -> EngineError:
        """Returns the error for a process that ended too early. The process has
        written the cause to stderr."""
        code = self.process.wait()
        how = f"with code {code}" if code >= 0 else f"by signal {-code}"
        return EngineError(f"{self._name} ended {how} before the last answer",
                           "see its error above")

    def kill_late(self) -> None:
        """Waits for the end of a process that was told to stop."""
        try:
            self.process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Engine:
    """Starts `ranks` processes of the command, and waits until all have loaded
    the model. Rows are distributed to them. If one process dies, all end. As a
    context manager, it ends the processes: after their last answers, or at once
    if an exception ends the block.

    `slots`: rows that are generated at the same time, on all ranks.
    `capacity`: tokens of a row. `vocabulary`: number of token ids. `adapters`:
    names of the loaded adapters. `has_base`: whether rows may use the base
    alone."""

    def __init__(self, command: list[str], ranks: int = 1):
        self._ranks: list[_Rank] = []
        # Threads read the answers. Otherwise two programs could wait to write
        # to full pipes.
        self._lines: SimpleQueue[tuple[_Rank, bytes | None]] = SimpleQueue()
        try:
            for number in range(ranks):
                rank = _Rank(command, number, ranks)
                self._ranks.append(rank)
                Thread(target=self._read, args=(rank,), daemon=True).start()
            ready = [self.receive()["ready"] for _ in self._ranks]
        except BaseException:
            self._stop()
            raise
        self.slots: int = sum(one["slots"] for one in ready)
        self.capacity: int = ready[0]["capacity"]
        self.vocabulary: int = ready[0]["vocabulary"]
        self.adapters: list[str] = ready[0]["adapters"]
        self.has_base: bool = ready[0]["base"]

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            self._stop()
            return
        for rank in self._ranks:
            rank.process.stdin.close()
        for rank in self._ranks:
            if rank.process.wait():
                self._stop()
                raise rank.ended()

    def _read(self, rank: _Rank) -> None:
        for line in rank.process.stdout:
            self._lines.put((rank, line))
        self._lines.put((rank, None))

    def send(self, message: dict) -> None:
        """Sends a row to the rank with the fewest rows, or {"cancel": id} to
        the rank that has the row. A row that has ended needs no cancelling."""
        if "cancel" in message:
            for rank in self._ranks:
                if message["cancel"] in rank.rows:
                    rank.rows.discard(message["cancel"])
                    rank.send(message)
            return
        rank = min(self._ranks, key=lambda rank: len(rank.rows))
        rank.rows.add(message["id"])
        rank.send(message)

    def receive(self) -> dict:
        """Returns the next answer, of any rank; waits for it."""
        rank, line = self._lines.get()
        answer = rank.parsed(line)
        if "finish" in answer or "error" in answer:
            rank.rows.discard(answer["id"])
        return answer

    def _stop(self) -> None:
        for rank in self._ranks:
            rank.process.terminate()
        for rank in self._ranks:
            rank.kill_late()


def _environment(rank: int, ranks: int) -> dict[str, str] | None:
    """Returns the environment of a rank, which sees one GPU; None: this
    process's. Programs for the CPU ignore it."""
    if ranks == 1:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = (visible.split(",") if visible is not None
            else [str(gpu) for gpu in range(ranks)])
    # A rank without a GPU sees none, and says so if its program needs one.
    gpu = gpus[rank].strip() if rank < len(gpus) else ""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
