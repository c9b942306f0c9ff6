# SPDX-License-Identifier: MIT
"""What a chat template leaves out of a conversation: tools, tool calls, whole
messages. A template that knows no tools writes an empty answer where the call
was, and that answer would be learned.

A part is left out if the text stays the same without it, or with another part
in its place. So the template itself says it, whatever form it writes.
"""

from __future__ import annotations

from dataclasses import replace

from .errors import DataError
from .masking import Conversation

_OTHER = "qlora"  # makes a name, a text or an argument another one


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
    """Each part of a message, and the message with another in its place. A
    content that is in the text as often as in all `contents` is written."""
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
    """The first `count` messages give one text in both; if the template
    refuses to end there, all of them."""
    for end in (count, len(talk.chat.messages)):
        try:
            text = talk.render(end)
        except DataError:
            continue
        try:
            return replace(talk, chat=other).render(end) == text
        except DataError:  # it looks at the part
            return False
    return False
