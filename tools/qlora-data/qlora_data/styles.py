# SPDX-License-Identifier: MIT
"""Prompts of axolotl that need no chat template: its `type` of a data set as a
row format, with a dash for ":" or ".". A row becomes one of `prompt` and
`completion`, or of `prompt`, `chosen` and `rejected`."""

from __future__ import annotations

from .alpaca import OPENINGS
from .errors import DataError

# The prompts of rows with and without an input, and of the opening sentences.
_ALPACA = {
    "alpaca-chat": ("USER: {0}\n{1}\nASSISTANT:", "USER: {0}\nASSISTANT:",
                    "SYSTEM: {}\n"),
    "alpaca-chatml": (
        "<|im_start|>user\n{0}\n{1}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n{0}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\n{}<|im_end|>\n"),
    "alpaca-phi": ("<|user|>\n{0}<|end|>{1}<|assistant|>",
                   "<|user|>\n{0}<|end|>\n<|assistant|>\n",
                   "<|system|>\n{}<|end|>\n"),
    "jeopardy": ("### Instruction:\n{0}\n\n### Input:\n{1}\n\n### Response:\n",
                 "### Instruction:\n{0}\n\n### Response:\n", "{}\n\n")}
# The system text, the question, and the end of an answer.
_ULTRA = {
    "chatml-ultra": ("<|im_start|>system\n{}<|im_end|>\n",
                     "<|im_start|>user\n{}<|im_end|>\n"
                     "<|im_start|>assistant\n", "<|im_end|>"),
    "llama3-ultra": (
        "<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>")}
STYLES = (*_ALPACA, *_ULTRA)


def _text(row: dict, key: str, default: str | None = None) -> str:
    value = row.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise DataError(f"'{key}' expects a string", f"add or fix '{key}'")
    return value


def _answer(row: dict, key: str) -> str:
    """Returns the text of an answer: a string, or a question and its answer as
    messages."""
    value = row.get(key)
    if isinstance(value, list) and len(value) == 2 \
            and isinstance(value[1], dict):
        return _text(value[1], "content")
    return _text(row, key)


def _alpaca(row: dict, style: str) -> dict:
    with_input, without, opening = _ALPACA[style]
    if style == "jeopardy":
        asked = _text(row, "question"), _text(row, "category")
        answer = "what is " + _text(row, "answer")
    else:
        asked = _text(row, "instruction"), _text(row, "input", "")
        answer = _text(row, "output")
    sentences = OPENINGS[0 if asked[1] else 1].rstrip("\n")
    prompt = (with_input if asked[1] else without).format(*asked)
    return {"prompt": opening.format(sentences) + prompt,
            "completion": answer}


def _ultra(row: dict, style: str) -> dict:
    system, question, end = _ULTRA[style]
    prompt = question.format(_text(row, "prompt"))
    if row.get("system"):
        prompt = system.format(_text(row, "system")) + prompt
    answers = [key for key in ("chosen", "rejected", "completion")
               if row.get(key) is not None]
    kept = {key: value for key, value in row.items()
            if key in ("label", "kto_tag")}
    return {**kept, "prompt": prompt,
            **{key: _answer(row, key) + end for key in answers}}


def styled(row: dict, formats: tuple[str, ...]) -> dict:
    """Returns the row in the prompt that `formats` names, if they do."""
    for style in formats:
        if style in _ALPACA:
            return _alpaca(row, style)
        if style in _ULTRA:
            return _ultra(row, style)
    return row


def plain_formats(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the formats of the rows that styled() returns."""
    return tuple("completion" if name in STYLES else name for name in formats)
