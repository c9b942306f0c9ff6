# SPDX-License-Identifier: MIT
"""Warnings about rows that the conversion changed or left out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rows import TokenRows


def _warn(place: str | None, text: str, kind: str = "warning") -> None:
    """Prints the text about `place`; does nothing if `place` is empty."""
    if place:
        print(f"qlora-data: {kind}: {place}: {text}", file=sys.stderr)


def report(source: str, counts: TokenRows, max_length: int | None) -> None:
    """Warns about rows that the conversion changed or left out."""
    if counts.chosen_template:
        _warn(source,
              f"uses the chat template {counts.chosen_template} instead of the "
              "model's own, which changes earlier turns", "note")
    rows, first = counts.kinds, counts.first.get
    _warn(first("split"),
          f"{rows['split']} conversations are split into several rows, "
          "because the chat template writes earlier turns differently "
          "once later turns follow; this is the first", "note")
    _warn(first("unreasoned"),
          f"the chat template drops the reasoning of {rows['unreasoned']} "
          "conversations, so it is not trained on; this is the first")
    _warn(first("dropping"),
          "the chat template drops tools, tool calls or messages of "
          f"{rows['dropping']} conversations, so they are not trained on; "
          "this is the first")
    _warn(first("truncated"),
          f"{rows['truncated']} rows cut to {max_length} tokens, losing "
          f"{counts.truncated_tokens} tokens; this is the first")
    _warn(first("cut_off"),
          f"{rows['cut_off']} rows left out because --max-length {max_length} "
          "cuts off their answer; this is the first, and the shortest has "
          f"{counts.shortest_cut_off} tokens")
    _warn(first("too_long"),
          f"{rows['too_long']} rows left out because they have more than "
          f"{max_length} tokens; this is the first")
    _warn(first("too_short"),
          f"{rows['too_short']} rows left out because they have fewer tokens "
          "than --min-length; this is the first")
    if rows["duplicate"]:
        _warn(source, f"{rows['duplicate']} rows left out because they equal "
              "an earlier row", "note")
    _warn(first("masked"),
          f"{rows['masked']} rows left out because none of their tokens is in "
          "the loss; this is the first")
