# SPDX-License-Identifier: MIT
"""Finds the parts of a conversation that a chat template omits: tools, tool
calls, whole messages. A template without tool support writes an empty answer
instead of a call, and that answer would be in the loss.

A part is omitted if removing or changing it does not change the text. So the
check works for any format that a template writes.
"""

from __future__ import annotations

from dataclasses import replace

from .errors import DataError
from .masking import Conversation

_OTHER = "qlora"  # appended to change a name, text or argument


def dropped_part(talk: Conversation, text: str) -> str:
    """Names the first part of the conversation that its rendering `text` does
    not depend on; empty if there is none."""
    chat = talk.chat
    if chat.tools and _same(talk, replace(chat, tools=None),
                            len(chat.messages)):
        return "the tools"
    contents = "\0".join(message["content"] for message in chat.messages
                         if isinstance(message.get("content"), str))
    for index, message in enumerate(chat.messages):
        for part, changed in _changes(message, text, contents):
            messages = [*chat.messages]
            messages[index] = changed
            if _same(talk, replace(chat, messages=messages), index + 1):
                return f"{part} of message {index + 1} ({message['role']})"
    return ""


def _changes(message: dict, text: str, contents: str):
    """Yields (name of a part, message with that part changed). Skips content
    that occurs in `text` as often as in `contents`, the joined messages.
    """
    content = message.get("content")
    words = content.strip() if isinstance(content, str) else ""
    if words and text.count(words) < contents.count(words):
        yield "the content", {**message, "content": content + _OTHER}
    call = message.get("function_call")
    for part, changed in _changed_calls(call):
        yield part, {**message, "function_call": changed}
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        for part, changed in _changed_calls(call):
            yield part, {**message, "tool_calls": [
                *calls[:number], changed, *calls[number + 1:]]}


def _changed_calls(call: object):
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return
    name, arguments = function.get("name"), function.get("arguments")

    def changed(**parts) -> dict:
        other = {**function, **parts}
        return {**call, "function": other} if "function" in call else other

    if isinstance(name, str):
        yield f"the tool call '{name}'", changed(name=name + _OTHER)
    if isinstance(arguments, dict):
        yield (f"the arguments of the tool call '{name}'",
               changed(arguments={**arguments, _OTHER: _OTHER}))
    elif isinstance(arguments, str):
        yield (f"the arguments of the tool call '{name}'",
               changed(arguments=arguments + _OTHER))


def _same(talk: Conversation, other, count: int) -> bool:
    """Returns whether the chat `other` gives the same text as talk.chat for the
    first `count` messages. Compares all messages if the template cannot end
    after `count`."""
    for end in (count, len(talk.chat.messages)):
        try:
            text = talk.render(end)
        except DataError:
            continue
        try:
            return replace(talk, chat=other).render(end) == text
        except DataError:  # the template needs the part that is changed
            return False
    return False
