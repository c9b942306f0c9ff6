# SPDX-License-Identifier: MIT
"""Runs the subset of Go's text/template that Modelfiles of qlora export have:
range over .Messages, if, else if, else, `eq .Role`, `eq $i N`, `and`, `not`,
.Content, .System, $.System and strings."""

import re

_ACTION = re.compile(r"\{\{ (.*?) \}\}", re.S)


def _parse(source):
    """Returns the template as a list of texts and nested actions."""
    tokens, at = [], 0
    for match in _ACTION.finditer(source):
        tokens += [("text", source[at:match.start()]),
                   ("action", match.group(1))]
        at = match.end()
    tokens.append(("text", source[at:]))
    nodes, rest = _block(tokens, ())
    assert not rest
    return nodes


def _block(tokens, ends):
    """Returns the nodes up to an action that begins with a word of `ends`, and
    the tokens from that action on."""
    nodes = []
    while tokens:
        kind, text = tokens[0]
        word = text.split(" ", 1)[0] if kind == "action" else None
        if word in ends:
            return nodes, tokens
        tokens = tokens[1:]
        if kind == "text":
            nodes.append(("text", text))
        elif word == "range":
            body, tokens = _block(tokens, ("end",))
            nodes.append(("range", body))
            tokens = tokens[1:]
        elif word == "if":
            node, tokens = _branches(text, tokens)
            nodes.append(node)
        else:
            nodes.append(("value", text))
    assert not ends, "an action without end"
    return nodes, tokens


def _branches(text, tokens):
    branches = []
    while True:
        condition = text.split(" ", 1)[1] if text != "else" else "true"
        condition = condition.removeprefix("if ")
        body, tokens = _block(tokens, ("else", "end"))
        branches.append((condition, body))
        text, tokens = tokens[0][1], tokens[1:]
        if text == "end":
            return ("if", branches), tokens


def _value(text, scope):
    if text.startswith("("):
        return _value(text[1:-1], scope)
    if text == "true":
        return True
    name, _, rest = text.partition(" ")
    if name == "eq":
        first, second = rest.split(" ", 1)
        return _value(first, scope) == _value(second, scope)
    if name == "not":
        return not _value(rest, scope)
    if name == "and":
        first, second = re.fullmatch(r"(\S+) (.*)", rest).groups()
        return _value(first, scope) and _value(second, scope)
    if text.startswith('"'):
        return text[1:-1]
    if text.isdecimal():
        return int(text)
    return scope[text]


def _run(nodes, scope):
    out = ""
    for kind, content in nodes:
        if kind == "text":
            out += content
        elif kind == "value":
            out += _value(content, scope)
        elif kind == "if":
            body = next((body for condition, body in content
                         if _value(condition, scope)), [])
            out += _run(body, scope)
        else:
            for number, message in enumerate(scope[".Messages"]):
                out += _run(content, {**scope, "$i": number,
                                      ".Role": message["role"],
                                      ".Content": message["content"]})
    return out


def execute(source, messages):
    """Returns the text of the conversation, as ollama calls a template."""
    system = "\n\n".join(message["content"] for message in messages
                         if message["role"] == "system")
    return _run(_parse(source), {".Messages": messages, ".System": system,
                                 "$.System": system})
