# SPDX-License-Identifier: MIT
"""The Alpaca prompt, with LLaMA-Factory's `system` and `history`."""

from __future__ import annotations

from .errors import DataError

# With and without an input.
OPENINGS = (
    "Below is an instruction that describes a task, paired with an input that "
    "provides further context. Write a response that appropriately completes "
    "the request.\n\n",
    "Below is an instruction that describes a task. Write a response that "
    "appropriately completes the request.\n\n")


def _question(instruction: str, context: str) -> str:
    text = f"### Instruction:\n{instruction}\n\n"
    if context:
        text += f"### Input:\n{context}\n\n"
    return text + "### Response:\n"


def _history(row: dict) -> list[tuple[str, str]]:
    history = row.get("history") or []
    pairs = isinstance(history, list) and all(
        isinstance(turn, list) and len(turn) == 2
        and all(isinstance(text, str) for text in turn) for turn in history)
    if not pairs:
        raise DataError("'history' expects a list of [instruction, response] "
                        "pairs of strings", "fix or remove 'history'")
    return [(turn[0], turn[1]) for turn in history]


def _check_texts(row: dict) -> None:
    for key in ("instruction", "input", "output", "system"):
        if not isinstance(row.get(key) or "", str):
            raise DataError(f"'{key}' expects a string", f"fix '{key}'")


def alpaca_turns(row: dict) -> list[dict]:
    """Returns the row as LLaMA-Factory's turns: a system message if there is a
    `system`, the history, and instruction and input on separate lines."""
    _check_texts(row)
    asked = [text for text in (row["instruction"], row.get("input")) if text]
    pairs = [*_history(row), ("\n".join(asked), row["output"])]
    system = row.get("system")
    turns = [{"role": "system", "content": system}] if system else []
    for question, answer in pairs:
        turns.append({"role": "user", "content": question})
        turns.append({"role": "assistant", "content": answer})
    return turns


def alpaca_segments(row: dict, eos_token: str) -> list[tuple[str, bool]]:
    """Returns the row as (text, is in the loss) segments. A `system` replaces
    the prompt's opening. Responses of the history are in the loss, each with an
    end token; the caller adds the end token of the last response."""
    _check_texts(row)
    context = row.get("input") or ""
    prompt = row.get("system")
    if prompt:
        prompt += "\n\n"
    else:
        prompt = OPENINGS[0 if context else 1]
    segments = []
    for instruction, response in _history(row):
        segments.append((prompt + _question(instruction, ""), False))
        segments.append((response + eos_token, True))
        prompt = "\n\n"
    segments.append((prompt + _question(row["instruction"], context), False))
    segments.append((row["output"], True))
    return segments
