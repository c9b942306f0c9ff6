# SPDX-License-Identifier: MIT

"""Finds the messages in the sources that a user can see.

A message is normalised: a field that is filled in when it is printed becomes
`…`, white space one blank. Fields are `{}` of fmt, fields of Python's
f-strings and values that are streamed into a diagnostic or added to a text. A
prefix (the tool, a file and its line) is no part of a message.
"""

import ast
import collections
import os
import re
from typing import Iterator, NamedTuple

FIELD = "…"


class Message(NamedTuple):
    text: str
    path: str  # relative to the repository
    line: int


class Token(NamedTuple):
    text: str  # a literal's content
    line: int
    is_literal: bool = False


def normalise(text: str) -> str:
    text = re.sub(rf"{FIELD}+", FIELD, text)
    return re.sub(r"\s+", " ", text).strip()


def has_words(text: str) -> bool:
    """Returns false for a text that only forwards another message."""
    return bool(re.search(r"[A-Za-z]{2}", text)) and " " in text


# ------------------------------------------------------------------ C++ ---

_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|\s+)
      | R"(?P<delimiter>\w*)\((?P<raw>.*?)\)(?P=delimiter)"
      | "(?P<text>(?:[^"\\\n]|\\.)*)"
      | '(?:[^'\\\n]|\\.)+'
      | [A-Za-z_]\w*
      | \d[\w.']*
      | <<|::|->
      | .""", re.S | re.X)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")

# Callables that create a message, with the index of the text argument. In
# _FORMATS, the argument is a format string.
_FORMATS = {("Status", "::", "invalid"): 0, ("Status", "::", "error"): 1}
_CALLS = {
    ("Status",): 1,
    ("fail",): 0,
    ("warn",): 0,
    ("note",): 0,
    ("warnings", ".", "push_back"): 0,
    ("remarks", ".", "push_back"): 0,
} | _FORMATS
_DIAGNOSTICS = ("emitError", "emitOpError", "emitWarning")
# Functions that return a message.
_RETURNING = (
    ("Divergence", "::", "check"),
    ("idleGpusRemark",),
    ("layoutWarning",),
    ("positionsError",),
    ("positionsWarning",),
    ("RenamedTensor", "::", "warning"),
    ("storedWarning",),
    ("threadsRemark",),
)
# Matches the start of a function that forwards its format to Status::error.
_WRAPPER = re.compile(r"\b(\w+)\(fmt::format_string<([^;]*)")


def _tokens(source: str) -> list[Token]:
    found, line = [], 1
    for match in _TOKEN.finditer(source):
        if match["raw"] is not None:
            found.append(Token(match["raw"], line, True))
        elif match["text"] is not None:
            text = ast.literal_eval(f'"{match["text"]}"')
            found.append(Token(text, line, True))
        elif match["skip"] is None:
            found.append(Token(match[0], line))
        line += match[0].count("\n")
    return found


def _until(words: list[Token], start: int, ends: str) -> int:
    """Returns the next index of one of `ends` or of a closing bracket."""
    depth = 0
    for i in range(start, len(words)):
        text = "" if words[i].is_literal else words[i].text
        if depth == 0 and text and (text in ends or text in _CLOSE):
            return i
        depth += (text in _OPEN) - (text in _CLOSE)
    return len(words)


def _arguments(words: list[Token], start: int) -> list[list[Token]]:
    """Returns the arguments of the call whose '(' is at `start`."""
    found, end = [], start
    while end < len(words) and (end == start or words[end].text == ","):
        begin = end + 1
        end = _until(words, begin, ",")
        found.append(words[begin:end])
    return found


def _filled(text: str) -> str:
    """Returns a format string of fmt, with its fields filled in."""
    text = text.replace("{{", "\0").replace("}}", "\1")
    text = re.sub(r"\{[^{}]*\}", FIELD, text)
    return text.replace("\0", "{").replace("\1", "}")


def _text(words: list[Token]) -> str:
    """Joins adjacent literals; everything else that is added, streamed or
    formatted is a field."""
    if [word.text for word in words[:4]] == ["fmt", "::", "format", "("]:
        return _filled(_text(_arguments(words, 3)[0]))
    text, depth = "", 0
    for word in words:
        if not word.is_literal:
            depth += (word.text in _OPEN) - (word.text in _CLOSE)
        if word.is_literal and depth == 0:
            text += word.text
        elif word.is_literal or word.text not in ("<<", "+"):
            text += FIELD
    return text


def _named(words: list[Token], end: int, names: tuple[str, ...]) -> bool:
    last = words[max(end - len(names), 0):end]
    return (tuple(word.text for word in last) == names
            and not any(word.is_literal for word in last))


def _call_text(words: list[Token], i: int, wrappers: set[str]) -> str:
    """Returns the message of the call whose '(' is at `i`, or ""."""
    formats = _FORMATS | {(name,): 0 for name in wrappers}
    for names, position in (_CALLS | formats).items():
        if not _named(words, i, names):
            continue
        arguments = _arguments(words, i)
        code = "".join(word.text for word in arguments[0])
        if len(arguments) <= position or (
                position == 1 and code == "StatusCode::kInternal"):
            return ""
        text = _text(arguments[position])
        return _filled(text) if names in formats else text
    return ""


def _diagnostic_text(words: list[Token], i: int) -> str:
    """Returns the text of emitError( at `i`, including streamed parts. The
    free function takes a location, the method of an op a text."""
    arguments = _arguments(words, i)
    close = _until(words, i + 1, "")
    streamed = words[close + 1:_until(words, close + 1, ";,")]
    is_method = i >= 2 and words[i - 2].text in (".", "->")
    return (_text(arguments[0]) if is_method else "") + _text(streamed)


def _opens_body(words: list[Token], i: int) -> bool:
    """Returns whether the '(' at `i` starts a definition in _RETURNING."""
    if not any(_named(words, i, names) for names in _RETURNING):
        return False
    body = _body(words, i)
    return [word.text for word in words[body - 1:body]] == ["{"]


def _body(words: list[Token], i: int) -> int:
    """Returns where the body of the function with parameters at `i` begins."""
    close = _until(words, i + 1, "")
    after = [word.text for word in words[close + 1:close + 2]]
    return close + (3 if after == ["const"] else 2)


def _returned(words: list[Token], i: int) -> Iterator[tuple[str, int]]:
    """Yields the results of the function whose parameters begin at `i`."""
    body = _body(words, i)
    for k in range(body, _until(words, body, "")):
        if _named(words, k, ("return",)):
            yield _text(words[k:_until(words, k, ";")]), words[k].line


def wrappers_of(source: str) -> set[str]:
    return {name for name, body in _WRAPPER.findall(source)
            if name != "invalid" and "kInternal" not in body}


def cpp_messages(source: str,
                 wrappers: set[str]) -> Iterator[tuple[str, int]]:
    words = _tokens(source)
    for i in range(1, len(words)):
        if words[i].is_literal:
            continue
        # Parsers return a message in a parameter `error`. A variable `warning`
        # holds a message for later.
        if words[i].text == "=" and (_named(words, i, ("error",))
                                     or _named(words, i, ("warning",))):
            end = _until(words, i + 1, ";")
            if words[i + 1].is_literal or words[i + 1].text == "fmt":
                yield _text(words[i + 1:end]), words[i].line
        if words[i].text != "(":
            continue
        if words[i - 1].text in _DIAGNOSTICS:
            yield _diagnostic_text(words, i), words[i].line
        elif _opens_body(words, i):
            yield from _returned(words, i)
        else:
            yield _call_text(words, i, wrappers), words[i].line


# --------------------------------------------------------------- Python ---

def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns names that stand for one text in the whole file."""
    stores = collections.Counter(
        node.id for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {node.targets[0].id: node.value for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and stores[node.targets[0].id] == 1
            and isinstance(node.value, ast.Constant)}


def _python_text(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_python_text(part, constants) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_python_text(node.left, constants)
                + _python_text(node.right, constants))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value,
                                                           ast.Name):
        return _python_text(node.value, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _python_text(constants[node.id], constants)
    return FIELD


def python_messages(source: str) -> Iterator[tuple[str, int]]:
    tree = ast.parse(source)
    constants = _constants(tree)

    def text(node: ast.expr) -> str:
        return _python_text(node, constants)

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        # Errors take the message, then the remedy.
        if name in ("DataError", "EngineError") and node.args:
            yield "; ".join(text(part) for part in node.args[:2]), node.lineno
        # Errors of HTTP: Refusal(status, message), busy(message).
        elif name == "Refusal":
            yield text(node.args[1]), node.lineno
        elif name == "busy":
            yield text(node.args[0]), node.lineno
        elif name == "ArgumentTypeError":
            yield text(node.args[0]), node.lineno
        elif name == "_warn":
            yield text(node.args[1]), node.lineno
        elif name == "print":
            message = re.match(r".*?(?:error|warning): (.*)",
                               text(node.args[0]) if node.args else "", re.S)
            if message:
                yield message[1], node.lineno


# -------------------------------------------------------- the repository ---

# Omits the dialects: their verifiers check the compiler's output.
_FOLDERS = ("compiler", "frontend", "runtime", "tools")


def _is_python(path: str, source: str) -> bool:
    return path.endswith(".py") or source.startswith("#!/usr/bin/env python")


def _sources(root: str) -> Iterator[tuple[str, str]]:
    for top in _FOLDERS:
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for path in (os.path.join(folder, name) for name in sorted(names)):
                ending = os.path.splitext(path)[1]
                if ending in ("", ".cpp", ".h", ".py"):
                    with open(path, encoding="utf-8") as file:
                        yield os.path.relpath(path, root), file.read()


def read_messages(root: str) -> Iterator[Message]:
    """Yields all messages of the product."""
    sources = list(_sources(root))
    wrappers = set().union(*(wrappers_of(source) for _, source in sources))
    for path, source in sources:
        found = (python_messages(source) if _is_python(path, source)
                 else cpp_messages(source, wrappers))
        for text, line in found:
            text = normalise(text)
            if has_words(text):
                yield Message(text, path, line)
