# SPDX-License-Identifier: MIT
"""Rows of the engine, for an event loop: a queue of those that wait, and the
engine's lines for those that run.

Two threads exchange messages with the engine, because both directions can
block. Everything else runs in the thread of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from .engine import Engine
from .errors import DataError
from .serve_errors import Refusal, busy

# Rows, per slot, that the engine has at a time, so that no slot is ever idle.
_ROWS_SENT = 2
_SECONDS_TO_WRITE = 5


class Reply:
    """The engine's lines for the rows of one request."""

    def __init__(self, rows: EngineRows, first: int, count: int):
        self._rows, self._first = rows, first
        self.open = set(range(first, first + count))
        self._lines: asyncio.Queue[tuple[int, dict] | Exception] = \
            asyncio.Queue()

    async def next(self) -> tuple[int, dict]:
        """Returns the next line, and the index of its row."""
        line = await self._lines.get()
        if isinstance(line, Exception):
            raise line
        return line

    def put(self, row: int, line: dict) -> None:
        self._lines.put_nowait((row - self._first, line))

    def fail(self, error: Exception) -> None:
        """Lets next() raise an error, after the lines that came before."""
        self._lines.put_nowait(error)

    def end(self, index: int) -> None:
        """Ends a row, whose further lines are dropped."""
        self._rows.end({self._first + index} & self.open)
        self.open.discard(self._first + index)

    def close(self) -> None:
        """Ends all rows. Called once for each reply."""
        self._rows.close(self)


class EngineRows:
    """`most_waiting`: rows that may wait for a slot. `on_failure` is called
    once, if the engine dies."""

    def __init__(self, engine: Engine, most_waiting: int,
                 on_failure: Callable[[DataError], None]):
        self._engine, self._on_failure = engine, on_failure
        self._most = most_waiting + engine.slots
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[dict] = deque()
        self._replies: dict[int, Reply] = {}  # by id of a row
        self._sent: set[int] = set()
        self._next = 0
        self._failure: DataError | None = None
        self._outbox: SimpleQueue[dict | None] = SimpleQueue()
        self._writer = Thread(target=self._write, daemon=True)
        self._writer.start()
        Thread(target=self._read, daemon=True).start()

    @property
    def running(self) -> int:
        return min(len(self._sent), self._engine.slots)

    @property
    def waiting(self) -> int:
        return len(self._replies) - self.running

    def check_queue(self, count: int = 1) -> None:
        """Refuses a request of `count` rows if they must not wait."""
        if self._failure:
            raise Refusal(500, str(self._failure))
        if len(self._replies) + count > self._most:
            raise busy(f"{self.waiting} rows are waiting. Fix: send the "
                       "request again later", "queue_full")

    def start(self, requests: list[dict], seed: int) -> Reply:
        """Adds the rows of a request. Those without a seed get `seed` plus
        their number since the start."""
        count, most = len(requests), self._most
        if count > most:
            raise Refusal(400, f"the request has {count} rows, but at most "
                          f"{most} can wait and run. Fix: fewer prompts or "
                          "choices, or a server with a larger --max-queue")
        self.check_queue(count)
        reply = Reply(self, self._next, count)
        for request in requests:
            self._waiting.append({"seed": seed + self._next, **request,
                                  "id": self._next})
            self._replies[self._next] = reply
            self._next += 1
        self._send()
        return reply

    def end(self, rows: set[int]) -> None:
        for row in rows:
            del self._replies[row]
            if row in self._sent:
                self._sent.discard(row)
                self._outbox.put({"cancel": row})
        self._send()

    def close(self, reply: Reply) -> None:
        if any(row not in self._sent for row in reply.open):
            self._waiting = deque(request for request in self._waiting
                                  if request["id"] not in reply.open)
        self.end(reply.open)
        reply.open = set()

    def fail_all(self, error: Exception) -> None:
        for reply in set(self._replies.values()):
            reply.fail(error)

    def stop(self) -> None:
        """Waits until the engine has all messages, such as cancellations."""
        self._outbox.put(None)
        self._writer.join(_SECONDS_TO_WRITE)

    def _send(self) -> None:
        while self._waiting and \
                len(self._sent) < _ROWS_SENT * self._engine.slots:
            request = self._waiting.popleft()
            self._sent.add(request["id"])
            self._outbox.put(request)

    def _take(self, line: dict) -> None:
        row = line["id"]
        reply = self._replies.get(row)
        if reply is None:  # canceled
            return
        reply.put(row, line)
        if "finish" in line or "error" in line:
            del self._replies[row]
            self._sent.discard(row)
            reply.open.discard(row)
            self._send()

    def _fail(self, error: DataError) -> None:
        if not self._failure:
            self._failure = error
            self.fail_all(Refusal(500, str(error)))
            self._on_failure(error)

    def _read(self) -> None:
        """Runs in a thread: passes the engine's lines on."""
        try:
            while True:
                self._call(self._take, self._engine.receive())
        except DataError as error:
            self._call(self._fail, error)
        except ValueError as error:  # of the JSON library
            self._call(self._fail, DataError(
                f"the engine's answer is not JSON: {error}",
                "install qlora again"))

    def _write(self) -> None:
        """Runs in a thread: sends messages to the engine."""
        try:
            while message := self._outbox.get():
                self._engine.send(message)
        except DataError as error:
            self._call(self._fail, error)

    def _call(self, function: Callable, argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the server has ended
            pass
