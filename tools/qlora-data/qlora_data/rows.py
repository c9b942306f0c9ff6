# SPDX-License-Identifier: MIT
"""The rows as they are written: flat ids and labels, and what was cut."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from .masking import IGNORED


@dataclass
class TokenRows:
    """The output: flat ids and labels, and where each row begins. Lines are
    those of the input, 0: none."""
    input_ids: array = field(default_factory=lambda: array("i"))
    labels: array = field(default_factory=lambda: array("i"))
    row_offsets: array = field(default_factory=lambda: array("q", [0]))
    labelled_tokens: int = 0
    longest: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    first_truncated: int = 0
    dropped_rows: int = 0
    first_masked: int = 0
    cut_off_rows: int = 0  # of the dropped: what they had to learn was cut off
    first_cut_off: int = 0
    shortest_cut_off: int = 0  # tokens it had
    chosen_template: str = ""  # in place of the model's own

    @property
    def rows(self) -> int:
        return len(self.row_offsets) - 1

    def summary(self) -> dict[str, int]:
        return {"rows": self.rows,
                "tokens": len(self.input_ids),
                "labelled_tokens": self.labelled_tokens,
                "truncated_rows": self.truncated_rows,
                "truncated_tokens": self.truncated_tokens,
                "dropped_rows": self.dropped_rows,
                "cut_off_rows": self.cut_off_rows,
                "longest": self.longest}

    def add(self, line: int, ids: list[int], labels: list[int],
            max_length: int | None) -> None:
        """Adds a row. Nothing precedes its first token, so that one is never
        a target, and every label that is left counts in the loss."""
        labels[:1] = [IGNORED] * len(labels[:1])
        kept = labels[:max_length]
        learned = len(kept) - kept.count(IGNORED)
        if not learned:
            self._drop(line, labels)
            return
        lost = len(ids) - len(kept)
        if lost:
            self.truncated_rows += 1
            self.truncated_tokens += lost
            self.first_truncated = self.first_truncated or line
        self.input_ids.extend(ids[:max_length])
        self.labels.extend(kept)
        self.row_offsets.append(len(self.input_ids))
        self.labelled_tokens += learned
        self.longest = max(self.longest, len(kept))

    def _drop(self, line: int, labels: list[int]) -> None:
        self.dropped_rows += 1
        if len(labels) == labels.count(IGNORED):
            self.first_masked = self.first_masked or line
            return
        self.cut_off_rows += 1
        self.first_cut_off = self.first_cut_off or line
        self.shortest_cut_off = min(self.shortest_cut_off or len(labels),
                                    len(labels))

    def extend(self, later: TokenRows) -> None:
        """Adds the rows of later lines."""
        base = len(self.input_ids)
        self.input_ids.extend(later.input_ids)
        self.labels.extend(later.labels)
        self.row_offsets.extend(base + end for end in later.row_offsets[1:])
        for name in ("labelled_tokens", "truncated_rows", "truncated_tokens",
                     "dropped_rows", "cut_off_rows"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in ("first_truncated", "first_masked", "first_cut_off",
                     "chosen_template"):
            setattr(self, name, getattr(self, name) or getattr(later, name))
        self.longest = max(self.longest, later.longest)
        shortest = [count for count in (self.shortest_cut_off,
                                        later.shortest_cut_off) if count]
        self.shortest_cut_off = min(shortest, default=0)
