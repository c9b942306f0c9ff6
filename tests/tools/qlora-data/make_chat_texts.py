#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes Inputs/chat-texts.json: conversations as transformers renders them
with qlora-data's templates and with tests/Inputs/chat_templates, which have the
formats of the most used models. Also writes the text inside {% generation %}
marks, for templates with marks. Needs the package transformers:

    make_chat_texts.py Inputs/chat-texts.json
"""

import glob
import importlib.metadata
import json
import os
import sys
from datetime import datetime

from transformers.utils import chat_template_utils

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "..", "..", "..")
FOLDERS = ("tests/Inputs/chat_templates",
           "tools/qlora-data/qlora_data/chat_templates")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class Day(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 25)


def said(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = said("system", "Be kind.")
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "add", "arguments": {"a": "é<1>", "b": 1}}}
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "a < b & é",
    "parameters": {"type": "object", "properties": {
        "a": {"type": "string", "description": "what"}}}}}]
TALK = [said("user", "hello"), said("assistant", "hi 日本"),
        said("user", "and?"), said("assistant", "bye now")]
CALLED = [said("user", "1+1?"), said("assistant", "", tool_calls=[CALL]),
          said("tool", "2", name="add", tool_call_id="abcdefghi"),
          said("assistant", "two")]
THOUGHTFUL = [
    said("user", "hello"), said("assistant", "hi 日本",
                                reasoning_content="well\n\nyes"),
    said("user", "and?"), said("assistant", "bye now",
                               reasoning_content="over")]
CONVERSATIONS = {
    "talk": (TALK, {}), "system": ([SYSTEM, *TALK], {}),
    "tools": ([SYSTEM, *CALLED, *TALK[2:]], {"tools": TOOLS}),
    "thoughts": (THOUGHTFUL, {}),
    "tagged": ([TALK[0], said("assistant", "<think>\nwell\n</think>\n\nhi 日本"),
                *TALK[2:]], {}),
    "prompt": (TALK[:3], {"add_generation_prompt": True})}


def fits(name, source):
    return {"tools": "tool_calls" in source,
            "thoughts": "reasoning_content" in source or "thinking" in source,
            "tagged": "</think>" in source}.get(name, True)


def rendered(source, messages, options):
    options = {**options, **SPECIAL}
    try:
        texts, marks = chat_template_utils.render_jinja_template(
            [messages], chat_template=source,
            return_assistant_tokens_mask="generation" in source, **options)
    except Exception as error:
        return {"raises": str(error)}
    return {"text": texts[0], **({"marks": marks[0]} if marks[0:] and marks[0]
                                 else {})}


def main(output):
    chat_template_utils.datetime = Day
    cases = []
    for folder in FOLDERS:
        for path in sorted(glob.glob(os.path.join(ROOT, folder, "*.jinja"))):
            with open(path, encoding="utf-8") as file:
                source = file.read()
            for name, (messages, options) in CONVERSATIONS.items():
                if fits(name, source):
                    cases.append({
                        "template": f"{folder}/{os.path.basename(path)}",
                        "conversation": name,
                        **rendered(source, messages, options)})
    versions = {name: importlib.metadata.version(name)
                for name in ("transformers", "jinja2")}
    head = json.dumps({
        "made_by": "make_chat_texts.py", "versions": versions,
        "day": Day.now().isoformat(), "special": SPECIAL,
        "conversations": {name: {"messages": messages, "options": options}
                          for name, (messages, options)
                          in CONVERSATIONS.items()}}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    with open(output, "w", encoding="utf-8") as file:
        file.write(head[:-1] + f',\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
