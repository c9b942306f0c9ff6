# SPDX-License-Identifier: MIT
"""How tokens are chosen and where answers end: options of the command line, and
what generation_config.json and config.json of the model say otherwise."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass

from .errors import DataError
from .jsonl import kind
from .model_files import ModelFiles, read_object


@dataclass(frozen=True)
class Number:
    """A number of a request. `default`: its value if the request lacks it."""
    default: int | float | str
    least: float
    most: float
    excludes_least: bool = False

    def parsed(self, text: str) -> int | float | None:
        """Returns the number, or None if it is no number or not allowed."""
        try:
            value = (float if isinstance(self.default, float) else int)(text)
        except ValueError:
            return None
        is_allowed = (self.least <= value <= self.most
                      and not (self.excludes_least and value == self.least))
        return value if is_allowed and math.isfinite(value) else None

    @property
    def range(self) -> str:
        what = "a number" if isinstance(self.default, float) \
            else "a whole number"
        what += f" above {self.least:g}" if self.excludes_least \
            else f" of at least {self.least:g}"
        if math.isfinite(self.most):
            what += f" and at most {self.most:.16g}"
        return what


# Names of requests to the engine, of options and of generation_config.json.
NUMBERS = {
    "max_new_tokens": Number("auto", 1, 1 << 24),
    "temperature": Number(0.0, 0, math.inf),
    "top_k": Number(0, 0, 1 << 30),
    "top_p": Number(1.0, 0, 1, excludes_least=True),
    "min_p": Number(0.0, 0, 1),
    "repetition_penalty": Number(1.0, 0, math.inf, excludes_least=True),
    "presence_penalty": Number(0.0, -100, 100),
}

_SEED = Number(0, 0, 9e15)


@dataclass
class Sampling:
    options: dict  # of a request
    seed: int  # of the first row; the next row has the next seed
    end_tokens: list[int]  # of the model's files
    stops: tuple[str, ...]
    ignores_eos: bool

    def request(self, number: int, ids: list[int],
                end_tokens: list[int]) -> dict:
        """Returns the engine's request for row `number`, from 0. `end_tokens`:
        further ones."""
        ends = [] if self.ignores_eos else self.end_tokens + end_tokens
        return {"id": number, "input_ids": ids, "seed": self.seed + number,
                "eos_token_id": sorted(set(ends)), **self.options}

    def settings(self) -> dict[str, object]:
        """Returns the values that set() can change."""
        return {**{name: self.options.get(name, number.default)
                   for name, number in NUMBERS.items()},
                "seed": self.seed, "stop": list(self.stops),
                "ignore_eos": self.ignores_eos}

    def set(self, name: str, text: str) -> None:
        """Changes a value of settings()."""
        if name == "stop":
            if not text:
                raise _unexpected(name, "a text, or none", text)
            self.stops = () if text == "none" else (text,)
        elif name == "ignore_eos":
            if text not in ("true", "false"):
                raise _unexpected(name, "true or false", text)
            self.ignores_eos = text == "true"
        elif name in NUMBERS and text == NUMBERS[name].default:  # auto
            self.options.pop(name, None)
        else:
            number = NUMBERS.get(name, _SEED)
            value = number.parsed(text)
            if value is None:
                raise _unexpected(name, number.range, text)
            if name == "seed":
                self.seed = value
            else:
                self.options[name] = value


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--stop", action="append", default=[], metavar="TEXT",
        help="end an answer before this text, repeatable")
    add("--max-new-tokens", type=int, metavar="N")
    add("--temperature", type=float, metavar="X")
    add("--top-k", type=int, metavar="N")
    add("--top-p", type=float, metavar="X")
    add("--min-p", type=float, metavar="X")
    add("--repetition-penalty", type=float, metavar="X")
    add("--presence-penalty", type=float, metavar="X")
    add("--seed", type=int, default=0, metavar="N")
    add("--ignore-eos", action="store_true",
        help="do not end an answer at an end token")


def sampling_of(files: ModelFiles, args: argparse.Namespace) -> Sampling:
    path, config = generation_config(files)
    options = {"logprobs": args.logprobs}
    for name in NUMBERS:
        value = getattr(args, name)
        if value is None:
            value = _number(config, name, path)
        if value is not None:
            options[name] = value
    if args.temperature is None:
        options["temperature"] = (options.get("temperature", 1)
                                  if config.get("do_sample") is True else 0)
    return Sampling(options, args.seed, end_tokens_of(files),
                    (*args.stop, *stop_strings_of(files)), args.ignore_eos)


def generation_config(files: ModelFiles) -> tuple[str, dict]:
    """Returns the path of the model's generation_config.json, and its content.
    """
    path = os.path.join(files.folder, "generation_config.json")
    return path, read_object(path)


def end_tokens_of(files: ModelFiles) -> list[int]:
    """Returns each eos_token_id of the model's files."""
    text_config = files.model_config.get("text_config")
    sources = (generation_config(files)[1], files.model_config,
               text_config if isinstance(text_config, dict) else {})
    return [number for source in sources
            for number in _ids(source.get("eos_token_id"))]


def stop_strings_of(files: ModelFiles) -> tuple[str, ...]:
    """Returns the texts in generation_config.json that end an answer."""
    stops = generation_config(files)[1].get("stop_strings")
    stops = [stops] if isinstance(stops, str) else stops or []
    return tuple(stop for stop in stops if isinstance(stop, str) and stop)


def _unexpected(name: str, what: str, text: str) -> DataError:
    return DataError(f"{name} expects {what}, but got '{text}'",
                     f"/set {name} VALUE")


def _number(config: dict, name: str, path: str) -> int | float | None:
    value = config.get(name)
    if value is not None and (isinstance(value, bool)
                              or not isinstance(value, (int, float))):
        raise DataError(f"'{name}' expects a number, but got {kind(value)}",
                        "fix the file", path)
    return value


def _ids(value: object) -> list[int]:
    """Returns the token ids of eos_token_id: one, or a list."""
    return [number for number in (value if isinstance(value, list)
                                  else [value])
            if isinstance(number, int) and number >= 0]
