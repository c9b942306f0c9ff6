# SPDX-License-Identifier: MIT
"""Renders a chat template as transformers does, and records which characters of
the result are inside {% generation %} ... {% endgeneration %}.

Templates come with downloaded models. So they run in Jinja's immutable sandbox,
and every exception becomes one kind of error.
"""

from __future__ import annotations

import json
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .errors import DataError
from .shapes import ChatRow

# A longer rendering is an endless template, not a conversation.
_MAX_CHARACTERS = 1 << 28


class GenerationMarks(Extension):
    """The `generation` tag. Jinja yields output in chunks. `length` is the
    number of characters so far, at which the text of a mark begins. In a macro
    or a captured block, output is delayed and the offset is wrong. So
    `Template.render` checks each mark's text."""

    tags = {"generation"}

    def __init__(self, environment: jinja2.Environment):
        super().__init__(environment)
        environment.extend(generation_marks=self)
        self.used = False
        self.length = 0
        self.marks: list[tuple[int, str]] = []

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        self.used = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",),
                                       drop_needle=True)
        call = self.call_method("_mark")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, caller) -> str:
        text = caller()
        self.marks.append((self.length, text))
        return text


class _GuardedNamespace(Namespace):
    """A namespace() that rejects names with a leading underscore."""

    def __init__(*args, **attributes):
        for name in dict(*args[1:], **attributes):
            _check_name(name)
        Namespace.__init__(*args, **attributes)

    def __setitem__(self, name, value):
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold the name '{name}'")


def _raise_exception(message):
    raise jinja2.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None,
            sort_keys=False) -> str:
    """Does not escape HTML characters, unlike Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent,
                      separators=separators, sort_keys=sort_keys)


def _strftime_now(form) -> str:
    return datetime.now().strftime(form)


_DICT_NAMES = frozenset(dir(dict))


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox that looks up `message.role` directly. Jinja's own search for
    attributes takes longer than the rest of a rendering."""

    def getattr(self, obj, attribute):
        if type(obj) is dict and attribute in obj \
                and attribute not in _DICT_NAMES:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[GenerationMarks, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception,
                               strftime_now=_strftime_now,
                               namespace=_GuardedNamespace)
    return environment


class Template:
    """A compiled chat template. `place` is its file; `constants` are set in
    every rendering."""

    def __init__(self, source: str, place: str,
                 constants: dict | None = None):
        self.source, self.place = source, place
        self._constants = constants or {}
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f"the chat template is not valid Jinja: "
                            f"{error.message}", "fix the template",
                            f"{place}:{error.lineno}") from None
        except Exception as error:  # RecursionError and the like
            raise DataError(f"the chat template does not compile: "
                            f"{_reason(error)}", "fix the template",
                            place) from None
        self._marks = environment.generation_marks

    @property
    def has_marks(self) -> bool:
        return self._marks.used

    def render(self, chat: ChatRow, messages: list[dict],
               special_tokens: dict[str, str],
               add_generation_prompt: bool = False
               ) -> tuple[str, list[tuple[int, int]]]:
        """Returns the text, and the marked character ranges in it."""
        self._marks.length, self._marks.marks = 0, []
        context = {**self._constants, **special_tokens, **chat.template_options,
                   "messages": messages, "tools": chat.tools,
                   "documents": None,
                   "add_generation_prompt": add_generation_prompt}
        pieces = []
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                self._marks.length += len(piece)
                if self._marks.length > _MAX_CHARACTERS:
                    raise MemoryError("the text does not end")
        except Exception as error:  # templates can raise anything
            raise DataError(f"the chat template ({self.place}) rejects the "
                            f"conversation: {_reason(error)}",
                            "fix the row or the template") from None
        text = "".join(pieces)
        return text, self._checked_marks(text)

    def _checked_marks(self, text: str) -> list[tuple[int, int]]:
        ranges = []
        for start, marked in self._marks.marks:
            end = start + len(marked)
            if text[start:end] != marked:
                raise DataError(
                    f"the chat template ({self.place}) has a generation mark "
                    "inside a macro or a captured block, so its place in the "
                    "text is unknown", "move the mark to the template's loop "
                    "over messages")
            if marked:
                ranges.append((start, end))
        return ranges


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "infinite recursion"
    if isinstance(error, MemoryError):
        return f"out of memory ({error})" if str(error) else "out of memory"
    if isinstance(error, jinja2.exceptions.SecurityError):
        return f"not allowed: {error}"
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
