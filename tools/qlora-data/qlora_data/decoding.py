# SPDX-License-Identifier: MIT
"""Turns tokens into text while they are generated, and ends it at a stop
string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_REPLACEMENT = "\ufffd"
# Tokens of a prompt that can change how the next token is decoded.
_TOKENS_BEFORE = 4


class TextStream:
    """Text of an answer. `decode` turns token ids into text.

    A token may be a part of a character, and its text may depend on the token
    before it (a space at the start is dropped). So a new token is decoded
    together with those since the second last complete text, and its text is
    returned only if it does not end in half a character. Text that may begin a
    stop string is held back."""

    def __init__(self, decode: Callable[[list[int]], str],
                 stops: tuple[str, ...] = ()):
        self._decode, self._stops = decode, stops
        self._ids: list[int] = []  # those that are decoded together
        self._complete = 0  # the number of _ids whose text was returned
        self._held = ""
        self.has_stopped = False  # a stop string was found

    def follow(self, ids: list[int]) -> None:
        """Lets the text continue the text of `ids`, so that a space at its
        start is kept. Called before the first token."""
        self._ids = ids[-_TOKENS_BEFORE:]
        self._complete = len(self._ids)

    def add(self, token: int) -> str:
        """Returns the text that this token completes."""
        self._ids.append(token)
        text = self._new_text()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._ids = self._ids[self._complete:]
        self._complete = len(self._ids)
        return self._until_stop(text)

    def finish(self) -> str:
        """Returns the rest of the text, after the last token."""
        if self.has_stopped:
            return ""
        text = self._until_stop(self._new_text())
        return text + self._held

    def _new_text(self) -> str:
        before = self._decode(self._ids[:self._complete])
        return self._decode(self._ids)[len(before):]

    def _until_stop(self, text: str) -> str:
        text, self._held = self._held + text, ""
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.has_stopped = True
            return text[:min(found)]
        kept = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept:]
        return text[:len(text) - kept]


def overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` that `stop` begins with.
    """
    return next((count for count in range(min(len(text), len(stop)), 0, -1)
                 if text.endswith(stop[:count])), 0)


@dataclass
class Answer:
    """An answer, token by token. `text` is None if only its ids are wanted.
    `finish` says why it has ended: "stop", "length", or "" if it has not."""
    text: TextStream | None
    ids: list[int] = field(default_factory=list)
    steps: list[dict] = field(default_factory=list)  # log-probabilities
    finish: str = ""
    _output: str = ""

    def add(self, line: dict) -> str:
        """Adds a token, given as the engine's line. Returns new text."""
        token = line["token"]
        self.finish = line.get("finish", "")
        self.ids.append(token)
        if chosen := line.get("logprobs"):
            self.steps.append({"token": token, "logprob": chosen[0][1],
                               "top_logprobs": chosen[1:]})
        if self.text is None or self.finish == "stop":  # by an end token
            return ""
        return self._added(self.text.add(token))

    def rest(self) -> str:
        """Returns the text that was held back. Called once, at the end."""
        return self._added(self.text.finish())

    def result(self) -> dict:
        """Returns the fields of a row's result. Called once, at the end."""
        if self.text is None:
            fields = {"output_ids": self.ids}
        else:
            self.rest()
            fields = {"output": self._output}
        fields["finish_reason"] = self.finish
        return fields | ({"logprobs": self.steps} if self.steps else {})

    def _added(self, text: str) -> str:
        self._output += text
        if self.text.has_stopped:
            self.finish = "stop"
        return text
