# SPDX-License-Identifier: MIT
"""Rows as flat token ids and labels, with counts by kind. TokenRows holds one
part of the input in memory, RowSpool all parts in files."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from .masking import IGNORED
from .safetensors import Spool


@dataclass
class TokenRows:
    """Rows of a part of the input: flat ids and labels, and their offsets.

    Rows are also counted by kind:

        masked          left out: no token is in the loss
        cut_off         left out: --max-length cuts off the answer
        too_long        left out: more tokens than --max-length
        too_short       left out: fewer tokens than --min-length
        duplicate       left out: equal to an earlier row
        truncated       cut to --max-length
        split           a conversation that became several rows
        unreasoned      the chat template drops the reasoning
        dropping        the chat template drops tools or messages
        own_prompt      a pair with a column for its prompt
        shared_prompt   a pair whose texts both begin with the prompt
        repeated_prompt own_prompt, and both answers repeat the prompt
        apart_prompt    own_prompt, and the answers do not repeat it
    """
    input_ids: array = field(default_factory=lambda: array("i"))
    labels: array = field(default_factory=lambda: array("i"))
    row_offsets: array = field(default_factory=lambda: array("q", [0]))
    desirable: array = field(default_factory=lambda: array("i"))  # or empty
    labelled_tokens: int = 0
    longest: int = 0
    truncated_tokens: int = 0
    shortest_cut_off: int = 0  # tokens of the row
    chosen_template: str = ""  # used instead of the model's own
    kinds: Counter[str] = field(default_factory=Counter)  # rows of each kind
    first: dict[str, str] = field(default_factory=dict)  # place, by kind

    def count(self, kind: str, place: str) -> None:
        """Counts a row, and keeps the place of the first of its kind."""
        self.kinds[kind] += 1
        self.first.setdefault(kind, place)

    @property
    def dropped_rows(self) -> int:
        return sum(self.kinds[kind] for kind in (
            "masked", "cut_off", "too_long", "too_short", "duplicate"))

    def add_prompt(self, place: str, shared: bool, repeated: bool) -> None:
        """Records where a pair has its prompt."""
        if shared:
            self.count("shared_prompt", place)
            return
        self.count("own_prompt", place)
        self.count("repeated_prompt" if repeated else "apart_prompt", place)

    def add(self, place: str, sides: list[tuple[list[int], list[int]]],
            max_length: int | None, desirable: bool | None = None) -> str:
        """Adds a row: ids and labels (of both answers for a pair), and whether
        the answer is desirable, if known. Returns why it is left out, or "".
        The first token is never a target because nothing precedes it; every
        other label counts in the loss."""
        for _, labels in sides:
            labels[:1] = [IGNORED] * len(labels[:1])
        for _, labels in sides:
            kept = labels[:max_length]
            if len(kept) == kept.count(IGNORED):
                return self._drop(place, labels)
        for ids, labels in sides:
            self._keep(place, ids, labels, max_length)
        if desirable is not None:
            self.desirable.append(desirable)
        return ""

    def add_joined(self, ids: list[int], labels: list[int]) -> None:
        """Adds a row that joins others: all of its labels count."""
        self.input_ids.extend(ids)
        self.labels.extend(labels)
        self.row_offsets.append(len(self.input_ids))

    def leave_out(self, place: str, kind: str) -> str:
        """Counts a row of this kind, which is left out. Returns why."""
        self.count(kind, place)
        return {"too_long": "it has more tokens than --max-length",
                "too_short": "it has fewer tokens than --min-length"}[kind]

    def _keep(self, place: str, ids: list[int], labels: list[int],
              max_length: int | None) -> None:
        kept = labels[:max_length]
        learned = len(kept) - kept.count(IGNORED)
        lost = len(ids) - len(kept)
        if lost:
            self.count("truncated", place)
            self.truncated_tokens += lost
        self.input_ids.extend(ids[:max_length])
        self.labels.extend(kept)
        self.row_offsets.append(len(self.input_ids))
        self.labelled_tokens += learned
        self.longest = max(self.longest, len(kept))

    def _drop(self, place: str, labels: list[int]) -> str:
        if len(labels) == labels.count(IGNORED):
            self.count("masked", place)
            return "no token is in the loss"
        self.count("cut_off", place)
        self.shortest_cut_off = min(self.shortest_cut_off or len(labels),
                                    len(labels))
        return "--max-length cuts off its answer"


class RowSpool:
    """All rows, in unnamed files in the output's folder, so that memory use
    does not grow; and the counts of all parts."""

    def __init__(self, output: str, unpaired: bool = False):
        self.tensors = {name: Spool(code, output) for name, code in (
            ("input_ids", "i"), ("labels", "i"), ("row_offsets", "q"))}
        self.counts = TokenRows()
        if unpaired:
            self.tensors["desirable"] = Spool("i", output)
        self.tensors["row_offsets"].extend(array("q", [0]))

    @property
    def rows(self) -> int:
        return len(self.tensors["row_offsets"]) - 1

    @property
    def tokens(self) -> int:
        return len(self.tensors["input_ids"])

    def summary(self) -> dict[str, int]:
        counts = self.counts
        return {"rows": self.rows,
                "tokens": self.tokens,
                "labelled_tokens": counts.labelled_tokens,
                "truncated_rows": counts.kinds["truncated"],
                "truncated_tokens": counts.truncated_tokens,
                "dropped_rows": counts.dropped_rows,
                "cut_off_rows": counts.kinds["cut_off"],
                "longest": counts.longest}

    def extend(self, later: TokenRows) -> None:
        """Adds the rows of the next part."""
        base = self.tokens
        if "desirable" in self.tensors:
            self.tensors["desirable"].extend(later.desirable)
        self.tensors["input_ids"].extend(later.input_ids)
        self.tensors["labels"].extend(later.labels)
        self.tensors["row_offsets"].extend(
            array("q", [base + end for end in later.row_offsets[1:]]))
        counts = self.counts
        counts.kinds += later.kinds
        counts.first = {**later.first, **counts.first}
        counts.labelled_tokens += later.labelled_tokens
        counts.truncated_tokens += later.truncated_tokens
        counts.chosen_template = counts.chosen_template or later.chosen_template
        counts.longest = max(counts.longest, later.longest)
        shortest = [count for count in (counts.shortest_cut_off,
                                        later.shortest_cut_off) if count]
        counts.shortest_cut_off = min(shortest, default=0)
