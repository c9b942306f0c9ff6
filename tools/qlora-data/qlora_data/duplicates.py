# SPDX-License-Identifier: MIT
"""Leaves out rows that equal an earlier row of the input, as axolotl's
dataset_exact_deduplication does: by their ids and labels."""

from __future__ import annotations

import hashlib

from .masking import IGNORED
from .rows import TokenRows


class Duplicates:
    """The rows so far. `sides`: rows of one example, 2 for pairs."""

    def __init__(self, sides: int):
        self._sides = sides
        self._seen: set[bytes] = set()

    def without(self, rows: TokenRows) -> TokenRows:
        """Returns the rows that are new, with the counts of all rows. Rows of
        later parts must be given later."""
        kept = TokenRows(
            truncated_tokens=rows.truncated_tokens,
            shortest_cut_off=rows.shortest_cut_off,
            chosen_template=rows.chosen_template, kinds=rows.kinds.copy(),
            first=dict(rows.first))
        count = len(rows.row_offsets) - 1
        for first in range(0, count, self._sides):
            spans = [slice(*rows.row_offsets[row:row + 2])
                     for row in range(first, first + self._sides)]
            if not self._is_new(rows, spans):
                kept.kinds["duplicate"] += 1
                continue
            for span in spans:
                labels = rows.labels[span]
                kept.input_ids.extend(rows.input_ids[span])
                kept.labels.extend(labels)
                kept.row_offsets.append(len(kept.input_ids))
                kept.labelled_tokens += len(labels) - labels.count(IGNORED)
                kept.longest = max(kept.longest, len(labels))
            if rows.desirable:
                kept.desirable.append(rows.desirable[first])
        return kept

    def _is_new(self, rows: TokenRows, spans: list[slice]) -> bool:
        digest = hashlib.sha256()
        for span in spans:
            digest.update(len(rows.labels[span]).to_bytes(8, "little"))
            digest.update(rows.input_ids[span].tobytes())
            digest.update(rows.labels[span].tobytes())
        before = len(self._seen)
        self._seen.add(digest.digest())
        return len(self._seen) > before
