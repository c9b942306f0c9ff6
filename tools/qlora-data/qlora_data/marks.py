# SPDX-License-Identifier: MIT
"""Decides which turns are in the loss, and checks keys that mark turns.

Each trainer has keys that exclude a turn from the loss, include it or weight
it: weight (OpenAI), train, training, train_detail (axolotl), loss (ms-swift,
AgentInstruct), loss_weight (LLaMA-Factory). Words in a key's name identify such
keys, including other spellings (trainOnTurn, do_not_train). A key is refused
unless its value matches the behaviour of qlora.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .errors import DataError


@dataclass
class LossRule:
    completion_only: bool = True
    assistant_only: bool = True

    def learns(self, role: str, in_prompt: bool) -> bool:
        """Returns whether a message with `role` is in the loss."""
        return (not (in_prompt and self.completion_only)
                and (role == "assistant" or not self.assistant_only))

    def words(self) -> str:
        if self.assistant_only:
            return "exactly the assistant's turns are in the loss"
        return "all turns are in the loss"


_LEARNS = {"loss", "losses", "weight", "weights", "weighted", "train", "trains",
           "trained", "training", "trainable", "learn", "learns", "learned",
           "learnable", "supervise", "supervised", "supervision"}
_LEAVES = {"mask", "masks", "masked", "ignore", "ignored", "skip", "skipped",
           "exclude", "excluded"}
_NOT = {"no", "not", "non", "never", "without", "dont"}
# Words that make a key a mark only if its value is a boolean.
_MAYBE = {"label", "target", "include", "included"}
# Keys with these words may select prompts, or only some of the answers.
_OTHERS = {"prompt", "prompts", "input", "inputs", "user", "question",
           "history", "last", "final", "all", "only"}
_PLAIN = {"sample", "row", "example", "instance", "token", "tokens", "turn",
          "turns", "message", "messages", "is", "on", "do", "to", "for", "in",
          "from", "compute", "calculate", "with", "use", "should", "assistant",
          "completion", "response", "answer", "labels"}
_SHOWN = 40  # of a value in an error, in characters


@lru_cache(maxsize=1024)
def _words(key: str) -> frozenset[str]:
    return frozenset(word.lower() for word in
                     re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", key))


def _is_mark(key: str, value: object) -> bool:
    words = _words(key)
    if not words.isdisjoint(_LEARNS | _LEAVES):
        return True
    return isinstance(value, bool) and words - {"is"} <= _MAYBE


def _learns(words: frozenset[str]) -> bool:
    """Returns whether a key with these words puts text into the loss if its
    value is true."""
    if words.isdisjoint(_LEARNS | _MAYBE):
        return False
    return words.isdisjoint(_NOT | (_LEAVES - {"mask", "masks"}))


def _asks(key: str, value: object) -> bool | None:
    """Returns whether the key puts its text into the loss. None if it selects a
    part of the text, or if its meaning is unclear."""
    words = _words(key)
    is_number = isinstance(value, (int, float)) and value in (0, 1)
    # In a mask, 1 may mean "in the loss" or "not in the loss".
    unclear = (words.isdisjoint(_LEARNS) and not isinstance(value, bool)
               and not words.isdisjoint({"mask", "masks"}))
    if not is_number or unclear:
        return None
    return (value == 1) == _learns(words)


def marks_of(message: dict) -> dict[str, object]:
    """Returns the keys of a message that control its loss, with their values.
    Keys in nested objects are OBJECT.KEY."""
    return dict(_marks(message, ""))


def _marks(message: dict, path: str) -> Iterator[tuple[str, object]]:
    for key, value in message.items():
        if value is None:
            continue
        if _is_mark(key, value):
            yield path + key, value
        elif key == "content" and isinstance(value, list):
            for index, part in enumerate(value):
                if isinstance(part, dict):
                    yield from _marks(part, f"{path}content[{index}].")
        elif isinstance(value, dict) and key != "function_call":
            yield from _marks(value, f"{path}{key}.")


def refuse_marks(message: dict, is_learned: bool, rule: LossRule,
                 where: str) -> None:
    """Refuses a message with a key that contradicts `is_learned`: whether the
    message is in the loss."""
    for path, value in marks_of(message).items():
        key = path.rsplit(".", 1)[-1]
        if _asks(key, value) is is_learned:
            continue
        # OpenAI's weight applies only to the assistant's turns.
        is_other = message["role"] != "assistant"
        if key == "weight" and is_other and not is_learned:
            continue
        raise DataError(
            f"{where}: '{path}' is {json.dumps(value, default=str)[:_SHOWN]}, "
            f"but {rule.words()}",
            "write the turns in the loss as 'completion' and the messages "
            f"before them as 'prompt', or remove '{path}'")


def names_mark(column: str) -> bool:
    """Returns whether a column of rows has the name of a mark."""
    words = _words(column)
    return (not words.isdisjoint(_LEARNS | _LEAVES)
            and words <= _LEARNS | _LEAVES | _NOT | _OTHERS | _PLAIN)


def _value_of(text: object) -> object:
    """Parses booleans and numbers, because cells of CSV are text."""
    if not isinstance(text, str):
        return text
    word = text.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        return float(word)
    except ValueError:
        return text


def _row_asks(key: str, value: object) -> bool:
    """Returns whether the column keeps all answers in the loss, at weight 1."""
    words = _words(key)
    if isinstance(value, list):
        flags = [item for item in value
                 if isinstance(item, (int, float)) and item in (0, 1, -100)]
        is_mask = bool(value) and len(flags) == len(value)
        return not is_mask or all(_asks(key, flag) for flag in flags)
    if not isinstance(value, (bool, int, float)) or value != value:
        return True
    if not words.isdisjoint(_OTHERS):
        return value != 1
    if not isinstance(value, bool) and words.isdisjoint({"weight", "weights"}):
        # A number other than 0 and 1 is a measurement, such as a loss.
        return value not in (0, 1) or _asks(key, value) is True
    return _asks(key, value) is True


def refuse_row_marks(row: dict) -> None:
    """Refuses a row with a column that takes it out of the loss, entirely or
    partly, or that gives it a weight other than 1."""
    for key, value in row.items():
        if names_mark(key) and not _row_asks(key, _value_of(value)):
            raise DataError(
                f"'{key}' is {json.dumps(value, default=str)[:_SHOWN]}, but "
                "all answers of a row are in the loss with weight 1",
                f"remove '{key}' and the rows that should not be in the loss, "
                f"or ignore it: --dataset-columns {key}=")
