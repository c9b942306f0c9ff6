# SPDX-License-Identifier: MIT
"""`qlora-data evaluate`: measures a model on rows of training data.

    qlora-data evaluate --model MODEL_DIR --tokenizer MODEL_DIR --input DATA
                        [options] -- qlora-run PROGRAM --generate ...

Rows become tokens and labels as in training. The last run of tokens in the loss
is the reference: the completion, or the last turn of the assistant. All tokens
before it are the prompt. The engine answers the prompt, and scores all tokens
of the row, whose mean negative log-likelihood is the loss of training.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arguments import Parser, boolean, positive
from .decoding import Answer
from .engine import Engine
from .environment import ensure_packages
from .errors import DataError
from .eval_summary import EvalSummary, write_metrics
from .generation import parse_with_engine
from .metrics import NAMES, add_metric_flags, prediction_of, reference_ids
from .model_files import ModelFiles
from .notices import report
from .ordering import OrderedRows
from .progress import progress_writer
from .prompts import Prompts
from .results import earlier_results, opened, write_result
from .row_flags import add_row_flags, columns_of
from .sampling import (Sampling, add_sampling_flags, end_tokens_of,
                       sampling_of)
from .sources import SourceRow, batches, source_of
from .user_metrics import UserMetrics

if TYPE_CHECKING:
    from .convert import Converter
    from .rows import TokenRows

IGNORED = -100  # as in masking.py, which needs the packages


@dataclass
class EvalRow:
    """A row of training data, or why it is none."""
    number: int
    place: str
    ids: list[int]
    labels: list[int]
    error: str = ""

    @property
    def reference(self) -> range:
        """The indices of the last run of tokens in the loss."""
        end = len(self.labels)
        while self.labels[end - 1] == IGNORED:
            end -= 1
        begin = end
        while self.labels[begin - 1] != IGNORED:  # the first token never is
            begin -= 1
        return range(begin, end)


def converted_rows(converter: Converter, sources: Iterator[SourceRow],
                   counts: TokenRows) -> Iterator[EvalRow]:
    """Yields the rows of training, and broken ones. Counts in `counts` rows
    that are changed or left out."""
    number = 0
    for source in sources:
        try:
            rows = list(converter.tokenised([source], counts))
            kept = [row for row in rows if not converter.add(row, counts)]
        except DataError as error:
            yield EvalRow(number, source.place, [], [],
                          str(error.at(source.place)))
            number += 1
            continue
        for row in kept:
            yield EvalRow(number, row.place, *row.sides[0])
            number += 1


@dataclass
class _Running:
    """A row that the engine answers and scores."""
    row: EvalRow
    adapter: dict  # of the request and the result
    answer: Answer | None
    scores: list[float] | None = None


class Evaluation(OrderedRows):
    """Each row has a result per variant: an adapter's name, None for the base,
    or "" for what the engine uses by itself. Each result has two requests:
    2 * index for the answer, 2 * index + 1 for the scores."""

    def __init__(self, prompts: Prompts, sampling: Sampling,
                 end_tokens: list[int], use_stemmer: bool, generates: bool):
        super().__init__()
        self._prompts, self._sampling = prompts, sampling
        self._use_stemmer, self._generates = use_stemmer, generates
        self._ends = {*end_tokens, *prompts.answer(())[0]}
        self._decode = prompts.converter.tokenizer.decode

    def start(self, engine: Engine, index: int,
              row: tuple[EvalRow, str | None]) -> None:
        one, name = row
        adapter = {} if name == "" else {"adapter": name}
        error = one.error
        if not error and len(one.ids) > engine.capacity:
            error = str(DataError(
                f"the row has {len(one.ids)} tokens, but there is space for "
                f"{engine.capacity}", "choose a longer --generation-length",
                one.place))
        if error:
            self.finish(index, {"index": index, **adapter, "error": error})
            return
        running = self.running[index] = _Running(one, adapter, None)
        engine.send({"id": 2 * index + 1, "input_ids": one.ids,
                     "prompt_logprobs": True, "max_new_tokens": 0, **adapter})
        if self._generates:
            ends, text = self._prompts.answer(self._sampling.stops)
            running.answer = Answer(text)
            prompt = one.ids[:one.reference.start]
            engine.send(self._sampling.request(one.number, prompt, ends)
                        | adapter | {"id": 2 * index})

    def take(self, engine: Engine) -> None:
        line = engine.receive()
        index, is_score = divmod(line["id"], 2)
        running = self.running.get(index)
        if not running:  # it ended at a stop string or with an error
            return
        if "error" in line:
            engine.send({"cancel": line["id"] ^ 1})
            self.finish(index, {"index": index, **running.adapter, "error":
                                f"{running.row.place}: {line['error']}"})
            return
        if is_score:
            running.scores = [-score[0][1] for score, label in zip(
                line["prompt_logprobs"], running.row.labels)
                if label != IGNORED]
        else:
            running.answer.add(line)
            if running.answer.finish and "finish" not in line:
                engine.send({"cancel": line["id"]})
        if running.scores is not None and (not running.answer
                                           or running.answer.finish):
            self.finish(index, self._result(index, running))

    def _result(self, index: int, running: _Running) -> dict:
        row, count = running.row, len(running.scores)
        result = {"index": index, **running.adapter}
        if running.answer:
            fields = running.answer.result()
            result |= prediction_of(
                self._decode(row.ids[:row.reference.start]), fields["output"],
                self._text(row), fields["finish_reason"], self._use_stemmer)
        return result | {"loss": math.fsum(running.scores) / count,
                         "tokens": count}


    def check_earlier(self, result: dict, pair: tuple | None,
                      args: argparse.Namespace) -> None:
        """Refuses a result of another evaluation, which a file has."""
        row, name = pair or (None, None)
        same = row and result.get("adapter", "") == name and (
            "error" in result or ("loss" in result and self._generates == (
                "prediction" in result)))
        if same and "reference" in result:
            same = result["reference"] == self._text(row)
        if not same:
            raise DataError(
                f"is no result of row {result['index']} of '{args.input}' with "
                "these options", "name another --output",
                f"{args.output}:{result['index'] + 1}")

    def _text(self, row: EvalRow) -> str:
        """Returns the text of the reference."""
        reference = [row.ids[at] for at in row.reference]
        return self._decode(reference_ids(reference, self._ends), True)


def _parser() -> Parser:
    parser = Parser(prog="qlora-data evaluate", allow_abbrev=False,
                    usage="%(prog)s --model DIR [options] -- ENGINE ...",
                    description="Measures a model on rows of training data. "
                    "qlora eval calls it.")
    add = parser.add_argument
    add("--model", required=True, metavar="DIR",
        help="folder with generation_config.json")
    add_row_flags(parser)
    add("--max-rows", type=positive, metavar="N", help="only the first N rows "
        "of the data")
    add("--generate", type=boolean, default=True, metavar="true|false",
        help="answer the prompts; false: only compute the loss")
    add("--compare-base", action="store_true",
        help="measure the base without an adapter too")
    add("--output", metavar="FILE", help="JSONL file for the results of rows; "
        "rows that it has already are skipped. FILE.metrics.json gets the "
        "metrics")
    add("--json", action="store_true", help="print the metrics as JSON")
    add_metric_flags(parser)
    add_sampling_flags(parser)
    add("--ranks", type=positive, default=1, metavar="N",
        help="start N engines, which share the rows (default: 1)")
    # Rows are not cut, because a reference must be complete.
    parser.set_defaults(pairs=False, unpaired=False, max_length=None, workers=1,
                        excess_length_strategy="truncate", logprobs=0,
                        max_samples=None, min_length=0,
                        drop_duplicates=False, packing_strategy="")
    return parser


def _variants(engine: Engine, compares_base: bool) -> list[str | None]:
    names: list[str | None] = list(engine.adapters)
    if compares_base:
        return [None, *names]
    return names if len(names) > 1 else [""]


def evaluate(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    parser = _parser()
    args, command = parse_with_engine(parser, arguments)
    columns_of(args)  # mistakes in them need no packages
    own = (UserMetrics(args.compute_metrics, NAMES)
           if args.compute_metrics else None)
    ensure_packages(arguments)
    # Not imported earlier: it needs the packages.
    from .conversion import converter_of
    from .rows import TokenRows
    files = ModelFiles(args.model, args.eos_token)
    if args.temperature is None:
        args.temperature = 0.0
    prompts = Prompts(files, args.chat_template, None)
    prompts.converter = converter_of(args)
    evaluation = Evaluation(prompts, sampling_of(files, args),
                            end_tokens_of(files), args.use_stemmer,
                            args.generate)
    sources = (row for batch, _ in batches(source_of(args.input, args.max_rows))
               for row in batch)
    counts = TokenRows()
    rows = converted_rows(prompts.converter, sources, counts)
    earlier = list(earlier_results(args.output)) if args.output else []
    size = earlier[-1][1] if earlier else 0
    with opened(args.output or os.devnull, size) as file, \
            Engine(command, args.ranks) as engine:
        variants = _variants(engine, args.compare_base)
        summary = EvalSummary(variants, own)
        pairs = enumerate((row, name) for row in rows for name in variants)
        for result, _ in earlier:
            evaluation.check_earlier(result, next(pairs, (0, None))[1], args)
            summary.add(result)
        with progress_writer(False, _progress_line) as progress:
            for result in evaluation.in_order(engine, pairs, len(earlier)):
                write_result(file, args.output, result)
                summary.add(result)
                progress(result["index"] + 1, sys.maxsize)
    report(args.input, counts, None)
    summary.check(args.input)
    write_metrics(summary.metrics(), args.output, args.json)
    summary.check_broken(args.input)


def _progress_line(done: int, _total: int, seconds: float) -> str:
    return f"answered {done} rows  {done / seconds:.1f} rows/s"
