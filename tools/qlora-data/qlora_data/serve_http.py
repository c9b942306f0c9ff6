# SPDX-License-Identifier: MIT
"""Endpoints of `qlora serve`: OpenAI's API, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from .serve_answers import (ChatForm, Choice, Form, Piece, TextForm, joined,
                            usage)
from .serve_errors import Refusal, busy, shown
from .serve_metrics import CONTENT_TYPE, Metrics
from .serve_requests import Job, Reader, parse_body
from .serve_rows import EngineRows, Reply
from .serve_tokens import TokenTexts

# A client that does not read its answer is disconnected this many seconds after
# its request has timed out.
_SECONDS_TO_READ = 5
_SECONDS_FOR_BODY = 60
_DISCONNECTED = 499


@dataclass
class Limits:
    streams: int
    request_bytes: int
    seconds: float  # for a request


@dataclass
class Server:
    """`models`: fields of the engine's requests, by name of the model."""
    models: dict[str, dict]
    reader: Reader
    rows: EngineRows
    limits: Limits
    api_key: bytes | None
    created: int = field(default_factory=lambda: int(time.time()))
    is_draining: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    streams: int = 0
    active: int = 0  # requests of /v1/

    def __post_init__(self):
        self.tokens = TokenTexts(self.reader.prompts.converter.tokenizer)
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # Tokenizing must not delay streams. One thread, because templates are
        # not made for several.
        self._thread = ThreadPoolExecutor(1)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._counted, self._guarded],
                              client_max_size=self.limits.request_bytes)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_post("/v1/completions", self._text)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def idle(self, seconds: float) -> bool:
        """Waits until no request is active. Returns whether that is so."""
        try:
            await asyncio.wait_for(self._is_idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    # ------------------------------------------------------- all requests

    @web.middleware
    async def _counted(self, request: web.Request,
                       handler: Callable) -> web.StreamResponse:
        """Turns errors into responses, and counts them."""
        resource = request.match_info.route.resource
        path = resource.canonical if resource else "other"
        status = _DISCONNECTED
        try:
            response = await self._responded(request, handler)
            status = response.status
            if self.is_draining and not response.prepared:
                response.force_close()
            return response
        finally:
            self.metrics.requests[path, status] += 1

    async def _responded(self, request: web.Request,
                         handler: Callable) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as refusal:
            return _refused(refusal)
        except web.HTTPException as error:
            return _refused(_refusal_of(error, request))
        except (web.RequestPayloadError, HttpProcessingError) as error:
            return _refused(Refusal(400, f"the body cannot be read: {error}"))
        except asyncio.CancelledError:  # the client has disconnected
            raise
        except ConnectionError:  # the library would report it
            raise asyncio.CancelledError from None
        except Exception:
            return _refused(_internal())

    @web.middleware
    async def _guarded(self, request: web.Request,
                       handler: Callable) -> web.StreamResponse:
        """Checks what all requests of the API need."""
        if not request.path.startswith("/v1/"):
            return await handler(request)
        self._check_key(request)
        if self.is_draining:
            raise Refusal(503, "the server is shutting down", None,
                          "shutting_down", {"Retry-After": "1"})
        self.active += 1
        self._is_idle.clear()
        try:
            return await handler(request)
        finally:
            self.active -= 1
            if not self.active:
                self._is_idle.set()

    def _check_key(self, request: web.Request) -> None:
        if self.api_key is None:
            return
        given = request.headers.get("Authorization", "")
        key = given.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(key, b"Bearer " + self.api_key):
            raise Refusal(401, "the API key is wrong or missing. Fix: send the "
                          "header 'Authorization: Bearer KEY'", None,
                          "invalid_api_key", {"WWW-Authenticate": "Bearer"})

    # ---------------------------------------------------------- endpoints

    async def _health(self, _request: web.Request) -> web.Response:
        if self.is_draining:
            raise Refusal(503, "the server is shutting down", None,
                          "shutting_down")
        return _json({"status": "ok"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = self.metrics.text({
            "requests_running": self.active, "streams_open": self.streams,
            "rows_running": self.rows.running,
            "rows_waiting": self.rows.waiting})
        return web.Response(body=text.encode(),
                            headers={"Content-Type": CONTENT_TYPE})

    async def _models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list",
                      "data": [self._card(name) for name in self.models]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._check_model(name)
        return _json(self._card(name))

    def _card(self, name: str) -> dict:
        return {"id": name, "object": "model", "created": self.created,
                "owned_by": "qlora", "max_model_len": self.reader.capacity}

    def _check_model(self, name: str) -> None:
        if name not in self.models:
            raise Refusal(404, f"no model is called '{shown(name)}'. There "
                          f"are: {', '.join(self.models)}", "model",
                          "model_not_found")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, self.reader.chat, ChatForm)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, self.reader.text, TextForm)

    # ------------------------------------------------------------ answers

    async def _answer(self, request: web.Request,
                      read: Callable[[dict], Job],
                      form: type[Form]) -> web.StreamResponse:
        started = time.monotonic()
        _check_type(request)
        self.rows.check_queue()
        body = parse_body(await self._body(request))
        # Before the prompt is tokenized, which takes longer.
        if isinstance(body.get("model"), str):
            self._check_model(body["model"])
        self._check_streams(body.get("stream") is True)
        job = await asyncio.get_running_loop().run_in_executor(
            self._thread, read, body)
        # wait_for() may lose the cancellation of a task.
        if request.transport is None or request.transport.is_closing():
            raise asyncio.CancelledError
        self._check_streams(job.streams)
        reply = self.rows.start(
            [{**one, **self.models[job.model]}
             for one in self.reader.requests(job)], self.reader.sampling.seed)
        timer = _Timer(request, reply, started, self.limits.seconds)
        self.streams += job.streams
        try:
            answering = Answering(self, job, reply, form(job, self.tokens),
                                  started)
            return await (answering.stream(request) if job.streams
                          else answering.whole())
        finally:
            self.streams -= job.streams
            timer.cancel()
            reply.close()

    def _check_streams(self, adds_one: bool) -> None:
        if adds_one and self.streams >= self.limits.streams:
            raise busy(f"{self.streams} streams are open. Fix: send the "
                       "request again later", "too_many_streams")

    async def _body(self, request: web.Request) -> bytes:
        length = request.content_length
        if length is not None and length > self.limits.request_bytes:
            raise web.HTTPRequestEntityTooLarge(
                self.limits.request_bytes, length)
        seconds = min(self.limits.seconds, _SECONDS_FOR_BODY)
        try:
            return await asyncio.wait_for(request.read(), seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the body did not arrive within {seconds:g} "
                          "seconds", None, "timeout") from None


class _Timer:
    """Ends a request when its time is over, even if its client does not read.
    """

    def __init__(self, request: web.Request, reply: Reply, started: float,
                 seconds: float):
        self._request, self._reply, self._seconds = request, reply, seconds
        self._handle = asyncio.get_running_loop().call_later(
            max(0, started + seconds - time.monotonic()), self._expire)

    def cancel(self) -> None:
        self._handle.cancel()

    def _expire(self) -> None:
        self._reply.fail(_timed_out(self._seconds))
        self._handle = asyncio.get_running_loop().call_later(
            _SECONDS_TO_READ, self._abort)

    def _abort(self) -> None:
        if self._request.transport:
            self._request.transport.abort()


@dataclass
class Answering:
    """The answer to one request."""
    server: Server
    job: Job
    reply: Reply
    form: Form
    started: float

    def __post_init__(self):
        self.choices = [self._choice(prompt) for prompt in self.job.prompts
                        for _ in range(self.job.choices)]
        self._left = len(self.choices)
        self._has_token = False

    def _choice(self, prompt) -> Choice:
        prompts, sampling = self.server.reader.prompts, \
            self.server.reader.sampling
        _, stream = prompts.answer((*self.job.stops, *sampling.stops))
        if not self.job.is_chat:
            stream.follow(prompt.ids)
        return Choice(self.job, prompt, stream, self.server.tokens)

    async def _next(self) -> tuple[int, Piece]:
        """Returns the next piece, and the index of its choice."""
        index, line = await self.reply.next()
        metrics = self.server.metrics
        if not self._has_token and "error" not in line:
            self._has_token = True
            metrics.first_token.add(time.monotonic() - self.started)
        metrics.generated_tokens += "token" in line
        piece = self.choices[index].add(line)
        if piece.finish:
            self._left -= 1
            self.reply.end(index)
        return index, piece

    def _end(self) -> dict:
        """Counts the answer. Returns its usage."""
        used = usage(self.job, self.choices)
        metrics = self.server.metrics
        metrics.prompt_tokens += used["prompt_tokens"]
        metrics.latency.add(time.monotonic() - self.started)
        return used

    async def whole(self) -> web.Response:
        pieces: list[list[Piece]] = [[] for _ in self.choices]
        while self._left:
            index, piece = await self._next()
            pieces[index].append(piece)
        return _json(self.form.whole([joined(one) for one in pieces],
                                     self._end()))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        # The status is sent with the first token, because errors have others.
        first = await self._next()
        response = web.StreamResponse(headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        await response.prepare(request)
        try:
            await self._write_all(response, *first)
        except Refusal as refusal:
            await _event(response, refusal.body())
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            await _event(response, _internal().body())
        await response.write_eof()
        return response

    async def _write_all(self, response: web.StreamResponse, index: int,
                         piece: Piece) -> None:
        opening = [self.form.first(index) for index in range(len(self.choices))]
        for one in opening:
            if one:
                await _event(response, self.form.chunk([one], None))
        while True:
            if piece.text or piece.steps or piece.finish:
                await _event(response, self.form.chunk(
                    [self.form.part(index, piece)], None))
            if not self._left:
                break
            index, piece = await self._next()
        used = self._end()
        if self.job.streams_usage:
            await _event(response, self.form.chunk([], used))
        await response.write(b"data: [DONE]\n\n")


def _encoded(value: dict) -> bytes:
    # A lone surrogate becomes its escape, which JSON has too.
    return json.dumps(value, ensure_ascii=False,
                      separators=(",", ":")).encode("utf-8", "backslashreplace")


async def _event(response: web.StreamResponse, value: dict) -> None:
    await response.write(b"data: " + _encoded(value) + b"\n\n")


def _json(value: dict, status: int = 200,
          headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encoded(value), status=status, headers={
        "Content-Type": "application/json", **(headers or {})})


def _refused(refusal: Refusal) -> web.Response:
    return _json(refusal.body(), refusal.status, refusal.headers)


def _refusal_of(error: web.HTTPException, request: web.Request) -> Refusal:
    """Returns the form of an error of the library."""
    if error.status == 404:
        return Refusal(404, f"there is no {shown(request.path)}. Fix: use "
                       "/v1/chat/completions, /v1/completions or /v1/models",
                       None, "unknown_url")
    if error.status == 405:
        allowed = error.headers.get("Allow", "")
        return Refusal(405, f"{shown(request.path)} does not allow "
                       f"{shown(request.method)}. Fix: use {allowed}", None,
                       "method_not_allowed", {"Allow": allowed})
    if error.status == 413:
        return Refusal(413, "the body is larger than --max-request-bytes. Fix: "
                       "a shorter prompt", None, "request_too_large")
    return Refusal(error.status, error.reason)


def _check_type(request: web.Request) -> None:
    # Pages of other origins can send other types without permission.
    if request.content_type != "application/json":
        raise Refusal(415, "the request is not JSON. Fix: send the header "
                      "'Content-Type: application/json'")
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise Refusal(415, f"'Content-Encoding: {shown(encoding)}' is not "
                      "supported. Fix: send the body uncompressed")


def _timed_out(seconds: float) -> Refusal:
    return Refusal(408, f"the request took longer than {seconds:g} seconds. "
                   "Fix: fewer tokens, or a server with a longer "
                   "--request-timeout", None, "timeout")


def _internal() -> Refusal:
    """Reports the current exception, which is a mistake of this program."""
    traceback.print_exc(file=sys.stderr)
    return Refusal(500, "an error of the server, which its log describes")
