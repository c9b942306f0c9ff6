# SPDX-License-Identifier: MIT
"""A user's metrics: a Python file with a function

    compute_metrics(predictions: list[str], references: list[str])
        -> dict[str, float]
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import traceback
from collections.abc import Iterable
from numbers import Real
from types import ModuleType

from .errors import DataError, unreadable
from .jsonl import kind

_FUNCTION = "compute_metrics"


class UserMetrics:
    """Loads the file. What it prints goes to stderr, because stdout has our
    results. `taken`: names that its metrics cannot have."""

    def __init__(self, path: str, taken: Iterable[str]):
        self._path, self._taken = path, frozenset(taken)
        module = ModuleType("user_metrics")
        sys.modules[module.__name__] = module  # dataclasses look there
        module.__file__ = os.path.abspath(path)
        # The file can import others next to it, as a script can.
        sys.path.insert(0, os.path.dirname(module.__file__))
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            raise unreadable(path, error) from None
        with self._errors("cannot be loaded"):
            exec(compile(source, path, "exec"), module.__dict__)
        self._function = getattr(module, _FUNCTION, None)
        if not callable(self._function):
            raise DataError(f"has no function {_FUNCTION}", "define "
                            f"{_FUNCTION}(predictions, references)", path)

    def compute(self, predictions: list[str],
                references: list[str]) -> dict[str, float]:
        with self._errors(f"{_FUNCTION} failed"):
            result = self._function(predictions, references)
        if not isinstance(result, dict):
            raise DataError(f"{_FUNCTION} expects to return a dict, but got "
                            f"{kind(result)}", "return names and numbers",
                            self._path)
        return {self._name(name): self._number(name, value)
                for name, value in result.items()}

    @contextlib.contextmanager
    def _errors(self, what: str):
        """Turns exceptions into errors with the last line of the file that was
        reached."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except (Exception, SystemExit) as error:
            lines = [frame.lineno for frame
                     in traceback.extract_tb(error.__traceback__)
                     if frame.filename == self._path]
            if isinstance(error, SyntaxError) and error.filename == self._path:
                lines = [error.lineno]
            place = f"{self._path}:{lines[-1]}" if lines else self._path
            raise DataError(f"{what}: {type(error).__name__}: {error}",
                            "correct the file", place) from None

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or name in self._taken:
            raise DataError(f"{_FUNCTION} returned {name!r}, which is no name "
                            "or that of another metric", "return another name",
                            self._path)
        return name

    def _number(self, name: str, value: object) -> float:
        # Numbers of numpy are Real too.
        if not isinstance(value, Real) or not math.isfinite(value):
            raise DataError(f"{_FUNCTION} returned {value!r} as '{name}', "
                            "which is no finite number", "return a number",
                            self._path)
        return float(value)
