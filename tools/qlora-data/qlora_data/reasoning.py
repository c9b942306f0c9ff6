# SPDX-License-Identifier: MIT
"""Separates an answer's reasoning from the rest while it is generated.

Three kinds of models write it:

* between two markers that the chat template writes too (Qwen3, Nemotron);
* between <think> and </think>, if the template writes neither, or ends the
  prompt with <think> (DeepSeek-R1, QwQ);
* in channels (gpt-oss): `<|channel|>NAME<|message|>TEXT<|end|>`."""

from __future__ import annotations

from dataclasses import dataclass, field

from .decoding import overlap
from .errors import DataError
from .prompts import Prompts

OPEN, CLOSE = "<think>", "</think>"
_REASONING, _CONTENT = "qlora reasons", "qlora answers"
_CHANNEL, _BODY = "<|channel|>", "<|message|>"
# What follows a marker: reasoning, the answer, the name of a channel, or the
# text of that channel.
_CHANNELS = {"<|start|>": "name", _CHANNEL: "name", "<|end|>": "name",
             _BODY: "body"}
# Tokens at the end of a prompt that may open the reasoning.
_LAST_TOKENS = 32


@dataclass
class Markers:
    """`follows`: what follows each marker. `opens`: the one after which, at the
    end of a prompt, an answer begins with reasoning. `is_written`: whether the
    template writes a message's `reasoning_content`."""
    follows: dict[str, str]
    opens: str
    is_written: bool

    def begins(self, prompts: Prompts, prompt: list[int]) -> str:
        """Returns what an answer to this prompt begins with."""
        end = prompts.converter.tokenizer.decode(prompt[-_LAST_TOKENS:])
        return "reasoning" if end.rstrip().endswith(self.opens) else "answer"

    def message(self, reasoning: str, answer: str) -> dict:
        """Returns the assistant's message."""
        if not reasoning:
            return {"role": "assistant", "content": answer}
        if self.is_written:
            return {"role": "assistant", "content": answer,
                    "reasoning_content": reasoning}
        return {"role": "assistant",
                "content": f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{answer}"}


def markers_of(prompts: Prompts) -> Markers:
    """Returns the markers of the model's chat template and tokenizer."""
    opens, closes, is_written = OPEN, CLOSE, False
    if prompts.converter.has_template:
        found = _written(prompts)
        is_written = found is not None
        if found and all(found):
            opens, closes = found
    if {_CHANNEL, _BODY} <= set(prompts.converter.tokenizer.added_tokens):
        return Markers(_CHANNELS, f"{_CHANNEL}analysis{_BODY}", is_written)
    return Markers({opens: "reasoning", closes: "answer"}, opens, is_written)


def _written(prompts: Prompts) -> tuple[str, str] | None:
    """Returns the template's text before and after reasoning, or None if it
    writes none."""
    question = {"role": "user", "content": "a"}
    answer = {"role": "assistant", "content": _CONTENT,
              "reasoning_content": _REASONING}
    try:
        prompt = prompts.rendered([question])
        text = prompts.rendered([question, answer], is_prompt=False)
    except DataError:  # a template with other rules for conversations
        return None
    begin, end = text.find(_REASONING), text.find(_CONTENT)
    if begin < 0 or end < begin:
        return None
    before = text[:begin].removeprefix(prompt)
    return ((before if len(before) < begin else "").strip(),
            text[begin + len(_REASONING):end].strip())


@dataclass
class Parts:
    """The parts of an answer, and their text so far. `kind`: what comes next.
    """
    markers: Markers
    kind: str
    text: dict[str, str] = field(
        default_factory=lambda: {"reasoning": "", "answer": ""})
    _held: str = ""
    _name: str = ""  # of a channel
    _space: str = ""  # at the end of reasoning, if more follows
    _begins: bool = field(init=False)  # whether a part begins

    def __post_init__(self):
        # An answer without reasoning keeps its space.
        self._begins = self.kind == "reasoning"

    def add(self, text: str) -> list[tuple[str, str]]:
        """Returns the (kind, text) pairs that this text completes. Holds back
        text that may begin a marker."""
        pairs = []
        text, self._held = self._held + text, ""
        while found := self._first(text):
            at, marker = found
            pairs.append(self._part(text[:at]))
            self._follow(self.markers.follows[marker])
            text = text[at + len(marker):]
        kept = max(overlap(text, marker) for marker in self.markers.follows)
        pairs.append(self._part(text[:len(text) - kept]))
        self._held = text[len(text) - kept:]
        return [pair for pair in pairs if pair[1]]

    def finish(self) -> list[tuple[str, str]]:
        """Returns the rest, after the last text."""
        pair = self._part(self._held)
        return [pair] if pair[1] else []

    def _first(self, text: str) -> tuple[int, str] | None:
        return min(((text.find(marker), marker) for marker in
                    self.markers.follows if marker in text), default=None)

    def _follow(self, kind: str) -> None:
        if kind == "body":
            words = self._name.split()
            is_hidden = "analysis" in words[:1] or any(
                word.startswith("to=") for word in words)
            kind = "reasoning" if is_hidden else "answer"
        self.kind, self._name, self._space = kind, "", ""
        self._begins = True

    def _part(self, text: str) -> tuple[str, str]:
        """Adds text of the present kind. Returns what is new of it: without
        space around reasoning and before an answer that follows it."""
        if self.kind == "name":
            self._name += text
            return self.kind, ""
        if self._begins:
            text = text.lstrip()
            if not text:
                return self.kind, ""
            self._begins = False
            if self.text[self.kind]:  # a further channel of this kind
                text = "\n\n" + text
        if self.kind == "reasoning":
            text = self._space + text
            self._space = text[len(text.rstrip()):]
            text = text.rstrip()
        self.text[self.kind] += text
        return self.kind, text
