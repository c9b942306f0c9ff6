# SPDX-License-Identifier: MIT
"""Chat templates that come with this tool, and the models they are for.

Most are for models without a template.

`qwen3-training` is different: it replaces Qwen3's own template, which renders
an assistant turn differently if later messages follow. The own template's
source varies between the published models. So `recognised` compares rendered
text.
"""

from __future__ import annotations

import os

from .errors import DataError
from .model_files import SHIPPED_FOLDER
from .shapes import ChatRow
from .template import Template

QWEN3 = "qwen3-training"


def _chat(*messages: dict, tools: list | None = None, **options) -> ChatRow:
    return ChatRow("messages", list(messages), tools, 0, options)


def _said(role: str, content: str, **more) -> dict:
    return {"role": role, "content": content, **more}


def _call(name: str, arguments: object) -> dict:
    return {"type": "function",
            "function": {"name": name, "arguments": arguments}}


_TOOLS = [{"type": "function", "function": {
    "name": "f", "description": "<é>", "parameters": {"type": "object"}}}]

# Conversations that Qwen3's own template and QWEN3 must render alike.
_LASTING = (
    _chat(_said("system", "s"), _said("user", "a"),
          _said("assistant", "b", reasoning_content="\nr\n",
                tool_calls=[_call("f", {"x": [1, "é"]}), _call("g", "{}")]),
          _said("tool", "c"), _said("tool", "d"),
          _said("assistant", "<think>\nt\n</think>\n\ne"), tools=_TOOLS),
    _chat(_said("assistant", "hello"), _said("user", "a"),
          _said("assistant", "\nb")),
    _chat(_said("user", "a"), enable_thinking=False),
    _chat(_said("user", "a"), enable_thinking=True),
    _chat(_said("system", "s"), _said("user", "a")),
)
# Qwen3's own template renders this conversation without the earlier reasoning.
_FORGOTTEN = _chat(_said("user", "a"), _said("assistant", "<think>\nt\n</think>"
                                             "\n\nb"), _said("user", "c"))
_FORGOTTEN_TEXT = ("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
                   "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n")


def shipped_template(name: str, opens_thinking: bool = False) -> Template:
    with open(os.path.join(SHIPPED_FOLDER, name + ".jinja"),
              encoding="utf-8") as file:
        return Template(file.read(), name, {"opens_thinking": opens_thinking})


def recognised(own: Template) -> Template | None:
    """Returns the training template for a model with the template `own`."""
    if own.has_marks or "<think>" not in own.source:
        return None
    for opens_thinking in (False, True):
        ours = shipped_template(QWEN3, opens_thinking)
        try:
            if _is_qwen3(own, ours):
                return ours
        except DataError:  # a template that cannot write such a row
            return None
    return None


def _is_qwen3(own: Template, ours: Template) -> bool:
    for chat in _LASTING:
        asks = chat.messages[-1]["role"] == "user"
        texts = [template.render(chat, chat.messages, {}, asks)[0]
                 for template in (own, ours)]
        if texts[0] != texts[1]:
            return False
    forgotten = own.render(_FORGOTTEN, _FORGOTTEN.messages, {})[0]
    return forgotten == _FORGOTTEN_TEXT
