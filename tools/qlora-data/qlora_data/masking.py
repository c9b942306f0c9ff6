# SPDX-License-Identifier: MIT
"""Which characters, and so which tokens, of a conversation are learned.

With {% generation %} marks in the template, the marked text. Without them
each assistant turn is found by rendering the conversation up to it (with the
generation prompt, so that the turn's header is not part of it) and through
it: the difference is the turn, end-of-turn token included.

    up to     <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    through   ...                                        Hello<|im_end|>\\n
    learned                                              Hello<|im_end|>

This needs renderings that are prefixes of each other; a template that writes
an earlier turn differently once later ones follow is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from .errors import DataError
from .shapes import ChatRow
from .template import Template

Span = tuple[int, int]

IGNORED = -100

_ADVICE = ("mark the assistant's text in the template with {% generation %} "
           "... {% endgeneration %} (--chat-template FILE), or train on all "
           "of it with --assistant-only-loss false")
_THINKING_ADVICE = ("if the model is a Qwen3, use --chat-template "
                    "qwen3-training; else " + _ADVICE)


@dataclass
class LossRule:
    completion_only: bool = True
    assistant_only: bool = True


@dataclass
class Conversation:
    """A chat row with all that is needed to render it."""
    chat: ChatRow
    template: Template
    special_tokens: dict[str, str]
    end_tokens: tuple[str, ...]  # what may end a turn: the added tokens

    def render(self, count: int, prompt: bool = False) -> str:
        return self.template.render(self.chat, self.chat.messages[:count],
                                    self.special_tokens, prompt)[0]


def learned_spans(talk: Conversation,
                  rule: LossRule) -> tuple[str, list[Span] | None]:
    """The rendered conversation and its learned character ranges, in order;
    None stands for all of it."""
    chat = talk.chat
    text, marks = talk.template.render(chat, chat.messages,
                                       talk.special_tokens)
    from_message = chat.prompt_count if rule.completion_only else 0
    if not rule.assistant_only:
        if not from_message:
            return text, None
        return text, [(_opening(talk, from_message, text), len(text))]
    if not talk.template.has_marks:
        return text, _turns(talk, text, from_message)
    if from_message:
        begin = _opening(talk, from_message, text)
        marks = [(max(start, begin), end) for start, end in marks
                 if end > begin]
    return text, sorted(marks)


def _turns(talk: Conversation, text: str, from_message: int) -> list[Span]:
    spans = []
    messages = talk.chat.messages
    for index in range(from_message, len(messages)):
        if messages[index]["role"] != "assistant":
            continue
        through = text
        if index + 1 < len(messages):
            through = talk.render(index + 1)
            if not text.startswith(through):
                raise _inconsistent(talk, index)
        spans.append((_opening(talk, index, through),
                      _end_of_turn(through, talk.end_tokens)))
    return spans


def _opening(talk: Conversation, index: int, through: str) -> int:
    """Where message `index` begins to be the assistant's own words. A
    template may ignore the generation prompt, or write another one than the
    turn has; then the turn begins where the message before it ended."""
    for prompt in (True, False):
        try:
            before = talk.render(index, prompt)
        except DataError:
            if index == 0:  # a template that cannot render no messages
                continue
            raise
        if through.startswith(before):
            return len(before)
    if index == 0:
        return 0
    raise _inconsistent(talk, index - 1)


def _end_of_turn(through: str, end_tokens: tuple[str, ...]) -> int:
    """Without the line breaks a template writes after the end-of-turn token:
    a model that stops at the token never writes them."""
    trimmed = through.rstrip()
    return len(trimmed if trimmed.endswith(end_tokens) else through)


def _inconsistent(talk: Conversation, index: int) -> DataError:
    source = talk.template.source
    # Not for every ChatML: it writes a <think> block into each turn.
    thinks = "<|im_start|>" in source and "<think>" in source
    return DataError(
        f"the chat template ({talk.template.place}) writes message "
        f"{index + 1} differently once later messages follow, so the "
        "assistant's turns cannot be found",
        _THINKING_ADVICE if thinks else _ADVICE)


def labels_of(ids: list[int], offsets: list[Span],
              spans: list[Span] | None) -> list[int]:
    """Labels: the id of each token that covers at least one character of a
    span. A character may be cut over several tokens (byte-level BPE); each of
    them has the offsets of the whole character."""
    if spans is None:
        return list(ids)
    labels = [IGNORED] * len(ids)
    for begin, end in spans:
        first = bisect_left(offsets, (begin,))
        while first and max(offsets[first - 1][1],
                            offsets[first - 1][0] + 1) > begin:
            first -= 1
        last = bisect_left(offsets, (end,))
        labels[first:last] = ids[first:last]
    return labels
