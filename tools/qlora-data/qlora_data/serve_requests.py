# SPDX-License-Identifier: MIT
"""Reads and checks requests for chat and text completions. Fields that would
change the answer and are not supported are refused by their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import DataError
from .jsonl import kind
from .prompts import Prompts
from .sampling import NUMBERS, Sampling
from .serve_errors import Refusal, shown

_MOST_CHOICES = 128
_MOST_STOPS = 16
_MOST_LOGPROBS = 20
# OpenAI's default for text completions.
_COMPLETION_TOKENS = 16
_HARMLESS = frozenset((
    "user", "metadata", "store", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "service_tier"))
# Fields that are accepted only with the value that changes nothing.
_NEUTRAL = {
    "frequency_penalty": ((0,), "use presence_penalty or repetition_penalty"),
    "logit_bias": (({},), "remove it"),
    "response_format": (({"type": "text"},), "ask for the format in the "
                        "prompt"),
    "suffix": (("",), "write the whole prompt as 'prompt'"),
    "modalities": ((["text"],), "only text is generated"),
    "functions": (([],), "use 'tools'"),
    "best_of": ((1,), "use 'n'"),
}
_TODO_TOOLS = ("answers are not searched for tool calls. Fix: \"tool_choice\": "
               "\"none\"; the chat template then gets the tools, and calls are "
               "in 'content', as the model writes them")


@dataclass
class Prompt:
    ids: list[int]
    text: str | None = None  # None: made from the ids if it is echoed


@dataclass
class Job:
    """A request, checked, with the tokens of its prompts."""
    model: str
    is_chat: bool
    prompts: list[Prompt] = field(default_factory=list)
    choices: int = 1  # answers to each prompt
    max_tokens: int | None = None  # None: the model's default
    seed: int | None = None
    options: dict = field(default_factory=dict)  # of sampling
    stops: tuple[str, ...] = ()
    ignores_eos: bool = False
    logprobs: int | None = None  # alternatives to each token; None: none at all
    echoes: bool = False
    streams: bool = False
    streams_usage: bool = False

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.choices


class Fields:
    """Fields of a request. A null value counts as absent."""

    def __init__(self, body: dict):
        self._left = {name: value for name, value in body.items()
                      if value is not None}

    def take(self, name: str, default: object = None) -> object:
        return self._left.pop(name, default)

    def typed(self, name: str, kinds: tuple[type, ...], what: str,
              default: object = None):
        value = self.take(name, default)
        is_bool = isinstance(value, bool) and bool not in kinds
        if value is not None and (is_bool or not isinstance(value, kinds)):
            raise Refusal(400, f"'{name}' expects {what}, but got "
                          f"{kind(value)}", name)
        return value

    def boolean(self, name: str) -> bool:
        return self.typed(name, (bool,), "true or false", False)

    def whole(self, name: str, least: int, most: int) -> int | None:
        value = self.typed(name, (int, float), "a whole number")
        if value is None:
            return None
        if value != value // 1 or not least <= value <= most:
            raise Refusal(400, f"'{name}' expects a whole number from {least} "
                          f"to {most}, but got {shown(value)}", name)
        return int(value)

    def sampling(self) -> dict:
        """Returns the given numbers of sampling, except the length."""
        options = {}
        for name, rule in NUMBERS.items():
            if name == "max_new_tokens":
                continue
            value = self.typed(name, (int, float), rule.range)
            if value is None:
                continue
            if name == "top_k" and value == -1:  # vLLM's name for all tokens
                value = 0
            if not isinstance(rule.default, float) and value == value // 1:
                value = int(value)
            options[name] = rule.parsed(str(value))
            if options[name] is None:
                raise Refusal(400, f"'{name}' expects {rule.range}, but got "
                              f"{shown(value)}", name)
        return options

    def end(self) -> None:
        """Refuses fields that were not taken, except harmless ones."""
        for name, value in self._left.items():
            if name in _HARMLESS:
                continue
            neutral, todo = _NEUTRAL.get(name, ((), "remove it"))
            if not any(value == one and isinstance(value, bool) ==
                       isinstance(one, bool) for one in neutral):
                raise Refusal(400, f"'{shown(name)}' is not supported, and "
                              f"could change the answer. Fix: {todo}",
                              shown(name))


def parse_body(raw: bytes) -> dict:
    """Returns the body of a request as an object."""
    def refuse(name: str):
        raise ValueError(f"{name} is not JSON")
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise Refusal(400, "the body is not UTF-8 (byte "
                      f"{error.start + 1})") from None
    except RecursionError:
        raise Refusal(400, "the body is not JSON that can be read: nested too "
                      "deeply") from None
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, f"the body expects a JSON object, but got "
                      f"{kind(body)}")
    return body


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS or not all(
            isinstance(stop, str) and stop for stop in stops):
        raise Refusal(400, "'stop' expects a text or a list of at most "
                      f"{_MOST_STOPS} texts, none of them empty", "stop")
    return tuple(stops)


def _common(fields: Fields, is_chat: bool) -> Job:
    """Takes the fields that both kinds of requests have."""
    model = fields.typed("model", (str,), "the name of a model")
    if model is None:
        raise Refusal(400, "'model' is missing. Fix: name a model of "
                      "/v1/models", "model")
    job = Job(model, is_chat, options=fields.sampling(), stops=_stops(fields))
    job.choices = fields.whole("n", 1, _MOST_CHOICES) or 1
    # Seeds of 64 bits, with or without a sign.
    job.seed = fields.whole("seed", -(1 << 63), (1 << 64) - 1)
    job.ignores_eos = fields.boolean("ignore_eos")
    job.streams = fields.boolean("stream")
    options = fields.typed("stream_options", (dict,), "an object")
    if options is not None:
        if not job.streams:
            raise Refusal(400, "'stream_options' needs \"stream\": true",
                          "stream_options")
        inner = Fields(options)
        job.streams_usage = inner.boolean("include_usage")
        inner.take("include_obfuscation")
        inner.end()
    return job


def _chat_job(fields: Fields, prompts: Prompts) -> Job:
    job = _common(fields, True)
    names = ("max_completion_tokens", "max_tokens")
    given = {fields.whole(name, 1, 1 << 24) for name in names} - {None}
    if len(given) > 1:
        raise Refusal(400, "'max_tokens' and 'max_completion_tokens' differ. "
                      "Fix: remove one of them", "max_tokens")
    job.max_tokens = given.pop() if given else None
    count = fields.whole("top_logprobs", 0, _MOST_LOGPROBS)
    if fields.boolean("logprobs"):
        job.logprobs = count or 0
    elif count:
        raise Refusal(400, "'top_logprobs' needs \"logprobs\": true",
                      "top_logprobs")
    messages = fields.typed("messages", (list,), "a list of messages")
    if not messages:
        raise Refusal(400, "'messages' expects at least one message",
                      "messages")
    row = {"messages": messages, "chat_template_kwargs": fields.typed(
        "chat_template_kwargs", (dict,), "an object", {})}
    tools = fields.typed("tools", (list,), "a list", [])
    choice = fields.take("tool_choice", "auto")
    fields.take("parallel_tool_calls")
    if tools and choice != "none":
        raise Refusal(400, f"'tools' and \"tool_choice\": {json.dumps(choice)}"
                      f": {_TODO_TOOLS}", "tools")
    if not tools and choice not in ("auto", "none"):
        raise Refusal(400, "'tool_choice' needs 'tools'", "tool_choice")
    fields.end()
    ids = prompts.of_row({**row, "tools": tools})
    if tools and ids == prompts.of_row(row):
        raise Refusal(400, "'tools': the model's chat template has no place "
                      "for tools. Fix: describe them in a message", "tools")
    job.prompts = [Prompt(ids)]
    return job


def _text_job(fields: Fields, prompts: Prompts) -> Job:
    job = _common(fields, False)
    job.echoes = fields.boolean("echo")
    most = fields.whole("max_tokens", 0, 1 << 24)
    if most == 0 and not job.echoes:
        raise Refusal(400, "'max_tokens' 0 needs \"echo\": true", "max_tokens")
    job.max_tokens = most
    job.logprobs = fields.whole("logprobs", 0, _MOST_LOGPROBS)
    best = fields.whole("best_of", 1, _MOST_CHOICES)
    if best not in (None, job.choices):
        raise Refusal(400, "'best_of' other than 'n' is not supported. Fix: "
                      "remove it", "best_of")
    value = fields.take("prompt")
    fields.end()
    job.prompts = [
        Prompt(prompts.of_plain_text(one), one) if isinstance(one, str)
        else Prompt(one) for one in _split(value)]
    return job


def _split(value: object) -> list[str | list[int]]:
    """Returns the prompts: texts, or lists of token ids."""
    prompts = [value] if _is_prompt(value) else value
    if isinstance(prompts, list) and prompts \
            and all(map(_is_prompt, prompts)):
        return prompts
    raise Refusal(400, "'prompt' expects a text, a list of token ids, or a "
                  "list of texts or of lists of token ids, none of them empty",
                  "prompt")


def _is_prompt(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(
            isinstance(one, int) and not isinstance(one, bool) and one >= 0
            for one in value)
    return isinstance(value, str) and value != ""


@dataclass
class Reader:
    """Turns requests into jobs. `capacity`: tokens of a row, with its
    answer; `vocabulary`: number of token ids of the model."""
    prompts: Prompts
    sampling: Sampling
    capacity: int
    vocabulary: int

    def chat(self, body: dict) -> Job:
        return self._job(body, _chat_job)

    def text(self, body: dict) -> Job:
        return self._job(body, _text_job)

    def _job(self, body: dict, read: Callable[[Fields, Prompts], Job]) -> Job:
        try:
            job = read(Fields(body), self.prompts)
        except DataError as error:
            raise Refusal(400, str(error)) from None
        except RecursionError:
            raise Refusal(400, "a field is nested too deeply") from None
        is_default = job.max_tokens is None
        if is_default:
            job.max_tokens = self.sampling.options.get(
                "max_new_tokens",
                self.capacity if job.is_chat else _COMPLETION_TOKENS)
        for prompt in job.prompts:
            self._check(prompt.ids, job, is_default)
            if job.echoes and prompt.text is None:
                prompt.text = self.prompts.converter.tokenizer.decode(
                    prompt.ids)
        return job

    def _check(self, ids: list[int], job: Job, is_default: bool) -> None:
        name = "messages" if job.is_chat else "prompt"
        wanted = 1 if is_default else job.max_tokens
        if len(ids) + wanted > self.capacity:
            raise Refusal(
                400, f"the prompt has {len(ids)} tokens, and {wanted} are "
                f"wanted, but a row has at most {self.capacity}. Fix: a "
                "shorter prompt or answer, or a server with a longer "
                "--generation-length", name, "context_length_exceeded")
        wrong = next((one for one in ids if one >= self.vocabulary), None)
        if wrong is not None:
            raise Refusal(400, f"token id {wrong} is outside of the vocabulary "
                          f"of {self.vocabulary}", name)

    def requests(self, job: Job) -> list[dict]:
        """Returns the engine's requests for a job, without ids and adapters:
        all choices of the first prompt, then of the next one."""
        stops = (*job.stops, *self.sampling.stops)
        ends, _ = self.prompts.answer(stops)
        if job.ignores_eos or self.sampling.ignores_eos:
            ends = []
        else:
            ends = sorted({*self.sampling.end_tokens, *ends})
        request = {**self.sampling.options, **job.options,
                   "eos_token_id": ends, "max_new_tokens": job.max_tokens}
        if job.logprobs is not None:
            request["logprobs"] = max(1, job.logprobs)
        if job.echoes and (job.logprobs is not None or not job.max_tokens):
            request["prompt_logprobs"] = True
        return [{**request, "input_ids": prompt.ids, **_seed(job, choice)}
                for prompt in job.prompts for choice in range(job.choices)]


def _seed(job: Job, choice: int) -> dict:
    if job.seed is None:
        return {}
    return {"seed": (job.seed + choice) % (1 << 64)}
