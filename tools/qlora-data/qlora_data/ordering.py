# SPDX-License-Identifier: MIT
"""Answers many rows at the same time, and yields the results in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

from .engine import Engine
from .errors import DataError

# Rows, per slot, that the engine has at a time, so that no slot is ever idle.
_ROWS_SENT = 2
# Rows, per slot, that may be read while the oldest one is still answered.
_ROWS_AHEAD = 128

T = TypeVar("T")


class OrderedRows:
    """Answers rows in any order, and yields their results in the order of the
    rows. Subclasses start rows, and take the engine's lines."""

    def __init__(self) -> None:
        self.running: dict[int, Any] = {}  # by index
        self._results: dict[int, dict] = {}  # that were not yielded yet

    def in_order(self, engine: Engine, rows: Iterator[tuple[int, Any]],
                 done: int) -> Iterator[dict]:
        """Yields the results of rows with indices from `done`."""
        coming = next(rows, None)
        while coming or self.running or self._results:
            while done in self._results:
                yield self._results.pop(done)
                done += 1
            if coming and len(self.running) < _ROWS_SENT * engine.slots \
                    and coming[0] - done < _ROWS_AHEAD * engine.slots:
                self.start(engine, *coming)
                coming = next(rows, None)
            elif self.running:
                self.take(engine)

    def start(self, engine: Engine, index: int, row: Any) -> None:
        """Adds the row to `running`, or finishes it."""
        raise NotImplementedError

    def take(self, engine: Engine) -> None:
        """Takes a line of the engine, about any row."""
        raise NotImplementedError

    def finish(self, index: int, result: dict) -> None:
        self.running.pop(index, None)
        self._results[index] = result


def skipped(rows: Iterator[T], done: int, path: str) -> Iterator[T]:
    """Returns the rows after the first `done` ones, which were answered."""
    count = sum(1 for _ in islice(rows, done))
    if count < done:
        raise DataError(f"has {count} rows, but the output has {done} already",
                        "name another --output", path)
    return rows
