# SPDX-License-Identifier: MIT
"""A Modelfile for ollama, which serves GGUF files.

ollama does not run the Jinja template of a GGUF file. It compares the
template's text with a list of its own, and takes the counterpart of the most
similar one; without one, a conversation becomes its last message without any
marks. So the Modelfile has the template in Go's language. It is not looked up
by name: conversations are rendered with the Jinja template, and what surrounds
each message in one of them is read off. If the Go template then gives the same
text for all conversations below, it is written; else none is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .errors import DataError
from .prompts import Prompts
from .sampling import generation_config

_SYSTEM, _USER, _ANSWER = "\x01SYSTEM\x02", "\x01USER\x02", "\x01ANSWER\x02"
# Roles of the conversations that must be the same; the model answers after
# each.
_PROBES = ("u", "su", "uau", "suau", "uauau", "suauauau")
_ROLES = {"s": "system", "u": "user", "a": "assistant"}
# Parameters of a Modelfile with the names in generation_config.json.
_PARAMETERS = {"temperature": "temperature", "top_p": "top_p",
               "top_k": "top_k", "min_p": "min_p",
               "repetition_penalty": "repeat_penalty"}

Render = Callable[[list[dict]], str]


@dataclass
class _Frame:
    """The text around each message. `default`: the text before a conversation
    without a system message; `head`: before every conversation. If a system
    message is written into the first user's turn, `joint` separates them, and
    `system` is None."""
    head: str
    default: str
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str  # before the model's answer
    system: tuple[str, str] | None = None
    joint: str = ""

    def text(self, roles: str, contents: list[str]) -> str:
        """Returns what the Go template below writes."""
        out = self.head + ("" if "s" in roles else self.default)
        for number, (role, content) in enumerate(zip(roles, contents)):
            if role == "s":
                if self.system:
                    out += content.join(self.system)
                continue
            if role == "u" and number == 1 and roles[0] == "s" \
                    and not self.system:
                content = contents[0] + self.joint + content
            out += content.join(self.user if role == "u" else self.assistant)
        return out + self.answer

    def template(self) -> str:
        """Returns the Go template. It trims no space."""
        content = "{{ .Content }}"
        user = content
        system = ""
        if self.system:
            system = ('{{ if eq .Role "system" }}' +
                      content.join(map(_literal, self.system)) + "{{ else }}")
        elif self.joint:
            user = ("{{ if and $.System (eq $i 1) }}{{ $.System }}"
                    + _literal(self.joint) + "{{ end }}" + content)
        default = ("{{ if not .System }}" + _literal(self.default)
                   + "{{ end }}") if self.default else ""
        return (_literal(self.head) + default
                + "{{ range $i, $_ := .Messages }}" + system
                + '{{ if eq .Role "user" }}'
                + user.join(map(_literal, self.user))
                + '{{ else if eq .Role "assistant" }}'
                + content.join(map(_literal, self.assistant)) + "{{ end }}"
                + ("{{ end }}" if self.system else "") + "{{ end }}"
                + _literal(self.answer))


def _literal(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')


def _messages(roles: str, contents: list[str]) -> list[dict]:
    return [{"role": _ROLES[role], "content": content}
            for role, content in zip(roles, contents)]


def _common_start(first: str, second: str) -> str:
    count = 0
    while count < min(len(first), len(second)) \
            and first[count] == second[count]:
        count += 1
    return first[:count]


def _frame(render: Render, tokens: Iterable[str]) -> _Frame | None:
    """Reads the text around messages off two conversations."""
    plain = render(_messages("uau", [_USER, _ANSWER, _USER]))
    parts = plain.replace(_ANSWER, _USER).split(_USER)
    if len(parts) != 4:
        return None
    before, first_end, second_start, last = parts
    single = render(_messages("u", [_USER])).split(_USER)
    if len(single) != 2 or single[1] != last:
        return None
    # The end of a user's turn is followed by an answer in both cases, so it
    # includes the common start of the answers.
    after_user = _common_start(first_end, last)
    answer = last[len(after_user):]
    assistant = first_end[len(after_user):]
    # `second_start` ends the answer, and then starts a turn like `before`.
    cut = _after_tokens(before, _longest_overlap(before, second_start), tokens)
    frame = _Frame(before[:len(before) - len(cut)], "", (cut, after_user),
                   (assistant, second_start[:len(second_start) - len(cut)]),
                   answer)
    _add_system(frame, render)
    return frame


def _longest_overlap(first: str, second: str) -> str:
    """Returns the longest text with which both end."""
    count = 0
    while count < min(len(first), len(second)) \
            and first[-1 - count] == second[-1 - count]:
        count += 1
    return first[len(first) - count:]


def _after_tokens(text: str, end: str, tokens: Iterable[str]) -> str:
    """Returns the end of `text`, shortened if it begins inside of a token."""
    start = len(text) - len(end)
    for token in tokens:
        at = text.find(token, max(0, start - len(token) + 1))
        if 0 <= at < start:
            start = at + len(token)
    return text[start:]


def _add_system(frame: _Frame, render: Render) -> None:
    """Adds what surrounds a system message, if the template accepts one."""
    try:
        text = render(_messages("su", [_SYSTEM, _USER]))
    except DataError:
        return
    parts = text.replace(_USER, _SYSTEM).split(_SYSTEM)
    if len(parts) != 3:
        return
    before, between, _ = parts
    start = frame.user[0]
    head = _common_start(frame.head, before)
    if before.endswith(start) and not between.endswith(start):
        frame.joint = between
        return
    frame.default = frame.head[len(head):]
    frame.head = head
    if between.endswith(start):
        frame.system = (before[len(head):],
                        between[:len(between) - len(start)])


def go_template(render: Render, tokens: Iterable[str] = ()) -> str | None:
    """Returns the Go template that writes the same conversations as `render`,
    which returns the text of messages with the start of the answer. None if the
    Jinja template has other rules. `tokens`: texts that are not divided."""
    try:
        frame = _frame(render, tokens)
    except DataError:
        return None
    if frame is None:
        return None
    tried = 0
    for roles in _PROBES:
        contents = [f"{_ROLES[role]} text {number}\n{{{{x}}}} é"
                    for number, role in enumerate(roles)]
        try:
            expected = render(_messages(roles, contents))
        except DataError:
            if "s" in roles:  # a template without system messages
                continue
            return None
        tried += 1
        if frame.text(roles, contents) != expected:
            return None
    return frame.template() if tried else None


def describe(name: str, prompts: Prompts, stops: tuple[str, ...],
             adds_bos: bool) -> tuple[str, str]:
    """Returns the Modelfile for the file `name`, and a warning or "".
    `adds_bos`: ollama begins the text with BOS, so the template must not."""
    _, config = generation_config(prompts.files)
    if not prompts.converter.has_template:
        return modelfile(name, None, stops, config), ""
    bos = prompts.converter.tokenizer.special_tokens.get("bos_token", "")

    def render(messages: list[dict]) -> str:
        text = prompts.rendered(messages)
        return text.removeprefix(bos) if adds_bos else text

    template = go_template(render, prompts.converter.tokenizer.added_tokens)
    warning = ""
    if template is None or '"""' in template:
        template = None
        warning = ("the chat template has rules that a Modelfile cannot say "
                   "(docs/export.md): write TEMPLATE yourself, since ollama "
                   "does not run the Jinja template")
    elif prompts.uses_dates():
        warning = ("the chat template writes the current day, and the "
                   "Modelfile has the day of the export")
    return modelfile(name, template, stops, config), warning


def modelfile(name: str, template: str | None, stops: tuple[str, ...],
              config: dict) -> str:
    """Returns the text of a Modelfile. `stops`: texts that end an answer;
    `config`: generation_config.json."""
    lines = [f"FROM ./{name}"]
    if template is not None:
        lines.append(f'TEMPLATE """{template}"""')
    for stop in dict.fromkeys(stops):
        lines.append(f"PARAMETER stop {_quoted(stop)}")
    if config.get("do_sample") is True:
        for key, parameter in _PARAMETERS.items():
            value = config.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                lines.append(f"PARAMETER {parameter} {value:g}")
    else:
        lines.append("PARAMETER temperature 0")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace(
        "\n", "\\n") + '"'
