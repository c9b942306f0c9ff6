# SPDX-License-Identifier: MIT
"""Recognises the shape of a row and converts it to one of two forms.

Detection is per row, so a file may mix shapes. A key whose value is null counts
as absent (tables exported to JSONL fill missing columns with null); unknown
keys are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from .alpaca import alpaca_segments, alpaca_turns
from .errors import DataError
from .jsonl import kind
from .marks import LossRule, marks_of, refuse_marks, refuse_row_marks
from .styles import STYLES

_SHAPES = ("use one of: text; prompt and completion; messages; instruction "
           "and output; conversations")


@dataclass
class PlainRow:
    """Segments (text, is a completion). An end-of-sequence token follows the
    last segment."""
    segments: list[tuple[str, bool]]


@dataclass
class ChatRow:
    """A conversation. The first `prompt_count` messages are the prompt, not in
    the loss."""
    shape: str
    messages: list[dict]
    tools: list | None = None
    prompt_count: int = 0
    template_options: dict = field(default_factory=dict)

    def drop_system(self) -> None:
        """Leaves out a system message at the start."""
        if self.messages[0]["role"] == "system":
            self.messages = self.messages[1:]
            self.prompt_count = max(0, self.prompt_count - 1)


# Names of --row-format. Rows of instruction and output become the Alpaca prompt
# ("alpaca") or turns of the chat template ("turns").
FORMATS = ("text", "completion", "chat", "alpaca", "turns", *STYLES)


def normalise(row: dict, eos_token: str = "", formats: tuple[str, ...] = (),
              compares: bool = False,
              rule: LossRule = LossRule()) -> PlainRow | ChatRow:
    """Returns the row in one of the two forms, or raises an error. `eos_token`
    ends the earlier responses of an alpaca history. `formats`: allowed row
    formats, of FORMATS; empty: all. `compares`: the answer is compared with
    another one. `rule`: which turns are in the loss."""
    row = {key: value for key, value in row.items() if value is not None}
    _refuse_other_training(row)
    refuse_row_marks(row)
    if formats:
        row = _restricted(row, formats)
    form = _form(row, eos_token, formats, compares)
    if isinstance(form, ChatRow):
        for index, message in enumerate(form.messages):
            in_prompt = index < form.prompt_count
            # If prompts are not in the loss, ignore marks of prompt turns.
            if not (in_prompt and rule.completion_only):
                refuse_marks(message, rule.learns(message["role"], in_prompt),
                             rule, f"message {index + 1}")
    return form


def _form(row: dict, eos_token: str, formats: tuple[str, ...],
          compares: bool) -> PlainRow | ChatRow:
    if "prompt" in row and "completion" in row:
        return _prompt_completion(row)
    if "messages" in row:
        return conversation(row)
    if "text" in row:
        if not isinstance(row["text"], str):
            raise DataError(f"'text' expects a string, but got "
                            f"{kind(row['text'])}", "fix 'text'")
        return PlainRow([(row["text"], True)])
    if "instruction" in row and "output" in row:
        if "turns" in formats:
            turns = alpaca_turns(row)
            return ChatRow("instruction", turns,
                           prompt_count=len(turns) - 1 if compares else 0)
        return PlainRow(alpaca_segments(row, eos_token))
    if "conversations" in row:
        return _chat(row, "conversations", _conversations(row))
    keys = ", ".join(f"'{key}'" for key in list(row)[:8]) or "no keys"
    raise DataError(f"the shape of this row is not known (it has {keys})",
                    _SHAPES)


def conversation(row: dict, key: str = "messages") -> ChatRow:
    """Returns the conversation whose messages are in `key`."""
    return _chat(row, key, with_system(row, _messages(row[key], key)))


def _forms(row: dict) -> dict[str, list[str]]:
    """Returns the keys of each form that the row could be."""
    forms: dict[str, list[str]] = {}
    if "prompt" in row and "completion" in row:
        form = "chat" if isinstance(row["prompt"], list) else "completion"
        forms[form] = ["prompt", "completion"]
    for key, form in (("messages", "chat"), ("text", "text"),
                      ("conversations", "chat")):
        if key in row:
            forms.setdefault(form, []).append(key)
    if "instruction" in row and "output" in row:
        forms["alpaca"] = forms["turns"] = ["instruction", "output"]
    return forms


def _restricted(row: dict, formats: tuple[str, ...]) -> dict:
    """Returns the row without keys of forms that are not in `formats`."""
    forms = _forms(row)
    meant = {key for form, keys in forms.items() if form in formats
             for key in keys}
    named = [form for form in forms if form in formats]
    if len(named) > 1:
        raise DataError(f"a row that could be {' or '.join(sorted(named))} (it "
                        f"has {', '.join(repr(key) for key in sorted(meant))})",
                        "name one form with --row-format, or remove a column")
    others = {key for keys in forms.values() for key in keys} - meant
    if others and not meant:
        keys = " and ".join(f"'{key}'" for key in sorted(others))
        raise DataError(f"a row of {keys}, but --row-format allows only "
                        f"{' or '.join(formats)}",
                        "correct --row-format, or the row")
    return {key: value for key, value in row.items() if key not in others}


_MEDIA = ("image", "images", "video", "videos", "audio", "audios")


def _refuse_other_training(row: dict) -> None:
    """Refuses rows with columns that this training would ignore, such as
    `rejected`, `label` or `images`."""
    for key in ("chosen", "rejected"):
        if key in row:
            raise DataError(f"a preference row ('{key}') needs --rl",
                            "train with --rl dpo, or keep the chosen answer "
                            "as 'messages' or 'completion'")
    for key in ("label", "kto_tag"):
        if isinstance(row.get(key), bool) and "text" not in row:
            raise DataError("a row of desirable or undesirable answers "
                            f"('{key}') needs --rl kto",
                            "train with --rl kto, or keep the rows in which "
                            f"it is true, without '{key}'")
    if "completions" in row and "labels" in row:
        raise DataError("a row of judged steps ('completions', 'labels', as "
                        "for a process reward model) is not supported",
                        "write the answer as 'completion'")
    if row.get("functions"):
        raise DataError("'functions' are not read", "write them as 'tools'")
    _refuse_media(row)


def _refuse_media(row: dict) -> None:
    """Refuses images, video and audio in a row or a message."""
    for key in _MEDIA:
        if row.get(key):
            raise DataError(f"'{key}' is not supported: only text is",
                            f"remove '{key}', or the row")


def _prompt_completion(row: dict) -> PlainRow | ChatRow:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        refuse_system(row, "'prompt' is a string")
        return PlainRow([(prompt, False), (completion, True)])
    if isinstance(prompt, list) and isinstance(completion, list):
        asked = _messages(prompt, "prompt")
        answer = _messages(completion, "completion")
        if answer[:len(asked)] == asked:
            raise DataError("'completion' begins with 'prompt', which would "
                            "repeat it",
                            "write only the answer as 'completion', or all of "
                            "it as 'messages'")
        before = with_system(row, asked)
        messages = before + answer
        return _chat(row, "prompt", messages, len(before))
    raise DataError("'prompt' and 'completion' expect two strings or two "
                    f"lists of messages, but got {kind(prompt)} and "
                    f"{kind(completion)}", "fix 'prompt' or 'completion'")


def with_system(row: dict, messages: list[dict]) -> list[dict]:
    """Returns the messages, after the row's `system` if it has one."""
    system = row.get("system")
    if system in (None, ""):
        return messages
    if not isinstance(system, str):
        raise DataError(f"'system' expects a string, but got {kind(system)}",
                        "fix 'system'")
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    if messages[0].get("content") != system:
        raise DataError("'system' differs from the system message of the "
                        "conversation", "remove one of them")
    return messages


