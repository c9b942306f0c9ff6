# SPDX-License-Identifier: MIT
"""Preference rows as rows of the shapes that are learned from, as TRL makes them:
of a pair, a chosen and a rejected answer to one prompt, two of them.

    prompt, chosen, rejected    strings, or lists of messages
    chosen, rejected            the same with the prompt in both
    messages | conversations | instruction, chosen, rejected
                                a prompt of another shape, as LLaMA-Factory and
                                axolotl have it; an answer may be one message

Answers alone, each with whether it is desirable:

    prompt, completion, label   strings, or lists of messages
    messages | conversations, label
                                whose last turn is the answer
    instruction, output, label

where `label` may be called `kto_tag`, and a pair is two answers.
"""

from __future__ import annotations

from .errors import DataError
from .jsonl import kind
from .shapes import turn_of

_BOTH = ("chosen", "rejected")
_PROMPTS = ("conversations", "messages", "instruction")
_JUDGEMENTS = ("label", "kto_tag")


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
        raise DataError(f"a preference row without '{key}' (it has "
                        f"{_keys(row)})",
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


def judged_of(row: dict) -> list[tuple[dict, bool]]:
    """Answers, and whether they are desirable."""
    row = {key: value for key, value in row.items() if value is not None}
    if all(key in row for key in _BOTH):
        return list(zip(sides_of(row), (True, False)))
    key = next((name for name in _JUDGEMENTS if name in row), None)
    if key is None:
        raise DataError(f"a row without 'label', which says whether its answer "
                        f"is desirable (it has {_keys(row)})",
                        "add 'label': true or false, or train without --rl")
    if not isinstance(row[key], bool):
        raise DataError(f"'{key}' expects true or false, but got "
                        f"{kind(row[key])}", f"fix '{key}'")
    rest = {name: value for name, value in row.items()
            if name not in _JUDGEMENTS}
    return [(_answered(rest), row[key])]


def _answered(row: dict) -> dict:
    """With an answer that is apart from its prompt."""
    if "prompt" in row and "completion" in row:
        return row
    if "instruction" in row and "output" in row and not row.get("history"):
        return row
    for key in ("conversations", "messages"):
        turns = row.get(key)
        if isinstance(turns, list) and len(turns) > 1:
            answered = _behind({**row, key: turns[:-1]}, key, turns[-1:])
            if answered["completion"][0]["role"] == "assistant":
                return answered
    raise DataError("a row whose answer cannot be told from its prompt (it has "
                    f"{_keys(row)})", "write 'prompt', 'completion' and 'label'")


def _keys(row: dict) -> str:
    return ", ".join(f"'{name}'" for name in list(row)[:8]) or "no keys"
