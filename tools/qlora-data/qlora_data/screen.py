# SPDX-License-Identifier: MIT
"""The two sides of a chat: a terminal, or a pipe, where each line of standard
input is a message, and only answers go to standard output."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import DataError
from .reasoning import CLOSE, OPEN

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_QUOTES = '"""'
# A model may write control characters, which could change the terminal's title
# or colors. They are shown as ^X.
_VISIBLE = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127)
            if chr(code) not in "\n\t"}
_VISIBLE |= dict.fromkeys(range(128, 160), "\ufffd")


@dataclass
class Message:
    text: str
    place: str  # of its last line; empty on a terminal
    is_quoted: bool = False  # it is never a command


class Screen:
    """`is_terminal`: messages are typed."""

    def __init__(self):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")
        # Other bytes than UTF-8 are noticed by read().
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        self.is_terminal = sys.stdin.isatty()
        self._edits = self.is_terminal and sys.stdout.isatty()
        self._has_colors = (self._edits and not os.environ.get("NO_COLOR")
                            and os.environ.get("TERM") != "dumb")
        self._lines = 0  # that were read
        self._part = ""  # the kind of an answer's text that was shown last
        if self._edits:
            with contextlib.suppress(ImportError):
                import readline  # input() then edits lines
                readline.set_completer(None)

    def read(self) -> Message | None:
        """Returns the next message, or None at the end of the input. A message
        of several lines is between triple quotes, or has a backslash at the end
        of each line but the last."""
        line = self._line("> ")
        if line is None:
            return None
        is_quoted = line.lstrip().startswith(_QUOTES)
        if is_quoted:
            line = self._quoted(line.lstrip().removeprefix(_QUOTES))
        else:
            while line.endswith("\\"):
                line = line[:-1] + "\n" + (self._line("... ") or "")
        try:
            line.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError("not UTF-8", "write the message in UTF-8",
                            self.place) from None
        return Message(line, self.place, is_quoted)

    def _quoted(self, text: str) -> str:
        while not text.rstrip().endswith(_QUOTES):
            line = self._line("... ")
            if line is None:
                raise DataError(f"the message has no {_QUOTES} at its end",
                                "add that", self.place)
            text += "\n" + line
        text = text.rstrip().removesuffix(_QUOTES)
        return text.removeprefix("\n").removesuffix("\n")

    @property
    def place(self) -> str:
        return "" if self.is_terminal else f"standard input:{self._lines}"

    def _line(self, prompt: str) -> str | None:
        if self._edits:
            try:
                return input(prompt)
            except EOFError:
                print()
                return None
        if self.is_terminal:
            print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        self._lines += 1
        return line.rstrip("\r\n") if line else None

    def show(self, kind: str, text: str) -> None:
        """Shows text of an answer. `kind`: reasoning or answer."""
        if kind != self._part:
            if kind == "reasoning":
                self._write(_DIM if self._has_colors else OPEN + "\n")
            elif self._part:
                self._end_reasoning()
                self._write("\n\n")
            self._part = kind
        self._write(text.translate(_VISIBLE) if self._edits else text)

    def end(self) -> None:
        """Ends the line of an answer."""
        if self._part == "reasoning":
            self._end_reasoning()
        self._part = ""
        self._write("\n")

    def _end_reasoning(self) -> None:
        self._write(_PLAIN if self._has_colors else "\n" + CLOSE)

    def _write(self, text: str) -> None:
        print(text, end="", flush=True)

    def note(self, text: str) -> None:
        """Shows a line about the chat, on terminals only."""
        if self.is_terminal:
            self.tell(text)

    def tell(self, text: str) -> None:
        """Shows text about the chat."""
        text = text.translate(_VISIBLE)
        if self._has_colors:
            text = _DIM + text + _PLAIN
        print(text, file=sys.stderr, flush=True)

    def warn(self, kind: str, text: object) -> None:
        """Shows an error or a warning."""
        tool = "" if self.is_terminal else "qlora-data: "
        print(f"{tool}{kind}: {text}", file=sys.stderr, flush=True)


class Interrupts:
    """Ctrl-C on a terminal raises KeyboardInterrupt, but only in a block of
    allowed(), so that no other work is left half done: it waits for the next
    such block."""

    def __init__(self, is_terminal: bool):
        self._waits = False  # whether one may be raised
        self._came = False
        if is_terminal:
            signal.signal(signal.SIGINT, self._come)

    def _come(self, *_) -> None:
        self._came = True
        if self._waits:
            self._raise()

    def _raise(self) -> None:
        self._came = self._waits = False
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        self._waits = True
        try:
            if self._came:
                self._raise()
            yield
        finally:
            self._waits = False
