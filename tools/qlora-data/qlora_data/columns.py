# SPDX-License-Identifier: MIT
"""Maps columns of the data to the names in shapes.py (`prompt=question`), or
ignores columns (`system=`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import DataError
from .marks import names_mark

# Columns of each shape of row. The first ones identify the shape.
_ANSWERS = ("chosen", "rejected", "label", "system")
_SHAPES = (("prompt", "completion", "tools", *_ANSWERS),
           ("messages", "tools", *_ANSWERS), ("text",),
           ("instruction", "output", "input", "history", *_ANSWERS),
           ("conversations", "tools", *_ANSWERS))
_MAIN = {"prompt", "completion", "messages", "text", "instruction", "output",
         "conversations"}
_NAMES = sorted({name for shape in _SHAPES for name in shape}
                | {"chat_template_kwargs"})


@dataclass
class Columns:
    """`sources` maps a name in shapes.py to a column of the data. `unread`:
    columns to ignore."""
    sources: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def add(self, text: str) -> None:
        """Adds `name=column`."""
        name, equals, column = text.partition("=")
        if not equals or name in self.sources or name in self.unread:
            raise DataError(f"--column: expects name=column, each name once, "
                            f"but got '{text}'")
        if name not in _NAMES and (column or not names_mark(name)):
            raise DataError(f"--column: '{name}' is not a column that is read",
                            "name one of: " + ", ".join(_NAMES))
        if column:
            self.sources[name] = column
        else:
            self.unread.add(name)

    def renamed(self, row: dict) -> dict:
        """Returns the row with the column names of shapes.py. The names in
        `sources` determine the row's shape: if `prompt` is one of them, for
        example, the columns `text` and `messages` are dropped."""
        row = {key: value for key, value in row.items()
               if key not in self.unread or key in self.sources.values()}
        if not self.sources:
            return row
        for column in self.sources.values():
            if column not in row:
                there = ", ".join(f"'{key}'" for key in list(row)[:16])
                raise DataError(f"has no column '{column}' (it has {there})",
                                "correct --dataset-columns")
        meant = {name for shape in _SHAPES for name in shape
                 if not self.sources.keys().isdisjoint(shape)}
        kept = {key: value for key, value in row.items()
                if key not in self.sources.values()
                and (key in meant or key not in _MAIN)}
        return kept | {name: row[column]
                       for name, column in self.sources.items()}
