# SPDX-License-Identifier: MIT
"""Finds the characters, and so the tokens, of a conversation that are in the
loss. If the template has {% generation %} marks, this is the marked text.
Otherwise, each assistant turn is the difference of two renderings. The first
ends before the turn, with the generation prompt, to exclude the turn's header.
The second ends after the turn's end-of-turn token.

    up to     <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    through   ...                                        Hello<|im_end|>\\n
    in loss                                              Hello<|im_end|>

This needs renderings that are prefixes of each other. Some templates render a
turn differently if later turns follow (without its reasoning, or with the tools
elsewhere). Such a conversation becomes several texts. Each text ends with a
turn in its original form. Together, the texts train each turn once, after
exactly the text that the model would see.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass

from .errors import DataError
from .marks import LossRule
from .shapes import ChatRow
from .template import Template

Span = tuple[int, int]

IGNORED = -100

_ADVICE = ("mark the assistant's text in the template with {% generation %} "
           "... {% endgeneration %} (--chat-template FILE), or train on all "
           "of it with --assistant-only-loss false")


@dataclass
class Conversation:
    """A chat row, and everything needed to render it."""
    chat: ChatRow
    template: Template
    special_tokens: dict[str, str]
    end_tokens: tuple[str, ...]  # the added tokens, which may end a turn

    def render(self, count: int, prompt: bool = False) -> str:
        return self.template.render(self.chat, self.chat.messages[:count],
                                    self.special_tokens, prompt)[0]


def learned_texts(talk: Conversation, rule: LossRule
                  ) -> list[tuple[str, list[Span] | None]]:
    """Returns (text, character ranges in the loss; None: all of it). There are
    several texts if the template changes earlier turns."""
    from_message = talk.chat.prompt_count if rule.completion_only else 0
    if rule.assistant_only and not talk.template.has_marks:
        return _turns(talk, from_message)
    text, marks = talk.template.render(talk.chat, talk.chat.messages,
                                       talk.special_tokens)
    begin = _opening(talk, from_message, text) if from_message else 0
    if not rule.assistant_only:
        return [(text, [(begin, len(text))] if from_message else None)]
    return [(text, sorted((max(start, begin), end) for start, end in marks
                          if end > begin))]


def _turns(talk: Conversation,
           from_message: int) -> list[tuple[str, list[Span]]]:
    count = len(talk.chat.messages)
    text, spans, texts = talk.render(count), [], []
    for index in range(count - 1, from_message - 1, -1):
        if talk.chat.messages[index]["role"] != "assistant":
            continue
        through = text if index + 1 == count else talk.render(index + 1)
        lasting = _lasting(text, through, talk.end_tokens)
        if not lasting:
            texts.insert(0, (text, spans))
            text, spans = through, []
        through = lasting or through
        spans.insert(0, (_opening(talk, index, through),
                         _end_of_turn(through, talk.end_tokens)))
    texts.insert(0, (text, spans))
    # Drop texts without a turn in the loss, such as one that ends with a user's
    # question.
    return [part for part in texts if part[1]] or texts


def unwritten_reasoning(messages: list[dict],
                        texts: list[tuple[str, list[Span] | None]],
                        first: int = 0) -> int:
    """Returns the index of the first assistant message, from `first`, whose
    reasoning is in no text; -1 if there is none."""
    for index, message in enumerate(messages[first:], first):
        reasoning = message.get("reasoning_content")
        content = message.get("content") or ""
        if reasoning is None and "</think>" in content:
            reasoning = content.split("</think>")[0].split("<think>")[-1]
        if message["role"] == "assistant" and isinstance(reasoning, str) \
                and not any(reasoning.strip() in text for text, _ in texts):
            return index
    return -1


def _lasting(text: str, through: str, end_tokens: tuple[str, ...]) -> str:
    """Returns the part of `through` that `text` begins with. `through` renders
    a conversation up to the end of a turn, `text` also later messages.

    * Usually this is all of `through`.
    * If `through` ends with a token that closes the conversation, it is
      `through` without this token.
    * If `text` renders the turn differently, it is "".
    """
    if text.startswith(through):
        return through
    for token in end_tokens:
        turn = through.removesuffix(token)
        if turn != through and text.startswith(turn) \
                and turn.rstrip().endswith(end_tokens):
            return turn
    return ""


def _opening(talk: Conversation, index: int, through: str) -> int:
    """Returns the offset in `through` of the assistant's text of message
    `index`. A template may ignore the generation prompt, or write one that
    differs from the turn, for example one that opens the reasoning. Then the
    text begins after the common prefix of prompt and turn."""
    prompted = ""
    for prompt in (True, False):
        try:
            before = talk.render(index, prompt)
        except DataError:
            if index == 0:  # the template cannot render zero messages
                continue
            raise
        if through.startswith(before):
            shared = os.path.commonprefix((through, prompted))
            return max(len(before), len(shared))
        prompted = before
    if index == 0:
        return 0
    raise _inconsistent(talk, index - 1)


def _end_of_turn(through: str, end_tokens: tuple[str, ...]) -> int:
    """Returns the end of the turn. Line breaks after the end-of-turn token do
    not count, because a model that stops at the token never writes them."""
    trimmed = through.rstrip()
    return len(trimmed if trimmed.endswith(end_tokens) else through)


def _inconsistent(talk: Conversation, index: int) -> DataError:
    return DataError(
        f"the chat template ({talk.template.place}) changes message "
        f"{index + 1} once an answer follows, so the assistant's turns cannot "
        "be found", _ADVICE)


def labels_of(ids: list[int], offsets: list[Span],
              spans: list[Span] | None) -> list[int]:
    """Returns the labels: the id of each token that covers at least one
    character of a span, else IGNORED. Byte-level BPE may split a character into
    several tokens; each of them has the offsets of the whole character."""
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
