# SPDX-License-Identifier: MIT
"""Prints rows as they are trained, with the tokens in the loss marked.

Converts rows of text as for training (Converter.tokenised() and add()), and
reads token files unchanged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from .convert import Converter
from .errors import DataError
from .masking import IGNORED
from .rows import TokenRows
from .safetensors import read_integers
from .sources import batches, source_of
from .tokenizer import TextTokenizer


@dataclass
class ShownRow:
    """The tokens of a text: a row, or one answer of a row."""
    number: int  # of the row, from 1
    place: str
    answer: str  # "chosen", "rejected", "desirable", "undesirable" or ""
    ids: list[int]
    labels: list[int]
    cut: int = 0  # tokens after --max-length
    left_out: str = ""  # why the row is not trained on

    def counts(self) -> dict:
        place = self.place.removeprefix(os.getcwd() + os.sep)
        return {"row": self.number, "place": place, "answer": self.answer,
                "tokens": len(self.ids),
                "tokens_in_loss": len(self.ids) - self.labels.count(IGNORED),
                "tokens_cut": self.cut, "left_out": self.left_out}


def _ends(tokenizer: TextTokenizer, row: ShownRow) -> bool:
    """Returns whether the last token in the loss, apart from spaces, is an end
    token: one of the tokenizer's added tokens. Without one, the model learns no
    end of its answers. True for a row without such a token, or that is cut."""
    last = len(row.labels)
    while last and (row.labels[last - 1] == IGNORED
                    or tokenizer.decode([row.ids[last - 1]]).isspace()):
        last -= 1
    return not last or row.cut > 0 or (
        tokenizer.token(row.ids[last - 1]) in tokenizer.added_tokens)


def _judged(desirable: object) -> str:
    if desirable is None:
        return ""
    return "desirable" if desirable else "undesirable"


def text_rows(converter: Converter, path: str, chosen: range | list[int],
              out: TokenRows) -> Iterator[ShownRow]:
    """Yields rows with the numbers `chosen`. Counts changed rows in `out`."""
    limit = converter.options.max_length
    source = source_of(path, converter.options.max_samples)
    sources = (row for rows, _ in batches(source) for row in rows)
    for number, source in zip(range(1, max(chosen) + 1), sources):
        if number not in chosen:
            continue
        for row in converter.tokenised([source], out):
            left_out = converter.add(row, out)
            answers = ("chosen", "rejected") if len(row.sides) == 2 else (
                _judged(row.desirable),)
            for answer, (ids, labels) in zip(answers, row.sides):
                yield ShownRow(number, row.place, answer, ids[:limit],
                               [IGNORED, *labels[1:limit]],
                               len(ids[limit or len(ids):]), left_out)


def token_rows(path: str) -> Iterator[ShownRow]:
    """Reads a rows file, or the sequences of a file of micro-batches."""
    tensors, metadata = read_integers(path)
    if not {"input_ids", "labels"} <= set(tensors):
        raise DataError("has no tensors input_ids and labels", "see Token file "
                        "in qlora-data's README.md", path)
    (shape, ids), (_, labels) = tensors["input_ids"], tensors["labels"]
    _, segments = tensors.get("segment_ids", (None, None))
    if "row_offsets" in tensors:
        _, ends = tensors["row_offsets"]
    else:
        ends = range(0, len(ids) + 1, shape[-1])
    sides = 2 if metadata.get("pairs") == "true" else 1
    for row in range(len(ends) - 1):
        answer = ("chosen", "rejected")[row % 2] if sides == 2 else ""
        if "desirable" in tensors:
            answer = _judged(tensors["desirable"][1][row])
        span = range(ends[row], ends[row + 1])
        for segment, part in groupby(span, lambda t: segments[t]
                                     if segments else 1):
            if segment:  # 0 is padding
                part = list(part)
                yield ShownRow(row // sides + 1, path, answer,
                               [ids[t] for t in part],
                               [IGNORED, *(labels[t] for t in part[1:])])


def _runs(tokenizer: TextTokenizer,
          row: ShownRow) -> Iterator[tuple[bool, int, int, str]]:
    """Yields (is in the loss, begin, end, text) for each run of consecutive
    tokens that are all in the loss or all outside of it."""
    begin, before = 0, ""
    for in_loss, labels in groupby(row.labels, lambda label: label != IGNORED):
        end = begin + len(list(labels))
        # Decode all tokens so far: one alone may be half a character.
        through = tokenizer.decode(row.ids[:end])
        same = len(os.path.commonprefix((before, through)))
        yield in_loss, begin, end, through[same:]
        begin, before = end, through


def _printable(line: str) -> str:
    """Escapes control characters and invisible characters."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1]
                   for letter in line)


def _print_text(tokenizer: TextTokenizer, row: ShownRow,
                token_ids: bool) -> None:
    green, yellow, plain = (("\033[32m", "\033[33m", "\033[0m")
                            if sys.stdout.isatty() and not os.environ.get(
                                "NO_COLOR") else ("", "", ""))
    counts = row.counts()
    answer = f" ({row.answer})" if row.answer else ""
    cut = f", {row.cut} more are cut" if row.cut else ""
    left_out = f"; left out: {row.left_out}" if row.left_out else ""
    page = [f"row {row.number}{answer}, {counts['place']}: {counts['tokens']} "
            f"tokens, {counts['tokens_in_loss']} in the loss{cut}{left_out}"]
    for in_loss, begin, end, text in _runs(tokenizer, row):
        shown = text.replace("\n", "\u21b5\n").removesuffix("\n")
        lines = [_printable(line) for line in shown.split("\n")]
        if token_ids:
            lines = [f"{number:>7}  {tokenizer.token(number)}"
                     for number in row.ids[begin:end]]
        page += [f"{green}loss  {line}{plain}" if in_loss else f"      {line}"
                 for line in lines]
    if not _ends(tokenizer, row):
        page.append(f"{yellow}warning: the last token in the loss is no end "
                    f"token, so answers may not end{plain}")
    print("\n".join(page), end="\n\n")


def show(converter: Converter, path: str, chosen: range | list[int],
         token_ids: bool, as_json: bool) -> TokenRows:
    """Prints rows with the numbers `chosen`. Returns counts of changed rows."""
    out, seen = TokenRows(), set()
    if path.endswith(".safetensors"):
        rows = (row for row in token_rows(path) if row.number in chosen)
    else:
        rows = text_rows(converter, path, chosen, out)
    sys.stdout.reconfigure(errors="backslashreplace")
    for row in rows:
        seen.add(row.number)
        if as_json:
            texts = [{"text": text, "in_loss": in_loss} for in_loss, _, _, text
                     in _runs(converter.tokenizer, row)]
            print(json.dumps({**row.counts(), "texts": texts,
                              "ends": _ends(converter.tokenizer, row),
                              "input_ids": row.ids, "labels": row.labels},
                             ensure_ascii=False))
        else:
            _print_text(converter.tokenizer, row, token_ids)
    missing = set(chosen) - seen
    if missing and (not seen or isinstance(chosen, list)):
        raise DataError(f"has no row {min(missing)}", "choose existing rows "
                        "with --rows", path)
    return out
