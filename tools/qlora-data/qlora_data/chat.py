# SPDX-License-Identifier: MIT
"""`qlora-data chat`: a conversation with a model, on a terminal or in a pipe.
`qlora chat` starts it:

    qlora-data chat --model MODEL_DIR [options] -- qlora-run PROGRAM ...

The command after `--` is the engine (engine.py)."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable

from .decoding import Answer
from .engine import Engine, EngineError
from .environment import ensure_packages
from .errors import DataError
from .generation import answering_parser, parse_with_engine
from .history import History
from .model_files import ModelFiles
from .prompts import Prompts
from .reasoning import Parts, markers_of
from .sampling import Sampling, sampling_of
from .screen import Interrupts, Message, Screen

_HELP = """\
/reset             start a new conversation
/system TEXT       set the system message; without TEXT: remove it
/set NAME VALUE    set an option of sampling; without both: list them
/retry             answer the last message again
/undo              remove the last message and its answer
/save FILE         append the conversation to a JSONL file, as a row to train on
/adapter NAME      answer with another loaded adapter; none: the base alone
/help              this text
/exit              end, like Ctrl-D

\"\"\"TEXT\"\"\" may have several lines, as may a message whose lines end in \\.
Ctrl-C ends an answer and keeps what is there. A message that begins with /
is written with two: //etc
"""
_MOST_SHOWN = 60  # characters of a removed message
# Names that users of other programs type.
_OTHER_NAMES = {"/bye": "/exit", "/quit": "/exit", "/clear": "/reset",
                "/?": "/help"}


class Chat:
    def __init__(self, prompts: Prompts, sampling: Sampling, system: str,
                 engine: Engine, screen: Screen):
        self._prompts, self._sampling = prompts, sampling
        self._engine, self._screen = engine, screen
        self._interrupts = Interrupts(screen.is_terminal)
        self._markers = markers_of(prompts)
        self._history = History(system, not prompts.converter.has_template)
        self._adapter: dict = {}  # a field of requests
        self._count = 0  # of requests
        self._asked = self._failed = 0
        self._commands = {
            "/reset": self._reset, "/system": self._set_system,
            "/set": self._set, "/retry": self._retry, "/undo": self._undo,
            "/save": self._save, "/adapter": self._choose_adapter,
            "/help": self._help}

    def run(self) -> None:
        """Answers until the input ends. In a pipe, an error of any message
        becomes the error of the whole."""
        self._introduce()
        was_interrupted = False
        while True:
            try:
                with self._interrupts.allowed():
                    message = self._screen.read()
            except KeyboardInterrupt:
                print()
                if was_interrupted:
                    break
                self._screen.note("Ctrl-C again, or Ctrl-D, ends the chat")
                was_interrupted = True
                continue
            except DataError as error:
                self._fail(error)
                continue
            was_interrupted = False
            if message is None or not self._take(message):
                break
        if self._failed and not self._screen.is_terminal:
            raise DataError(f"{self._failed} of {self._asked} lines failed",
                            "see the errors above")

    def _introduce(self) -> None:
        if not self._prompts.converter.has_template:
            self._screen.warn("note", "the tokenizer has no chat template, so "
                              "each message is continued as plain text, "
                              "without the messages before it. Fix: "
                              "--chat-template, if that is not intended")
        self._screen.note("/help lists commands, Ctrl-D ends the chat")

    def _fail(self, error: DataError, place: str = "") -> None:
        self._asked += 1
        self._failed += 1
        self._screen.warn("error", error.at(place))

    def _take(self, message: Message) -> bool:
        """Answers a message or obeys a command. Returns false for /exit."""
        text, is_command = message.text, False
        if not message.is_quoted:
            is_command = text.startswith("/") and not text.startswith("//")
            text = text[1:] if text.startswith("//") else text
        if not text.strip():
            return True
        try:
            if is_command:
                return self._obey(text)
            self._ask(text)
        except EngineError:
            raise
        except DataError as error:
            self._fail(error, message.place)
        else:
            self._asked += 1
        return True

    def _obey(self, text: str) -> bool:
        name, _, rest = text.partition(" ")
        name = _OTHER_NAMES.get(name, name)
        if name == "/exit":
            return False
        if name not in self._commands:
            raise DataError(
                f"'{name}' is not a command",
                _nearest(name, self._commands) or "see /help; a message that "
                "begins with / is written with two")
        self._commands[name](rest.strip())
        return True

    def _reset(self, _: str) -> None:
        self._history.messages.clear()
        self._screen.note("a new conversation")

    def _set_system(self, text: str) -> None:
        if not self._prompts.converter.has_template:
            raise DataError("/system needs a chat template, but the tokenizer "
                            "has none", "start with --chat-template")
        before, self._history.system = self._history.system, text
        self._screen.note("the system message is " + (
            f"set: {text}" if text else f"removed: {before}"))

    def _set(self, text: str) -> None:
        settings = self._sampling.settings()
        if not text:
            settings["seed"] += self._count  # of the next answer
            self._screen.tell("\n".join(f"{name:<20}{_shown(value)}"
                                        for name, value in settings.items()))
            return
        name, _, value = text.partition(" ")
        name = name.lstrip("-").replace("-", "_")
        if name not in settings:
            raise DataError(f"'{name}' is not an option of sampling",
                            _nearest(name, settings) or "/set lists them")
        self._sampling.set(name, value.strip())
        if name == "seed":  # of the next answer, which has number _count
            self._sampling.seed -= self._count
        self._screen.note(f"{name} is {value.strip()}")

    def _choose_adapter(self, name: str) -> None:
        names = self._engine.adapters
        if not name:
            chosen = self._adapter.get("adapter", (*names, None)[0])
            self._screen.tell(f"adapter {chosen or 'none'}; there "
                              f"{_listed(names)}")
            return
        if name != "none" and name not in names:
            raise DataError(f"no adapter is called '{name}'",
                            _nearest(name, names) or f"there {_listed(names)}; "
                            "start with --adapter NAME=DIR to have others")
        if name == "none" and not self._engine.has_base:
            raise DataError(f"the program applies the adapter '{names[0]}' to "
                            "all answers", "start with --adapter none for the "
                            "base alone")
        self._adapter = {"adapter": None if name == "none" else name}
        self._screen.note(f"the next answers use the adapter {name}"
                          if name != "none" else
                          "the next answers use no adapter")

    def _ask(self, text: str) -> None:
        """Answers a message. Removes it again if there is no answer."""
        self._history.ask(text)
        try:
            if self._answer():
                return
        except DataError:
            self._history.take_back(1)
            raise
        self._history.take_back(1)
        self._screen.note("no answer, so the message is removed")

    def _retry(self, _: str) -> None:
        taken = self._taken_back(1, "answer again")
        if not self._sampling.options.get("temperature"):
            self._screen.note("temperature is 0, so the same settings give the "
                              "same answer: /set temperature 0.8")
        has_answer = False
        try:
            has_answer = self._answer()
        finally:
            if not has_answer:
                self._history.messages += taken

    def _undo(self, _: str) -> None:
        question, _ = self._taken_back(2, "remove")
        self._screen.note("removed: " + _cut(question["content"]))

    def _taken_back(self, count: int, what: str) -> list[dict]:
        if not self._history.messages:
            raise DataError(f"there is no message to {what}",
                            "write a message first")
        return self._history.take_back(count)

    def _save(self, path: str) -> None:
        if not path:
            raise DataError("/save names no file", "/save FILE")
        count = self._history.save(path)
        self._screen.note(f"{count} row{'s' * (count > 1)} added to {path}")

    def _help(self, _: str) -> None:
        self._screen.tell(_HELP)

    def _answer(self) -> bool:
        """Shows the answer to the last message and adds it to the history.
        Returns false if it was interrupted before its first token."""
        ids = self._prompts.of_row(self._history.row())
        capacity = self._engine.capacity
        if len(ids) >= capacity:
            raise DataError(
                f"the conversation has {len(ids)} tokens, but --generation-"
                f"length allows {capacity}, answer included, so the message "
                "is not answered",
                "/reset, or start with a larger --generation-length")
        ends, text = self._prompts.answer(self._sampling.stops,
                                          self._markers.follows)
        answer = Answer(text)
        parts = Parts(self._markers, self._markers.begins(self._prompts, ids))
        request = self._sampling.request(self._count, ids, ends)
        self._count += 1
        self._engine.send(request | self._adapter)
        try:
            seconds = self._generate(request["id"], answer, parts)
        finally:
            if answer.ids:
                self._show(parts.add(answer.rest()) + parts.finish())
                self._screen.end()
        if not answer.ids:
            return False
        self._history.messages.append(self._markers.message(
            parts.text["reasoning"], parts.text["answer"]))
        self._report(len(ids), answer, seconds)
        return True

    def _generate(self, number: int, answer: Answer, parts: Parts) -> float:
        """Shows tokens until the answer ends or Ctrl-C. Returns the seconds
        from its first token to its last one."""
        begin = end = 0.0
        try:
            while not answer.finish:
                with self._interrupts.allowed():
                    line = self._engine.receive()
                if line["id"] != number:  # of an answer that was interrupted
                    continue
                if "error" in line:
                    raise DataError(line["error"])
                end = time.monotonic()
                begin = begin or end
                self._show(parts.add(answer.add(line)))
        except KeyboardInterrupt:
            answer.finish = "interrupted"
        self._engine.send({"cancel": number})  # if it has not ended the row
        return end - begin

    def _show(self, pairs: Iterable[tuple[str, str]]) -> None:
        for kind, text in pairs:
            self._screen.show(kind, text)

    def _report(self, prompt: int, answer: Answer, seconds: float) -> None:
        count, capacity = len(answer.ids), self._engine.capacity
        reasons = {"interrupted": "interrupted", "length": "max_new_tokens"}
        if answer.finish == "length" and prompt + count >= capacity:
            reasons["length"] = "no space"
            self._screen.warn("note", f"the answer ends here, because the "
                              f"conversation fills the {capacity} tokens of "
                              "--generation-length. Fix: /reset, or start with "
                              "a larger one")
        facts = [f"{count} token{'s' * (count > 1)}"]
        if seconds > 0:
            facts.append(f"{(count - 1) / seconds:.1f} tokens/s")
        if answer.finish in reasons:
            facts.append(reasons[answer.finish])
        self._screen.note(", ".join(facts))


def _nearest(name: str, names: Iterable[str]) -> str:
    found = [other for other in names if other.startswith(name)] \
        or difflib.get_close_matches(name, list(names), 1)
    return f"did you mean '{found[0]}'?" if found else ""


def _listed(names: list[str]) -> str:
    return "are: " + ", ".join(names) if names else "is none"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + "\u2026"


def chat(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    args, command = parse_with_engine(
        answering_parser("chat", "Chats with a model. qlora chat calls it."),
        arguments)
    ensure_packages(arguments)
    files = ModelFiles(args.model)
    # The chat adds the system message, because /system changes it.
    prompts = Prompts(files, args.chat_template, None)
    args.logprobs = 0
    sampling = sampling_of(files, args)
    prompts.check_system(args.system)
    screen = Screen()
    with Engine(command) as engine:
        Chat(prompts, sampling, args.system or "", engine, screen).run()
