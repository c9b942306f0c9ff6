# SPDX-License-Identifier: MIT
"""`qlora-data serve`: answers requests of OpenAI's API over HTTP. `qlora serve`
starts it:

    qlora-data serve --model MODEL_DIR [options] -- qlora-run PROGRAM ...

The command after `--` is the engine (engine.py). One thread runs the event loop
with all connections; others only pass messages and tokenize prompts."""

from __future__ import annotations

import argparse
import asyncio
import errno
import ipaddress
import os
import re
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

from .arguments import Parser, positive
from .engine import Engine
from .environment import ensure_packages
from .errors import DataError
from .generation import answering_parser, parse_with_engine
from .model_files import ModelFiles
from .prompts import Prompts
from .sampling import sampling_of

if TYPE_CHECKING:
    from .serve_http import Server

_KEY = "QLORA_API_KEY"
_MOST_FILES = 1 << 16
_BACKLOG = 2048
_SECONDS_AFTER_DRAINING = 2
_SECONDS_OF_SILENCE = 75  # after which an unused connection is closed
# A snapshot in Hugging Face's cache.
_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/[^/]+/*$")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expects a number from 0 to 65535, "
                                         f"but got '{text}'")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expects seconds above 0, but got "
                                         f"'{text}'")
    return value


def _parser() -> Parser:
    parser = answering_parser("serve", "Answers requests over HTTP. qlora "
                              "serve calls it.")
    add = parser.add_argument
    add("--ranks", type=positive, default=1, metavar="N",
        help="start N engines, which share the rows; each sees one GPU of "
        "CUDA_VISIBLE_DEVICES (default: 1)")
    add("--host", default="127.0.0.1", metavar="NAME")
    add("--port", type=_port, default=8000, metavar="N",
        help="0: any free one")
    add("--served-model-name", metavar="NAME", help="name of the base model")
    add("--api-key", metavar="KEY", help=f"default: ${_KEY}")
    add("--max-queue", type=positive, default=256, metavar="N",
        help="rows that may wait (default: 256)")
    add("--max-streams", type=positive, default=128, metavar="N",
        help="streams at the same time (default: 128)")
    add("--max-request-bytes", type=positive, default=4 << 20, metavar="N",
        help="default: 4 MiB")
    add("--request-timeout", type=_seconds, default=600, metavar="SECONDS",
        help="default: 600")
    add("--drain-timeout", type=_seconds, default=60, metavar="SECONDS",
        help="for running requests after SIGTERM (default: 60)")
    # Requests decide about log-probabilities.
    parser.set_defaults(logprobs=0)
    return parser


def _bound(host: str, port: int) -> socket.socket:
    """Returns a socket that has the address, but does not listen yet."""
    if not host:
        raise DataError("--host is empty", "use 0.0.0.0 for all addresses of "
                        "this machine")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise DataError(f"--host {host}: {_reason(error)}",
                        "name an address of this machine") from None
    sock = socket.socket(family, kind)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _not_bound(host, port, error) from None
    return sock


def _not_bound(host: str, port: int, error: OSError) -> DataError:
    if error.errno == errno.EADDRINUSE:
        return DataError(f"--port {port} is in use on {host}",
                         "choose another port, or 0 for any")
    return DataError(f"--host {host} --port {port}: {_reason(error)}",
                     "choose another address or port")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _allow_files() -> None:
    """Raises the limit of open files: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY \
        else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _base_name(folder: str) -> str:
    """Returns the name of a model: on the hub, or of its folder."""
    path = os.path.abspath(folder)
    if found := _SNAPSHOT.search(path):
        return found[1].replace("--", "/", 1)
    return os.path.basename(path)


def _models(engine: Engine, base: str) -> dict[str, dict]:
    """Returns what requests to the engine must have, by name of the model."""
    if not engine.adapters:
        return {base: {}}
    if not engine.has_base:  # all rows use the only adapter
        return {engine.adapters[0]: {}}
    models = {base: {"adapter": None}}
    for name in engine.adapters:
        if name in models:
            raise DataError(f"the base model and an adapter are both called "
                            f"'{name}'", "add --served-model-name")
        models[name] = {"adapter": name}
    return models


class _Run:
    """Serves until a signal arrives or the engine dies."""

    def __init__(self, args: argparse.Namespace):
        self._args = args
        self._key = args.api_key or os.environ.get(_KEY)
        self._end = asyncio.Event()
        self._failure: DataError | None = None
        self._has_signal = False

    async def serve(self, sock: socket.socket, engine: Engine,
                    prompts: Prompts, sampling) -> None:
        server = self._server(engine, prompts, sampling)
        runner = await self._started(server, sock)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        print(f"serving {', '.join(server.models)} at {_address(sock)}/v1",
              flush=True)
        self._warn_of_strangers(sock)
        await self._end.wait()
        await self._drain(server)
        await runner.cleanup()
        server.rows.stop()
        if self._failure:
            raise self._failure

    def _server(self, engine: Engine, prompts: Prompts, sampling) -> Server:
        from .serve_http import Limits, Server
        from .serve_requests import Reader
        from .serve_rows import EngineRows
        args = self._args
        name = args.served_model_name or _base_name(args.model)
        return Server(
            _models(engine, name),
            Reader(prompts, sampling, engine.capacity, engine.vocabulary),
            EngineRows(engine, args.max_queue, self._fail),
            Limits(args.max_streams, args.max_request_bytes,
                   args.request_timeout),
            os.fsencode(self._key) if self._key else None)

    async def _started(self, server: Server, sock: socket.socket):
        from aiohttp import web
        runner = web.AppRunner(
            server.application(), access_log=None, handler_cancellation=True,
            auto_decompress=False, keepalive_timeout=_SECONDS_OF_SILENCE,
            shutdown_timeout=_SECONDS_AFTER_DRAINING)
        await runner.setup()
        try:
            await web.SockSite(runner, sock, backlog=_BACKLOG).start()
        except OSError as error:
            await runner.cleanup()
            raise _not_bound(self._args.host, self._args.port,
                             error) from None
        return runner

    def _warn_of_strangers(self, sock: socket.socket) -> None:
        address = ipaddress.ip_address(sock.getsockname()[0].split("%")[0])
        if not (address.is_loopback or self._key):
            print("qlora-data: warning: without an API key, every machine that "
                  f"reaches {address} can use the model; set {_KEY}",
                  file=sys.stderr)

    async def _drain(self, server: Server) -> None:
        """Refuses new requests, and waits for the running ones."""
        from .serve_errors import Refusal
        server.is_draining = True
        seconds = (_SECONDS_AFTER_DRAINING if self._failure
                   else self._args.drain_timeout)
        if not await server.idle(seconds):
            server.rows.fail_all(Refusal(503, "the server is shutting down",
                                         None, "shutting_down"))
            await server.idle(_SECONDS_AFTER_DRAINING)

    def _stop(self, number: int) -> None:
        if self._has_signal:
            sys.exit(128 + number)
        self._has_signal = True
        self._end.set()

    def _fail(self, error: DataError) -> None:
        self._failure = error
        self._end.set()


def _check_library() -> None:
    import aiohttp
    version = tuple(map(int, re.findall(r"\d+", aiohttp.__version__)[:2]))
    if version < (3, 9):
        raise DataError(f"aiohttp {aiohttp.__version__} is too old", "run: "
                        f"{sys.executable} -m pip install 'aiohttp>=3.9'")


def serve(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    args, command = parse_with_engine(_parser(), arguments)
    ensure_packages(arguments, ("aiohttp",))
    _check_library()
    _allow_files()
    # The address is checked before a model is loaded, which takes longer.
    with _bound(args.host, args.port) as sock:
        files = ModelFiles(args.model)
        prompts = Prompts(files, args.chat_template, args.system)
        sampling = sampling_of(files, args)
        # Loads tokenizer and template, and prepares them for several threads.
        prompts.answer(())
        prompts.converter.tokenizer.decode([0])
        with Engine(command, args.ranks) as engine:
            asyncio.run(_serving(args, sock, engine, prompts, sampling))


async def _serving(args: argparse.Namespace, sock: socket.socket,
                   engine: Engine, prompts: Prompts, sampling) -> None:
    await _Run(args).serve(sock, engine, prompts, sampling)
