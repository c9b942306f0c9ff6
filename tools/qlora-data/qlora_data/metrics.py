# SPDX-License-Identifier: MIT
"""Scores of answers: `qlora-data metrics`, and for evaluate.py.

    qlora-data metrics --model MODEL_DIR --input IDS.jsonl [options]

reads rows {"prompt_ids", "output_ids", "reference_ids", "finish_reason"}, and
prints one JSON object with the means of all rows. Each score is from 0 to 1.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter

from .arguments import Parser, boolean
from .environment import ensure_packages
from .errors import DataError, unreadable
from .jsonl import parse_line
from .model_files import ModelFiles
from .prompts import Prompts, is_token_ids
from .results import opened, write_result
from .rouge import NAMES as ROUGE
from .rouge import rouge
from .sampling import end_tokens_of
from .user_metrics import UserMetrics

SCORES = ("exact_match", "f1", *ROUGE)
# Names of a summary, which a user's metrics cannot have.
NAMES = (*SCORES, "stopped", "rows", "loss", "perplexity", "tokens")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_MARKS = str.maketrans("", "", string.punctuation)


def f1(reference: str, answer: str) -> float:
    """Returns the F-measure of words, normalised as SQuAD 2.0 does."""
    wanted, got = _squad_words(reference), _squad_words(answer)
    if not wanted or not got:
        return float(wanted == got)
    hits = sum((Counter(wanted) & Counter(got)).values())
    return 2 * hits / (len(wanted) + len(got))


def _squad_words(text: str) -> list[str]:
    """Returns the words in lower case, without punctuation and articles."""
    plain = text.lower().translate(_WITHOUT_MARKS)
    return _ARTICLES.sub(" ", plain).split()


def scores_of(reference: str, answer: str,
              use_stemmer: bool) -> dict[str, float]:
    """Returns SCORES. White space at both ends does not count in
    exact_match."""
    return {"exact_match": float(reference.strip() == answer.strip()),
            "f1": f1(reference, answer),
            **rouge(reference, answer, use_stemmer)}


def prediction_of(prompt: str, prediction: str, reference: str, finish: str,
                  use_stemmer: bool) -> dict:
    """Returns a row of predictions."""
    return {"prompt": prompt, "prediction": prediction, "reference": reference,
            **scores_of(reference, prediction, use_stemmer),
            "finish_reason": finish}


class Summary:
    """Means over rows of predictions."""

    def __init__(self, own: UserMetrics | None):
        self._own = own
        self._scores: dict[str, list[float]] = {name: [] for name in SCORES}
        self._stopped = 0
        self._texts: tuple[list[str], list[str]] = [], []

    @property
    def rows(self) -> int:
        return len(self._scores["f1"])

    def add(self, row: dict) -> None:
        for name in SCORES:
            self._scores[name].append(row[name])
        self._stopped += row["finish_reason"] == "stop"
        if self._own:
            self._texts[0].append(row["prediction"])
            self._texts[1].append(row["reference"])

    def result(self) -> dict:
        """Returns the means; called if there are rows."""
        means = {name: math.fsum(values) / self.rows
                 for name, values in self._scores.items()}
        means |= {"stopped": self._stopped / self.rows, "rows": self.rows}
        return means | (self._own.compute(*self._texts) if self._own else {})


def reference_ids(ids: list[int], end_tokens: set[int]) -> list[int]:
    """Returns the ids before the first end token."""
    return next((ids[:at] for at, number in enumerate(ids)
                 if number in end_tokens), ids)


def answer_ids(ids: list[int], finish: str) -> list[int]:
    """Returns the ids without the end token, which a stopped answer has."""
    return ids[:-1] if finish == "stop" else ids


def _parser() -> Parser:
    parser = Parser(prog="qlora-data metrics", allow_abbrev=False,
                    description="Scores answers, given as token ids. Prints "
                    "one JSON object. qlora-run calls it.")
    add = parser.add_argument
    add("--model", required=True, metavar="DIR",
        help="folder with the tokenizer")
    add("--input", required=True, metavar="FILE", help="JSONL file of rows "
        "with prompt_ids, output_ids, reference_ids and finish_reason")
    add("--output", metavar="FILE", help="JSONL file for texts and scores of "
        "each row, which replaces an older one")
    add("--chat-template", metavar="FILE|NAME",
        help="chat template to use instead of the tokenizer's, for its end "
        "token")
    add("--eos-token", default="", metavar="TOKEN",
        help="end token to use instead of the tokenizer's")
    add_metric_flags(parser)
    return parser


def add_metric_flags(parser: Parser) -> None:
    parser.add_argument(
        "--compute-metrics", metavar="FILE.py", help="file with a function "
        "compute_metrics(predictions, references), which returns further "
        "metrics")
    parser.add_argument(
        "--use-stemmer", type=boolean, default=False, metavar="true|false",
        help="compare the stems of English words in ROUGE (default: false)")


def _read(path: str):
    """Yields the rows of a file of ids, checked."""
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield _checked(parse_line(raw, f"{path}:{number}"),
                               f"{path}:{number}")
    except OSError as error:
        raise unreadable(path, error) from None


def _checked(row: dict, place: str) -> dict:
    for name in ("prompt_ids", "output_ids", "reference_ids"):
        if not is_token_ids(row.get(name)):
            raise DataError(f"'{name}' expects a list of token ids",
                            "write the row again", place)
    if row.get("finish_reason") not in ("stop", "length"):
        raise DataError("'finish_reason' expects stop or length",
                        "write the row again", place)
    return row


def metrics(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    args = _parser().parse_args(arguments[1:])
    own = (UserMetrics(args.compute_metrics, NAMES)
           if args.compute_metrics else None)
    ensure_packages(arguments)
    files = ModelFiles(args.model, args.eos_token)
    prompts = Prompts(files, args.chat_template, None)
    ends = {*end_tokens_of(files), *prompts.answer(())[0]}
    decode = prompts.converter.tokenizer.decode
    summary = Summary(own)
    with opened(args.output, 0) as file:
        for row in _read(args.input):
            finish = row["finish_reason"]
            scored = prediction_of(
                decode(row["prompt_ids"]),
                decode(answer_ids(row["output_ids"], finish), True),
                decode(reference_ids(row["reference_ids"], ends), True),
                finish, args.use_stemmer)
            if args.output:
                write_result(file, args.output,
                             {"index": summary.rows, **scored})
            summary.add(scored)
    if not summary.rows:
        raise DataError("has no rows", "write one JSON object a line",
                        args.input)
    print(json.dumps(summary.result()))
