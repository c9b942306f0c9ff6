# SPDX-License-Identifier: MIT
"""Answers of `qlora serve` in the form of OpenAI's API, whole or in chunks."""

from __future__ import annotations

import codecs
import time
import uuid
from dataclasses import dataclass, field

from .decoding import Answer, TextStream
from .serve_errors import Refusal
from .serve_requests import Job, Prompt
from .serve_tokens import TokenTexts

# A token, its log-probability (None for the first token of a prompt), and the
# likeliest tokens with theirs.
Step = tuple[int, "float | None", list]


@dataclass
class Piece:
    """What a line of the engine adds to a choice."""
    text: str = ""
    steps: list[Step] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # of steps, in the text
    finish: str = ""


class Choice:
    """One answer to one prompt, line by line."""

    def __init__(self, job: Job, prompt: Prompt, stream: TextStream,
                 tokens: TokenTexts):
        self._job, self._prompt, self._tokens = job, prompt, tokens
        self._answer = Answer(stream)
        self._is_first = True
        self._offset = 0  # characters of complete tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def count(self) -> int:
        """The number of generated tokens."""
        return len(self._answer.ids)

    def add(self, line: dict) -> Piece:
        if "error" in line:
            raise Refusal(500, line["error"])
        piece = Piece()
        if self._is_first and self._job.echoes:
            piece.text = self._prompt.text
            if self._job.logprobs is not None:
                self._add_prompt(piece, line["prompt_logprobs"])
        self._is_first = False
        if "token" not in line:
            piece.finish = line.get("finish", "")
            return piece
        piece.text += self._answer.add(line)
        piece.finish = self._answer.finish
        if piece.finish:
            piece.text += self._answer.rest()
        if self._job.logprobs is not None:
            token = line["token"]
            self._add_step(piece, token, line["logprobs"],
                           self._length(token))
        return piece

    def _add_prompt(self, piece: Piece, scores: list) -> None:
        for token, score in zip(self._prompt.ids, scores):
            text = self._tokens.text(token)
            # The text may lack the space that some tokenizers put before it,
            # and special tokens that were added to it.
            texts = [one for one in (text, text.lstrip(" "))
                     if piece.text.startswith(one, self._offset)]
            if texts:
                length = len(texts[0])
            else:
                length = self._length(token)
            self._add_step(piece, token, score or [[token, None]], length)

    def _length(self, token: int) -> int:
        """Returns the number of characters that the token completes."""
        if self._tokens.is_special(token):
            return 0
        return len(self._decoder.decode(self._tokens.bytes(token)))

    def _add_step(self, piece: Piece, token: int, scores: list,
                  length: int) -> None:
        piece.offsets.append(self._offset)
        self._offset += length
        piece.steps.append((token, scores[0][1],
                            scores[1:][:self._job.logprobs]))


class Form:
    """What all chunks of an answer share, and their forms."""

    kind, prefix = "", ""

    def __init__(self, job: Job, tokens: TokenTexts):
        self._tokens = tokens
        self._job = job
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}",
                      "object": self.kind, "created": int(time.time()),
                      "model": job.model}

    def whole(self, pieces: list[Piece], usage: dict) -> dict:
        """Returns the response. `pieces`: one for each choice."""
        return {**self._head, "usage": usage, "choices": [
            self._choice(index, piece) for index, piece in enumerate(pieces)]}

    def chunk(self, choices: list[dict], usage: dict | None) -> dict:
        head = {**self._head, "object": self.chunk_kind, "choices": choices}
        return {**head, "usage": usage} if self._job.streams_usage else head

    def _logprobs(self, piece: Piece) -> dict | None:
        if self._job.logprobs is None or not piece.steps:
            return None
        return self._steps(piece)


class ChatForm(Form):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    def first(self, index: int) -> dict | None:
        """Returns the choice of the chunk that comes first."""
        return self._part(index, {"role": "assistant", "content": ""}, Piece())

    def part(self, index: int, piece: Piece) -> dict:
        """Returns the choice of a chunk."""
        delta = {"content": piece.text} if piece.text or piece.steps else {}
        return self._part(index, delta, piece)

    def _part(self, index: int, delta: dict, piece: Piece) -> dict:
        return {"index": index, "delta": delta,
                "logprobs": self._logprobs(piece),
                "finish_reason": piece.finish or None}

    def _choice(self, index: int, piece: Piece) -> dict:
        return {"index": index, "message": {
            "role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._logprobs(piece), "finish_reason": piece.finish}

    def _steps(self, piece: Piece) -> dict:
        return {"content": [
            {**self._one(token, value),
             "top_logprobs": [self._one(*other) for other in top]}
            for token, value, top in piece.steps], "refusal": None}

    def _one(self, token: int, value: float) -> dict:
        return {"token": self._tokens.text(token), "logprob": value,
                "bytes": list(self._tokens.bytes(token))}


class TextForm(Form):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def first(self, index: int) -> dict | None:
        return None

    def part(self, index: int, piece: Piece) -> dict:
        return {"index": index, "text": piece.text,
                "logprobs": self._logprobs(piece),
                "finish_reason": piece.finish or None}

    _choice = part

    def _steps(self, piece: Piece) -> dict:
        return {"tokens": [self._tokens.text(token)
                           for token, _, _ in piece.steps],
                "token_logprobs": [value for _, value, _ in piece.steps],
                "top_logprobs": [self._top(*step) for step in piece.steps],
                "text_offset": piece.offsets}

    def _top(self, token: int, value: float | None, top: list) -> dict | None:
        """Returns the likeliest tokens, and the token itself, by their texts.
        If texts are equal, the likelier token counts."""
        if value is None:
            return None
        texts: dict[str, float] = {}
        for other, number in (*top, (token, value)):
            texts.setdefault(self._tokens.text(other), number)
        return texts


def joined(pieces: list[Piece]) -> Piece:
    """Returns the pieces of a choice as one."""
    return Piece("".join(piece.text for piece in pieces),
                 [step for piece in pieces for step in piece.steps],
                 [offset for piece in pieces for offset in piece.offsets],
                 pieces[-1].finish)


def usage(job: Job, choices: list[Choice]) -> dict:
    """Returns the numbers of tokens."""
    prompt = sum(len(one.ids) for one in job.prompts)
    generated = sum(choice.count for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": generated,
            "total_tokens": prompt + generated}
