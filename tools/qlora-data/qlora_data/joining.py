# SPDX-License-Identifier: MIT
"""Makes other rows of the tokens of rows: pieces of long rows, and rows of
equal length from all rows joined (--packing-strategy)."""

from __future__ import annotations

from array import array

from .masking import IGNORED
from .rows import TokenRows

WRAPPED = "wrapped"  # TRL's
LLAMA_FACTORY = "llamafactory-wrapped"  # PretrainDatasetProcessor
_OVERLAP = 256


def pieces(ids: list[int], labels: list[int],
           length: int) -> list[tuple[list[int], list[int]]]:
    """Cuts a row into rows of at most `length` tokens."""
    return [(ids[first:first + length], labels[first:first + length])
            for first in range(0, len(ids), length)]


def windows(ids: list[int], before: list[int], after: list[int],
            length: int) -> list[list[int]]:
    """Cuts a text into rows that overlap, as axolotl's
    PretrainTokenizationStrategy does: each begins and ends with the given
    tokens. The last token of `after` is an end token."""
    most = length - len(before) - len(after)
    step = most - min(_OVERLAP, (length - 1) // 2)
    if step < 1:
        return [before + ids + after]
    count = 1 + max(0, -(-(len(ids) - most) // step))
    return [before + ids[number * step:number * step + most] + after
            for number in range(count)]


class Wrapping:
    """Joins rows and cuts them. `begin`: the token that replaces the first one
    of each new row. `keeps_rest`: the last row may be shorter."""

    def __init__(self, length: int, begin: int | None, keeps_rest: bool):
        self._length, self._begin = length, begin
        self._keeps_rest = keeps_rest
        self._ids, self._labels = array("i"), array("i")

    def wrapped(self, rows: TokenRows, is_last: bool = False) -> TokenRows:
        """Returns the new rows, with the counts of the given ones."""
        self._ids.extend(rows.input_ids)
        self._labels.extend(rows.labels)
        out = TokenRows(chosen_template=rows.chosen_template, kinds=rows.kinds,
                        first=rows.first)
        whole = len(self._ids) // self._length * self._length
        end = len(self._ids) if is_last and self._keeps_rest else whole
        for first in range(0, end, self._length):
            ids = self._ids[first:first + self._length]
            if self._begin is not None:
                ids[0] = self._begin
            labels = self._labels[first:first + self._length].tolist()
            if labels[1:].count(IGNORED) < len(labels) - 1:
                out.add("", [(ids.tolist(), labels)], None)
        del self._ids[:end], self._labels[:end]
        return out
