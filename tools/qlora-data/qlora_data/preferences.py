# SPDX-License-Identifier: MIT
"""Turns preference rows into rows of the usual shapes, as TRL does: a pair
becomes two rows, a chosen and a rejected answer to one prompt.

    prompt, chosen, rejected    strings, or lists of messages
    chosen, rejected            with the prompt in both
    messages | conversations | instruction, chosen, rejected
                                a prompt of another shape, as in LLaMA-Factory
                                and axolotl; an answer may be one message

The common beginning of two conversations is their prompt, whatever the columns
(`prompt` and `messages` often repeat it). A pair without a prompt is refused.

Single answers, each with a label whether it is desirable:

    prompt, completion, label   strings, or lists of messages
    messages | conversations, label
                                whose last turn is the answer
    instruction, output, label

where `label` may be called `kto_tag`. A pair counts as a desirable and an
undesirable answer.
"""

from __future__ import annotations

from .errors import DataError
from .jsonl import kind
from .shapes import refuse_system, turn_of, with_system

_BOTH = ("chosen", "rejected")
_PROMPTS = ("conversations", "messages", "instruction")
# Columns in which other data sets store the prompt.
_LIKELY_PROMPTS = ("question", "query", "input", "problem", "text",
                   "context")
_JUDGEMENTS = ("label", "kto_tag")


def sides_of(row: dict) -> list[dict]:
    """Returns the chosen answer's row, then the rejected answer's."""
    row = {key: value for key, value in row.items() if value is not None}
    for key in _JUDGEMENTS:
        if isinstance(row.get(key), bool) and row.keys() >= set(_BOTH):
            raise DataError(f"a pair ('chosen', 'rejected') with '{key}', "
                            "which belongs to a single answer",
                            f"remove '{key}', or write the answer as "
                            "'completion'")
    answers = [_answer(row, key) for key in _BOTH]
    if type(answers[0]) is not type(answers[1]):
        raise DataError("'chosen' and 'rejected' expect two strings or two "
                        f"lists of messages, but got {kind(answers[0])} and "
                        f"{kind(answers[1])}", "fix 'chosen' or 'rejected'")
    rest = {key: value for key, value in row.items() if key not in _BOTH}
    if isinstance(answers[0], str):
        return _texts(rest, answers)
    return _conversations(rest, [
        [turn_of(turn, f"{key}[{index}]") for index, turn in enumerate(answer)]
        for key, answer in zip(_BOTH, answers)])


def shares_prompt(row: dict) -> bool:
    """Returns whether the answers are texts in a row without a prompt column.
    Then their common beginning is the prompt."""
    return (isinstance(row.get("chosen"), str)
            and all(row.get(key) is None for key in ("prompt", "instruction")))


def repeats_prompt(row: dict) -> bool:
    """Returns whether both answers are texts that begin with the prompt."""
    prompt = row.get("prompt", row.get("instruction"))
    return (isinstance(prompt, str) and bool(prompt.strip())
            and all(isinstance(row.get(key), str)
                    and row[key].lstrip().startswith(prompt.strip())
                    for key in _BOTH))


def repeated_prompt(key: str = "prompt") -> DataError:
    return DataError(f"'chosen' and 'rejected' begin with '{key}', which "
                     "would be in the loss as a part of the answers",
                     f"write the answers without it, or remove '{key}'")


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


def _texts(rest: dict, answers: list[str]) -> list[dict]:
    """Returns one row for each of two plain-text answers."""
    for key, answered in (("prompt", "completion"),
                          *((name, "output") for name in _PROMPTS)):
        if key not in rest:
            continue
        _refuse_other_kind(key, rest[key], answers[0])
        _refuse_repeated(key, rest[key], answers)
        if rest.get("history"):
            raise DataError("'history' conflicts with 'chosen' and 'rejected'",
                            "write the turns as 'messages'")
        if key == "prompt":
            refuse_system(rest, "'prompt' is a string")
        return [{**rest, answered: answer} for answer in answers]
    same = _shared(*answers)
    if same and answers[0][same - 1] == " ":
        same -= 1
    shared = answers[0][:same]
    likely = [key for key, value in rest.items() if isinstance(value, str)
              and (key in _LIKELY_PROMPTS or _is_other_text(value, shared))]
    # Two answers may begin with the same word or letters by chance.
    if len(shared.split()) < 2 or likely:
        raise _no_prompt(rest, likely)
    refuse_system(rest, "the prompt is a string")
    prompt, answers = _split(answers, same)
    return [{**rest, "prompt": prompt, "completion": answer}
            for answer in answers]


