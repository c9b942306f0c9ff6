# SPDX-License-Identifier: MIT
"""The one kind of error a user sees: a place, what is wrong, what to do."""

from __future__ import annotations


class DataError(Exception):
    """A user's mistake. `place` is a file, or file:line; it may be filled in
    by a caller that knows the line (see `at`)."""

    def __init__(self, what: str, todo: str = "", place: str = ""):
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.place = place

    def at(self, place: str) -> DataError:
        """This error, at `place` unless it already names one."""
        self.place = self.place or place
        return self

    def __str__(self) -> str:
        text = f"{self.place}: {self.what}" if self.place else self.what
        if self.todo:
            text += f"; {self.todo}"
        # One error is one line, whatever a template or a library put in it,
        # and printable even when the row held half a surrogate pair.
        line = " ".join(text.split())
        return line.encode("utf-8", "backslashreplace").decode("utf-8")


def unreadable(path: str, error: OSError) -> DataError:
    """An input file that cannot be read."""
    return DataError(f"cannot be read: {error.strerror or error}",
                     "check the path and its permissions", path)
