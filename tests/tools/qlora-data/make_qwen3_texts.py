#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes Inputs/qwen3-texts.json: conversations as transformers renders them
with Qwen3's own chat template and with TRL's training template, both from the
package trl. Needs the packages transformers and trl:

    make_qwen3_texts.py Inputs/qwen3-texts.json
"""

import importlib.metadata
import importlib.util
import json
import os
import sys

from transformers.utils.chat_template_utils import render_jinja_template


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"type": "function",
            "function": {"name": name, "arguments": arguments}}


TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "a < b & é",
    "parameters": {"type": "object", "properties": {}}}}]
TOOL_TALK = [
    said("user", "1+1?"),
    said("assistant", "", tool_calls=[call("add", {"a": "é", "b": 1})]),
    said("tool", "2"), said("tool", "3"), said("assistant", "two")]
THINKING_TOOL_TALK = [
    said("system", "Count."), said("user", "1+1?"),
    said("assistant", "I add.", reasoning_content="\nplus\n", tool_calls=[
        call("add", '{"a": 1}'), call("add", {"b": [1, None]})]),
    said("tool", "2"),
    said("assistant", "<think>\nso\n</think>\n\ntwo")]
TALK = [said("system", "Be kind."), said("user", "hello"),
        said("assistant", "hi there"), said("user", "and?"),
        said("assistant", "bye")]
THOUGHTFUL = [said("user", "hello"),
              said("assistant", "<think>\nwell\n\nyes\n</think>\n\nhi"),
              said("user", "and?"),
              said("assistant", "bye", reasoning_content="over")]

CASES = [
    ("single", TALK[1:3], {}),
    ("system", TALK[:3], {}),
    ("thinking in the content", THOUGHTFUL[:2], {}),
    ("reasoning_content", THOUGHTFUL[2:], {}),
    ("leading line breaks", [said("user", "a"), said("assistant", "\n\nb")],
     {}),
    ("no thinking", TALK[:3], {"enable_thinking": False}),
    ("several turns", TALK, {}),
    ("several turns with thoughts", THOUGHTFUL, {}),
    ("several turns without thinking", TALK, {"enable_thinking": False}),
    ("later system message", [*TALK[:3], said("system", "Be brief."),
                              *TALK[3:]], {}),
    ("tools", TOOL_TALK, {"tools": TOOLS}),
    ("tools with thoughts", THINKING_TOOL_TALK, {"tools": TOOLS}),
    ("tools, then another question", [*THINKING_TOOL_TALK, *TALK[3:]],
     {"tools": TOOLS}),
    ("tool response of the user",
     [said("user", "a"), said("assistant", "b", reasoning_content="t"),
      said("user", "<tool_response>\nc\n</tool_response>"),
      said("assistant", "d", reasoning_content="u")], {}),
    ("greeting", [said("assistant", "welcome"), *TALK[1:3]], {}),
    ("no question", [said("system", "s"), said("assistant", "\nwelcome")], {}),
    ("question last", TALK[:4], {}),
    ("prompt", TALK[:2], {"add_generation_prompt": True}),
    ("prompt with thinking", TALK[:2],
     {"add_generation_prompt": True, "enable_thinking": True}),
    ("prompt without thinking", TALK[:2],
     {"add_generation_prompt": True, "enable_thinking": False}),
]


def template(name):
    folder = os.path.dirname(importlib.util.find_spec("trl").origin)
    path = os.path.join(folder, "chat_templates", name)
    with open(path, encoding="utf-8") as file:
        return file.read()


def render(source, messages, options):
    return render_jinja_template(
        conversations=[messages], chat_template=source, **options)[0][0]


def lasts(source, messages, options):
    """Returns whether every assistant turn has the same text in the complete
    conversation as it has when it is the last message."""
    text = render(source, messages, options)
    return all(text.startswith(render(source, messages[:end], options))
               for end in range(1, len(messages) + 1)
               if messages[end - 1]["role"] == "assistant")


def main(output):
    own, training = template("qwen3.jinja"), template("qwen3_training.jinja")
    cases = [{"name": name, "messages": messages, "options": options,
              "own": render(own, messages, options),
              "own_lasts": lasts(own, messages, options),
              "training": render(training, messages, options)}
             for name, messages, options in CASES]
    versions = {name: importlib.metadata.version(name)
                for name in ("transformers", "jinja2", "trl")}
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"made_by": "make_qwen3_texts.py", "versions": versions,
                   "cases": cases}, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
