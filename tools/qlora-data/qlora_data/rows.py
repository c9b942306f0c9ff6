# SPDX-License-Identifier: MIT
"""Token rows: flat ids and labels, and counts of cut rows. One part's rows are
in memory, all rows in files."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from .masking import IGNORED
from .safetensors import Spool


@dataclass
class TokenRows:
    """Rows of a part of the input: flat ids and labels, and their offsets.
    `first_...`: the place of a row; empty: there is none."""
    input_ids: array = field(default_factory=lambda: array("i"))
    labels: array = field(default_factory=lambda: array("i"))
    row_offsets: array = field(default_factory=lambda: array("q", [0]))
    desirable: array = field(default_factory=lambda: array("i"))  # or empty
    labelled_tokens: int = 0
    longest: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    first_truncated: str = ""
    dropped_rows: int = 0
    first_masked: str = ""
    cut_off_rows: int = 0  # dropped: all labels were cut off
    first_cut_off: str = ""
    shortest_cut_off: int = 0  # tokens of the row
    too_long_rows: int = 0  # dropped: left out for their length
    first_too_long: str = ""
    chosen_template: str = ""  # used instead of the model's own
    split_rows: int = 0  # conversations that became several rows
    first_split: str = ""
    unreasoned_rows: int = 0  # the template leaves out their reasoning
    first_unreasoned: str = ""
    dropping_rows: int = 0  # the template drops tools or messages
    first_dropping: str = ""
    first_own_prompt: str = ""  # a pair with a column for its prompt
    first_shared_prompt: str = ""  # a pair whose texts begin with the prompt
    first_repeated_prompt: str = ""  # the prompt column is in both answers
    first_apart_prompt: str = ""  # the prompt column is not in both

    def add_prompt(self, place: str, shared: bool, repeated: bool) -> None:
        """Records where a pair has its prompt."""
        if shared:
            self.first_shared_prompt = self.first_shared_prompt or place
            return
        self.first_own_prompt = self.first_own_prompt or place
        if repeated:
            self.first_repeated_prompt = self.first_repeated_prompt or place
        else:
            self.first_apart_prompt = self.first_apart_prompt or place

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

    def leave_out(self, place: str) -> str:
        """Counts a row that is left out because it is too long. Returns why."""
        self.dropped_rows += 1
        self.too_long_rows += 1
        self.first_too_long = self.first_too_long or place
        return "it has more tokens than --max-length"

    def _keep(self, place: str, ids: list[int], labels: list[int],
              max_length: int | None) -> None:
        kept = labels[:max_length]
        learned = len(kept) - kept.count(IGNORED)
        lost = len(ids) - len(kept)
        if lost:
            self.truncated_rows += 1
            self.truncated_tokens += lost
            self.first_truncated = self.first_truncated or place
        self.input_ids.extend(ids[:max_length])
        self.labels.extend(kept)
        self.row_offsets.append(len(self.input_ids))
        self.labelled_tokens += learned
        self.longest = max(self.longest, len(kept))

    def _drop(self, place: str, labels: list[int]) -> str:
        self.dropped_rows += 1
        if len(labels) == labels.count(IGNORED):
            self.first_masked = self.first_masked or place
            return "no token is in the loss"
        self.cut_off_rows += 1
        self.first_cut_off = self.first_cut_off or place
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
                "truncated_rows": counts.truncated_rows,
                "truncated_tokens": counts.truncated_tokens,
                "dropped_rows": counts.dropped_rows,
                "cut_off_rows": counts.cut_off_rows,
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
        for name in ("labelled_tokens", "truncated_rows", "truncated_tokens",
                     "dropped_rows", "cut_off_rows", "too_long_rows",
                     "split_rows", "unreasoned_rows", "dropping_rows"):
            setattr(counts, name, getattr(counts, name) + getattr(later, name))
        for name in ("first_truncated", "first_masked", "first_cut_off",
                     "first_too_long", "chosen_template", "first_split",
                     "first_unreasoned", "first_dropping", "first_own_prompt",
                     "first_shared_prompt", "first_repeated_prompt",
                     "first_apart_prompt"):
            setattr(counts, name,
                    getattr(counts, name) or getattr(later, name))
        counts.longest = max(counts.longest, later.longest)
        shortest = [count for count in (counts.shortest_cut_off,
                                        later.shortest_cut_off) if count]
        counts.shortest_cut_off = min(shortest, default=0)