def _is_other_text(text: str, shared: str) -> bool:
    """Returns whether `text` may be a prompt: it has several words, unlike a
    label, a name or a number, and is not in `shared`, the answers' prefix."""
    return len(text.split()) > 1 and text.strip() not in shared


def _refuse_repeated(key: str, prompt: str, answers: list[str]) -> None:
    """Refuses an empty prompt (an empty cell of CSV), and a prompt that both
    answers repeat, because it would be in the loss. One repeated word may be
    chance. So the converter decides about it at the end of the file."""
    if not prompt.strip():
        raise DataError(f"a preference row whose '{key}' is empty",
                        f"add '{key}', or remove the row")
    if len(prompt.split()) > 1 and repeats_prompt(
            {"prompt": prompt, **dict(zip(_BOTH, answers))}):
        raise repeated_prompt(key)


def _conversations(rest: dict, answers: list[list[dict]]) -> list[dict]:
    """Returns one row for each of two answers that are lists of messages. Their
    common prefix is the prompt, unless it begins with an assistant message. A
    string `prompt` or `messages` may repeat the prompt."""
    prompt = rest.pop("prompt", None)
    same = _shared(*answers)
    if isinstance(prompt, list):
        turns = [turn_of(turn, f"prompt[{index}]")
                 for index, turn in enumerate(prompt)]
        # If both answers repeat the prompt, equal messages after it become
        # part of the prompt. Each answer keeps at least its last message.
        if turns and all(answer[:len(turns)] == turns for answer in answers):
            same = min(same, *(len(answer) - 1 for answer in answers))
            same = max(same, len(turns))
            turns, answers = answers[0][:same], [answer[same:]
                                                 for answer in answers]
        else:
            _refuse_answered("prompt", turns)
    elif same and answers[0][0]["role"] != "assistant":
        _refuse_other_prompt(prompt, answers[0][:same])
        turns, answers = _split(answers, same)
    else:
        turns = _turns_before(rest, prompt)
    for key, answer in zip(_BOTH, answers):
        if not answer or answer[0]["role"] != "assistant":
            raise _goes_on_with(key, answer[0]["role"] if answer else "nothing")
    if not turns:
        raise _no_prompt(rest, [])
    return [{**rest, "prompt": with_system(rest, turns), "completion": answer}
            for answer in answers]


def _refuse_other_prompt(prompt: object, turns: list[dict]) -> None:
    """Refuses a string prompt that is not in the answers' common messages."""
    if not isinstance(prompt, str):
        return
    text = " ".join(prompt.split())
    others = [" ".join(str(turn.get("content", "")).split()) for turn in turns]
    if not any(text in other or other and other in text for other in others):
        raise DataError("'prompt' differs from the first messages of 'chosen' "
                        "and 'rejected'",
                        "remove 'prompt', or write it as the first message of "
                        "both")


def _turns_before(rest: dict, prompt: object) -> list[dict]:
    """Returns the prompt of answers without a common beginning: a conversation
    that ends before the answer."""
    for key in _PROMPTS:
        if key not in rest:
            continue
        _refuse_other_kind(key, rest[key], [])
        turns = [turn_of(turn, f"{key}[{index}]")
                 for index, turn in enumerate(rest[key])]
        _refuse_answered(key, turns)
        return turns
    if prompt is not None:
        _refuse_other_kind("prompt", prompt, [])
    raise _no_prompt(rest, [key for key in _LIKELY_PROMPTS if key in rest])


def _refuse_answered(key: str, turns: list[dict]) -> None:
    """Refuses a prompt that already has an answer."""
    if turns and turns[-1]["role"] == "assistant":
        raise DataError(f"'{key}' ends with an assistant's turn, so it is not "
                        "the prompt of an answer",
                        "write the turns before the answer as 'prompt'")


def _goes_on_with(key: str, role: str) -> DataError:
    return DataError(f"'{key}' continues after the prompt with {role}, but an "
                     "assistant's answer is expected",
                     f"write the prompt as 'prompt', and '{key}' without it")