def refuse_system(row: dict, why: str) -> None:
    """Refuses a system message for plain text, which has no place for it."""
    if row.get("system") not in (None, ""):
        raise DataError(f"'system' cannot be used if {why}",
                        "write the row as 'messages', or put its text into "
                        "'prompt'")


def _chat(row: dict, shape: str, messages: list[dict],
          prompt_count: int = 0) -> ChatRow:
    options = row.get("chat_template_kwargs", {})
    if not isinstance(options, dict):
        raise DataError("'chat_template_kwargs' expects an object",
                        "fix 'chat_template_kwargs'")
    return ChatRow(shape, messages, _tools(row), prompt_count, options)


def _tools(row: dict) -> list | None:
    """Returns the tools as a list, or None if it is empty. Accepts a JSON
    string, because tables cannot hold schemas of different shapes."""
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise DataError(f"'tools' is a string, but not JSON: {error}",
                            "fix 'tools'") from None
    if not tools:
        return None
    if not isinstance(tools, list):
        raise DataError(f"'tools' expects a list, but got {kind(tools)}",
                        "fix 'tools'")
    return tools


def _messages(value: object, key: str) -> list[dict]:
    if not isinstance(value, list) or not value:
        what = "an empty list" if value == [] else kind(value)
        raise DataError(f"'{key}' expects a list of messages, but got {what}",
                        f"fix '{key}'")
    return [_message(message, f"{key}[{index}]")
            for index, message in enumerate(value)]


