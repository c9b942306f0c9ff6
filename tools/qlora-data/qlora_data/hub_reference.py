# SPDX-License-Identifier: MIT
"""References to data sets of the Hugging Face hub, and slices of splits:

    hf://datasets/NAME[@REVISION][?config=SUBSET&split=SPLIT&files=PATTERN]

`split` is spelled as for the library datasets: train, train[:500],
train[10%:20%]. `files` is a list of patterns, separated by commas, which
replaces the splits that the repository defines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import DataError

PREFIX = "hf://datasets/"
# As in huggingface_hub's validate_repo_id().
_WORD = r"\w(?:[\w.-]*\w)?"
_NAME = re.compile(rf"{_WORD}(?:/{_WORD})?", re.ASCII)
_REVISION = re.compile(rf"{_WORD}(?:/{_WORD})*", re.ASCII)
_SPLIT = re.compile(r"(?P<split>\w+(?:\.\w+)*)"
                    r"(?:\[(?:(?P<first>-?[\d_]+)(?P<first_pct>%)?)?:"
                    r"(?:(?P<end>-?[\d_]+)(?P<end_pct>%)?)?\])?"
                    r"(?:\((?P<rounding>[^)]*)\))?")
_CLOSEST, _PCT1 = "closest", "pct1_dropremainder"


@dataclass(frozen=True)
class Slice:
    """Rows of a split. None: from its start, or to its end."""
    split: str
    first: int | None = None
    end: int | None = None
    in_percent: bool = False
    rounding: str = _CLOSEST

    @property
    def needs_count(self) -> bool:
        """Whether the rows depend on the number of rows of the split."""
        return self.in_percent or min(self.first or 0, self.end or 0) < 0

    def rows(self, count: int) -> tuple[int, int]:
        """Returns the first row and the end, for a split of `count` rows."""
        first = 0 if self.first is None else self._row(self.first, count)
        end = count if self.end is None else self._row(self.end, count)
        if first < 0:
            first = max(count + first, 0)
        if end < 0:
            end = max(count + end, 0)
        return min(first, count), min(end, count)

    def _row(self, number: int, count: int) -> int:
        if not self.in_percent:
            return number
        if self.rounding == _PCT1:
            return number * int(count / 100.0)
        return int(round(number * count / 100.0))


def parse_split(text: str) -> Slice:
    found = _SPLIT.fullmatch(text)
    if not found:
        raise DataError(f"the split '{text}' is not understood",
                        "write train, train[:500], train[10%:20%] or the like; "
                        "for two splits, write two inputs")
    in_percent = bool(found["first_pct"] or found["end_pct"])
    first, end = (int(found[name]) if found[name] else None
                  for name in ("first", "end"))
    rounding = found["rounding"] or _CLOSEST
    if rounding not in (_CLOSEST, _PCT1) or (found["rounding"]
                                             and not in_percent):
        raise DataError(f"the split '{text}' has the rounding '{rounding}'",
                        f"write percent, and {_CLOSEST} or {_PCT1}")
    if in_percent and max(abs(first or 0), abs(end or 0)) > 100:
        raise DataError(f"the split '{text}' has more than 100 %",
                        "write percent from -100 to 100")
    return Slice(found["split"], first, end, in_percent, rounding)


@dataclass(frozen=True)
class Reference:
    """A data set on the hub."""
    name: str
    revision: str = "main"
    config: str = ""  # empty: the default one
    split: str = "train"  # with its slice
    files: tuple[str, ...] = ()  # patterns; empty: those of the split

    def __str__(self) -> str:
        query = {"config": self.config, "split": self.split,
                 "files": ",".join(self.files)}
        return f"{PREFIX}{self.name}@{self.revision}?" + "&".join(
            f"{key}={value}" for key, value in query.items() if value)


def is_reference(path: str) -> bool:
    return path.startswith(PREFIX)


def parse_reference(text: str) -> Reference:
    before, _, query = text.removeprefix(PREFIX).partition("?")
    name, at, revision = before.partition("@")
    keys = {}
    for pair in query.split("&") if query else []:
        key, _, value = pair.partition("=")
        if key not in ("config", "split", "files") or not value or key in keys:
            raise DataError(f"'{pair}' is not understood after the '?'",
                            "write config=, split= or files=, each once, with "
                            "& in between", text)
        keys[key] = value
    if not _NAME.fullmatch(name) or ".." in name or "--" in name:
        raise DataError(f"'{name}' is no name of a data set",
                        "write OWNER/NAME", text)
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise DataError(f"'{revision}' is no revision",
                        "write a branch, a tag or a commit", text)
    files = tuple(keys["files"].split(",")) if "files" in keys else ()
    reference = Reference(name, revision or "main", keys.get("config", ""),
                          keys.get("split", "train"), files)
    parse_split(reference.split)  # reports mistakes early
    return reference
