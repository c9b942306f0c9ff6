# SPDX-License-Identifier: MIT
"""Answers the rows of a file. Results are lines of JSONL in the order of the
rows. Lines of an earlier, interrupted run are kept, and their rows skipped."""

from __future__ import annotations

from collections.abc import Iterator

from .decoding import Answer
from .engine import Engine
from .errors import DataError
from .ordering import OrderedRows, skipped
from .prompts import ModelError, Prompts, adapter_of_row, ids_of_row
from .results import earlier_results, opened, write_result
from .sampling import Sampling
from .sources import SourceRow, batches, source_of

# Fields of results, which replace those of rows.
_FIELDS = ("index", "output", "output_ids", "finish_reason", "logprobs",
           "error")


class AnsweredRows(OrderedRows):
    """Answers rows of a file."""

    def __init__(self, path: str, prompts: Prompts, sampling: Sampling):
        super().__init__()
        self._path, self._prompts, self._sampling = path, prompts, sampling

    def results(self, engine: Engine, done: int) -> Iterator[dict]:
        """Yields the results of all rows but the first `done` ones."""
        rows = enumerate(row for batch, _ in batches(source_of(self._path))
                         for row in batch)
        return self.in_order(engine, skipped(rows, done, self._path), done)

    def start(self, engine: Engine, index: int, row: SourceRow) -> None:
        source, row = row, {}
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
        self.running[index] = row, Answer(text)
        engine.send(self._sampling.request(index, ids, ends) | adapter)

    def _finish(self, index: int, row: dict, fields: dict) -> None:
        kept = {name: row[name] for name in row if name not in _FIELDS}
        self.finish(index, {"index": index, **kept, **fields})

    def take(self, engine: Engine) -> None:
        line = engine.receive()
        index = line["id"]
        if index not in self.running:  # it ended at a stop string
            return
        row, answer = self.running[index]
        if "error" in line:
            self._finish(index, row, {"error": line["error"]})
        else:
            answer.add(line)
            if not answer.finish:
                return
            if "finish" not in line:
                engine.send({"cancel": index})
            self._finish(index, row, answer.result())


def answer_file(path: str, output: str | None, prompts: Prompts,
                sampling: Sampling, command: list[str], ranks: int) -> None:
    """Answers the rows of `path` on several ranks. Appends to `output`, or
    prints."""
    done = broken = size = 0
    for result, size in earlier_results(output) if output else ():
        done += 1
        broken += "error" in result
    rows = AnsweredRows(path, prompts, sampling)
    with opened(output, size) as file, Engine(command, ranks) as engine:
        for result in rows.results(engine, done):
            write_result(file, output, result)
            done += 1
            broken += "error" in result
    if not done:
        raise DataError("the data has no rows",
                        "write one JSON object a line", path)
    if broken:
        raise DataError(f"{broken} of {done} rows have no answer",
                        "see their 'error' in the output", path)