def _message(value: object, where: str) -> dict:
    """Returns a message for the chat template. Drops null values, joins text
    parts, and copies reasoning to each name that templates read."""
    if not isinstance(value, dict):
        raise DataError(f"{where} expects an object, but got {kind(value)}",
                        'write {"role": ..., "content": ...}')
    message = {key: item for key, item in value.items() if item is not None}
    if not isinstance(message.get("role"), str):
        raise DataError(f"{where} has no 'role' string",
                        'write {"role": ..., "content": ...}')
    if message["role"] in ("human", "gpt"):
        raise DataError(f"{where} has the role '{message['role']}', a name of "
                        "sharegpt rows, which chat templates do not know",
                        "write the role user or assistant, or conversations "
                        "with 'from' and 'value'")
    _refuse_media(message)
    _check_calls(message, where)
    if "content" in message:
        message |= marks_of({"content": message["content"]})
        message["content"] = _content(message["content"], where)
    elif not message.get("tool_calls"):
        raise DataError(f"{where} has neither 'content' nor 'tool_calls'",
                        'write {"role": ..., "content": ...}')
    for name in ("reasoning_content", "thinking", "reasoning"):
        if name in message:
            reasoning = message[name]
            return {"thinking": reasoning, **message,
                    "reasoning_content": reasoning}
    return message


def _check_calls(message: dict, where: str) -> None:
    """Refuses calls that are not a list, because templates omit them. Refuses
    calls without arguments (null in a table), because templates fail."""
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list):
        raise DataError(f"{where}: 'tool_calls' expects a list, but got "
                        f"{kind(calls)}", "fix 'tool_calls'")
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        if isinstance(function, dict) and "name" in function \
                and function.get("arguments") is None:
            raise DataError(f"{where}: the tool call '{function['name']}' has "
                            "no 'arguments'", 'write "arguments": {}')


def _content(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise DataError(f"{where}: 'content' expects a string or a list of "
                        f"text parts, but got {kind(value)}", "fix 'content'")
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise DataError(f"{where}: 'content' has a part that is not text",
                            "keep only text parts: images and audio are not "
                            "supported")
    return "".join(part["text"] for part in value)


_ROLES = {"human": "user", "user": "user", "gpt": "assistant",
          "assistant": "assistant", "chatgpt": "assistant",
          "system": "system", "observation": "tool", "tool": "tool",
          "function_response": "tool"}
# Keys of a turn that templates read, in addition to speaker and text.
_SHAREGPT_KEYS = ("tool_calls", "function_call", "tool_call_id", "name",
                  "reasoning_content", "thinking", "reasoning", *_MEDIA)


def _conversations(row: dict) -> list[dict]:
    turns = row["conversations"]
    if not isinstance(turns, list) or not turns:
        raise DataError("'conversations' expects a list of turns, but got "
                        f"{turns if turns == [] else kind(turns)}",
                        'write [{"from": "human", "value": ...}, ...]')
    messages = [turn_of(turn, f"conversations[{index}]")
                for index, turn in enumerate(turns)]
    return with_system(row, messages)


def turn_of(turn: object, where: str) -> dict:
    if isinstance(turn, dict) and "role" in turn and "from" not in turn:
        return _message(turn, where)
    if (not isinstance(turn, dict) or not isinstance(turn.get("from"), str)
            or not isinstance(turn.get("value"), str)):
        raise DataError(f"{where} expects 'from' and 'value' strings",
                        'write {"from": ..., "value": ...}')
    rest = {key: turn[key] for key in _SHAREGPT_KEYS if key in turn}
    rest |= marks_of(turn)
    if turn["from"] == "function_call":
        return _message({**rest, **_function_call(turn["value"])}, where)
    if turn["from"] not in _ROLES:
        raise DataError(f"{where} has the unknown speaker '{turn['from']}'",
                        "use human, gpt, system, function_call or observation")
    return _message({**rest, "role": _ROLES[turn["from"]],
                     "content": turn["value"]}, where)


def _function_call(value: str) -> dict:
    """Returns tool calls from {"name", "arguments"} in JSON, or a list of them.
    Other text stays the assistant's text."""
    try:
        calls = json.loads(value)
    except (ValueError, RecursionError):
        calls = None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and "name" in call
                            for call in calls):
        return {"role": "assistant", "content": value}
    return {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {
            "name": call["name"], "arguments": call.get("arguments") or {}}}
        for call in calls]}
