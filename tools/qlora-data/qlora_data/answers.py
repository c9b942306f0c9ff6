# SPDX-License-Identifier: MIT
"""Answers the rows of a file. Results are lines of JSONL in the order of the
rows. Lines of an earlier, interrupted run are kept, and their rows skipped."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from .decoding import Answer
from .engine import Engine
from .errors import DataError, unreadable, unwritable
from .prompts import ModelError, Prompts, adapter_of_row, ids_of_row
from .sampling import Sampling
from .sources import SourceRow, batches, data_files

# Fields of results, which replace those of rows.
_FIELDS = ("index", "output", "output_ids", "finish_reason", "logprobs",
           "error")
# Rows, per slot, that the engine has at a time, so that no slot is ever idle.
_ROWS_SENT = 2
# Rows, per slot, that may be read while the oldest one is still answered.
_ROWS_AHEAD = 128


class AnsweredRows:
    """Answers rows of a file in any order, and yields results in theirs."""

    def __init__(self, path: str, prompts: Prompts, sampling: Sampling):
        self._path, self._prompts, self._sampling = path, prompts, sampling
        self._running: dict[int, tuple[dict, Answer]] = {}
        self._results: dict[int, dict] = {}  # that were not yielded yet

    def results(self, engine: Engine, done: int) -> Iterator[dict]:
        """Yields the results of all rows but the first `done` ones."""
        rows = enumerate(row for batch, _ in batches(data_files(self._path))
                         for row in batch)
        count = sum(1 for _ in islice(rows, done))
        if count < done:
            raise DataError(f"has {count} rows, but the output has {done} "
                            "already", "name another --output", self._path)
        coming = next(rows, None)
        while coming or self._running or self._results:
            while done in self._results:
                yield self._results.pop(done)
                done += 1
            if coming and len(self._running) < _ROWS_SENT * engine.slots \
                    and coming[0] - done < _ROWS_AHEAD * engine.slots:
                self._start(engine, *coming)
                coming = next(rows, None)
            elif self._running:
                self._take(engine)

    def _start(self, engine: Engine, index: int, source: SourceRow) -> None:
        row: dict = {}
        try:
            row = source.read()
            adapter = adapter_of_row(row)
            if "input_ids" in row:
                ids, ends, text = ids_of_row(row), [], None
            else:
                ids = self._prompts.of_row(row)
                ends, text = self._prompts.answer(self._sampling.stops)
        except ModelError:  # every row would have it
            raise
        except DataError as error:
            self._finish(index, row, {"error": str(error.at(source.place))})
            return
        self._running[index] = row, Answer(text)
        engine.send(self._sampling.request(index, ids, ends) | adapter)

    def _finish(self, index: int, row: dict, fields: dict) -> None:
        kept = {name: row[name] for name in row if name not in _FIELDS}
        self._results[index] = {"index": index, **kept, **fields}

    def _take(self, engine: Engine) -> None:
        """Takes the engine's next token, of any row."""
        line = engine.receive()
        index = line["id"]
        if index not in self._running:  # it ended at a stop string
            return
        row, answer = self._running[index]
        if "error" in line:
            self._finish(index, row, {"error": line["error"]})
        else:
            answer.add(line)
            if not answer.finish:
                return
            if "finish" not in line:
                engine.send({"cancel": index})
            self._finish(index, row, answer.result())
        del self._running[index]


def answer_file(path: str, output: str | None, prompts: Prompts,
                sampling: Sampling, command: list[str], ranks: int) -> None:
    """Answers the rows of `path` on several ranks. Appends to `output`, or
    prints."""
    done, broken, size = _finished(output) if output else (0, 0, 0)
    rows = AnsweredRows(path, prompts, sampling)
    with _opened(output, size) as file, Engine(command, ranks) as engine:
        for result in rows.results(engine, done):
            _write(file, output, result)
            done += 1
            broken += "error" in result
    if not done:
        raise DataError("the data has no rows",
                        "write one JSON object a line", path)
    if broken:
        raise DataError(f"{broken} of {done} rows have no answer",
                        "see their 'error' in the output", path)


def _finished(path: str) -> tuple[int, int, int]:
    """Returns how many rows have a result in the file, how many of these have
    an error, and the bytes of these lines. An incomplete last line, of a run
    that was killed, does not count."""
    count = broken = size = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                is_broken = _has_error(line, count, path)
                if not line.endswith(b"\n"):
                    break
                broken += is_broken
                count += 1
                size += len(line)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable(path, error) from None
    return count, broken, size


def _has_error(line: bytes, index: int, path: str) -> bool:
    """Returns whether the result of row `index` is an error. Checks that its
    line is a result: other files must not be changed."""
    begin = json.dumps({"index": index})[:-1].encode()
    try:
        if line.startswith(begin + b",") or begin.startswith(line):
            return line.endswith(b"\n") and "error" in json.loads(line)
    except ValueError:
        pass
    raise DataError(f"is not the result of row {index}, so answers cannot be "
                    "added", "name another --output", f"{path}:{index + 1}")


@contextlib.contextmanager
def _opened(path: str | None, size: int) -> Iterator[BinaryIO]:
    """Opens the output at `size` bytes, and removes what follows."""
    if not path:
        yield sys.stdout.buffer
        return
    try:
        file = open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")
        if os.fstat(file.fileno()).st_size > size:
            file.truncate(size)
        file.seek(size)
    except OSError as error:
        raise unwritable(path, error) from None
    with file:
        yield file


def _write(file: BinaryIO, path: str | None, result: dict) -> None:
    # Cells of Parquet tables may have types that JSON lacks, such as dates.
    text = json.dumps(result, ensure_ascii=False, default=str) + "\n"
    try:
        # A lone surrogate becomes its escape, which JSON has too.
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(path or "standard output", error) from None
