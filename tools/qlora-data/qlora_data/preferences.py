# SPDX-License-Identifier: MIT
"""Preference rows: a chosen and a rejected answer to one prompt, as two rows of
the shapes that are learned from, as TRL makes them.

    prompt, chosen, rejected    strings, or lists of messages
    chosen, rejected            the same with the prompt in both
    messages | conversations | instruction, chosen, rejected
                                a prompt of another shape, as LLaMA-Factory and
                                axolotl have it; an answer may be one message
"""

from __future__ import annotations

from .errors import DataError
from .jsonl import kind
from .shapes import turn_of

_BOTH = ("chosen", "rejected")
_PROMPTS = ("conversations", "messages", "instruction")


def sides_of(row: dict) -> list[dict]:
    """Of the chosen answer, then of the rejected one."""
    row = {key: value for key, value in row.items() if value is not None}
    answers = [_answer(row, key) for key in _BOTH]
    if type(answers[0]) is not type(answers[1]):
        raise DataError("'chosen' and 'rejected' expect two strings or two "
                        f"lists of messages, but got {kind(answers[0])} and "
                        f"{kind(answers[1])}", "fix 'chosen' or 'rejected'")
    rest = {key: value for key, value in row.items() if key not in _BOTH}
    prompt = rest.get("prompt")
    # A prompt of another kind repeats the first of the messages.
    if prompt is not None and isinstance(prompt, type(answers[0])):
        return [{**rest, "completion": answer} for answer in answers]
    rest.pop("prompt", None)
    for key in _PROMPTS:
        if key in rest:
            return [_behind(rest, key, answer) for answer in answers]
    return _apart(rest, answers)


def _answer(row: dict, key: str) -> str | list:
    if key not in row:
        has = ", ".join(f"'{name}'" for name in list(row)[:8]) or "no keys"
        raise DataError(f"a preference row without '{key}' (it has {has})",
                        f"add '{key}', or train without --rl")
    answer = row[key]
    if isinstance(answer, dict):
        answer = [answer]
    if not isinstance(answer, (str, list)) or not answer:
        raise DataError(f"'{key}' expects a string or a list of messages, but "
                        f"got {kind(answer) if answer else 'an empty one'}",
                        f"fix '{key}'")
    return answer


def _behind(rest: dict, key: str, answer: str | list) -> dict:
    """The answer to a prompt of another shape."""
    if key == "instruction" and isinstance(answer, str):
        if rest.get("history"):
            raise DataError("'history' does not go with 'chosen' and "
                            "'rejected'", "write the turns as 'messages'")
        return {**rest, "output": answer}
    if isinstance(rest[key], list) and isinstance(answer, list):
        turns = [turn_of(turn, f"{key}[{index}]")
                 for index, turn in enumerate(rest[key])]
        system = rest.get("system")
        if system and turns and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": system})
        return {**rest, "prompt": turns, "completion":
                [turn_of(turn, f"the answer's turn {index}")
                 for index, turn in enumerate(answer)]}
    raise DataError(f"'{key}' and its answers do not go together: they are "
                    f"{kind(rest[key])} and {kind(answer)}",
                    "write 'prompt', 'chosen' and 'rejected'")


def _apart(rest: dict, answers: list) -> list[dict]:
    """With the prompt in both answers: what they begin with alike."""
    chosen, rejected = answers
    same = 0
    while (same < min(len(chosen), len(rejected))
           and chosen[same] == rejected[same]):
        same += 1
    if isinstance(chosen, str) and same and chosen[same - 1] == " ":
        same -= 1
    for key, answer in zip(_BOTH, answers):
        if not answer[same:]:
            raise DataError(f"'{key}' is the beginning of the other one, which "
                            "leaves no answer", "write 'prompt', 'chosen' and "
                            "'rejected'")
    if not same:
        return [{**rest, "text" if isinstance(answer, str) else "messages":
                 answer} for answer in answers]
    return [{**rest, "prompt": answer[:same], "completion": answer[same:]}
            for answer in answers]
