# SPDX-License-Identifier: MIT
"""The only kind of error that users see: location, problem, fix."""

from __future__ import annotations


class DataError(Exception):
    """A user's mistake. `place` is FILE or FILE:LINE. A caller that knows the
    line may set it (see `at`)."""

    def __init__(self, what: str, todo: str = "", place: str = ""):
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.place = place

    def at(self, place: str) -> DataError:
        """Returns this error, at `place` unless it has a place already."""
        self.place = self.place or place
        return self

    def __str__(self) -> str:
        text = f"{self.place}: {self.what}" if self.place else self.what
        if self.todo:
            text += f"; {self.todo}"
        # Make messages of templates and libraries a single line. Escape lone
        # surrogates, which cannot be printed.
        line = " ".join(text.split())
        return line.encode("utf-8", "backslashreplace").decode("utf-8")


def unreadable(path: str, error: OSError) -> DataError:
    """Returns the error for an input file that cannot be read."""
    return DataError(f"cannot be read: {error.strerror or error}",
                     "check the path and its permissions", path)


def unwritable(path: str, error: OSError) -> DataError:
    """Returns the error for an output file that cannot be written."""
    return DataError(f"cannot be written: {error.strerror}",
                     "write to another folder", path)