def _refuse_other_kind(key: str, prompt: object, answer: str | list) -> None:
    """Refuses a string prompt with answers of messages, or the reverse."""
    if not isinstance(prompt, type(answer)):
        raise DataError(f"'{key}' is {kind(prompt)}, but its answers are "
                        f"{kind(answer)}",
                        "write 'prompt', 'chosen' and 'rejected' as strings, "
                        "or all as lists of messages")


def _no_prompt(rest: dict, likely: list[str]) -> DataError:
    todo = "add 'prompt'"
    if likely:
        todo = (f"name the column that is the prompt, as --dataset-columns "
                f"prompt={likely[0]}, and remove what is not")
    return DataError("a preference row without a prompt: there is no 'prompt' "
                     f"(it has {_keys(rest) if rest else 'the answers alone'}),"
                     " and 'chosen' and 'rejected' do not tell it", todo)


def _shared(chosen: str | list, rejected: str | list) -> int:
    """Returns the length of the answers' common beginning, in characters or
    messages."""
    same = 0
    while (same < min(len(chosen), len(rejected))
           and chosen[same] == rejected[same]):
        same += 1
    return same


def _split(answers: list, same: int) -> tuple:
    """Returns the common beginning of two answers, and the rest of each."""
    rests = [answer[same:] for answer in answers]
    for key, rest in zip(_BOTH, rests):
        if not rest:
            raise DataError(f"'{key}' is the beginning of the other answer, "
                            "so it has no text of its own",
                            "write 'prompt', 'chosen' and 'rejected'")
    return answers[0][:same], rests


def judged_of(row: dict) -> list[tuple[dict, bool]]:
    """Returns a row for each answer, and whether the answer is desirable."""
    row = {key: value for key, value in row.items() if value is not None}
    if all(key in row for key in _BOTH):
        return list(zip(sides_of(row), (True, False)))
    judgements = [name for name in _JUDGEMENTS if name in row]
    key = judgements[0] if judgements else None
    if len(judgements) > 1 and row["label"] != row["kto_tag"]:
        raise DataError("'label' and 'kto_tag' differ", "remove one of them")
    if key is None:
        raise DataError(f"a row without 'label', which says whether its answer "
                        f"is desirable (it has {_keys(row)})",
                        "add 'label': true or false, or train without --rl")
    if not isinstance(row[key], bool):
        raise DataError(f"'{key}' expects true or false, but got "
                        f"{kind(row[key])}", f"fix '{key}'")
    rest = {name: value for name, value in row.items()
            if name not in _JUDGEMENTS}
    answered = _answered(rest)
    _check_answer(answered)
    return [(answered, row[key])]


def _check_answer(row: dict) -> None:
    """Checks that there is a prompt and that the answer is the assistant's."""
    prompt = row.get("prompt", row.get("instruction"))
    if isinstance(prompt, str) and not prompt.strip():
        raise DataError("a row whose prompt is empty",
                        "add a prompt, or remove the row")
    if isinstance(prompt, list):
        _refuse_answered("prompt", [turn_of(turn, f"prompt[{index}]")
                                    for index, turn in enumerate(prompt)])
    completion = row.get("completion")
    first = completion[0] if isinstance(completion, list) and completion else {}
    role = turn_of(first, "completion[0]")["role"] if first else "assistant"
    if role != "assistant":
        raise _goes_on_with("completion", role)


def _answered(row: dict) -> dict:
    """Returns the row with the answer separate from its prompt."""
    if "prompt" in row and "completion" in row:
        return row
    if "instruction" in row and "output" in row and not row.get("history"):
        return row
    for key in ("conversations", "messages"):
        turns = row.get(key)
        if isinstance(turns, list) and len(turns) > 1:
            *before, answer = [turn_of(turn, f"{key}[{index}]")
                               for index, turn in enumerate(turns)]
            if answer["role"] == "assistant":
                return {**row, "prompt": with_system(row, before),
                        "completion": [answer]}
    raise DataError("a row whose answer cannot be separated from its prompt "
                    f"(it has {_keys(row)})",
                    "write 'prompt', 'completion' and 'label'")


def _keys(row: dict) -> str:
    return ", ".join(f"'{name}'" for name in list(row)[:8]) or "no keys"
