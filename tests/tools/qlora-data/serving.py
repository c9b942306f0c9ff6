# SPDX-License-Identifier: MIT
"""A running `qlora-data serve` with the fake engine, and its clients."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

from fixtures import CHATML, TOOL, ToolTest

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = [sys.executable, os.path.join(HERE, "fake_engine.py")]
HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Response:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.raw = response.read()

    @property
    def body(self):
        return json.loads(self.raw)

    @property
    def error(self):
        return self.body["error"]

    @property
    def events(self):
        """Returns the events of a stream, without [DONE], which must be there.
        """
        *events, done, rest = self.raw.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", ""), self.raw
        assert all(event.startswith("data: ") for event in events), events
        return [json.loads(event[6:]) for event in events]


class ServeTest(ToolTest):
    """`self.script` is the fake engine's. Its answer has 4 tokens."""

    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.script = {"log": self.path("requests"), "slots": 4,
                       "answers": [self.tokens("hello world the user")]}
        self.server = None

    def tokens(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def command(self, *flags):
        with open(self.path("script.json"), "w", encoding="utf-8") as file:
            json.dump(self.script, file)
        return [sys.executable, TOOL, "serve", "--model", self.model,
                *flags, "--", *FAKE, self.path("script.json")]

    def start(self, *flags, **environment):
        self.server = subprocess.Popen(
            self.command("--port=0", *flags), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment})
        self.addCleanup(self.end)
        line = self.server.stdout.readline()
        found = re.fullmatch(r"serving (.*) at http://(.*):(\d+)/v1\n", line)
        self.assertTrue(found, line or self.server.stderr.read())
        self.names, self.port = found[1].split(", "), int(found[3])

    def end(self):
        """Kills the server if it still runs."""
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()
        self.server.stderr.close()

    def stop(self, code=0, errors="", number=signal.SIGTERM):
        """Lets the server end by itself, or with a signal."""
        if number:
            self.server.send_signal(number)
        _, found = self.server.communicate(timeout=60)
        self.assertEqual(self.server.returncode, code, found)
        self.assertIn(errors, found)
        if not errors:
            self.assertEqual(found, "")
        return found

    def engine(self):
        """Returns the engine's process id."""
        with open(f"/proc/{self.server.pid}/task/{self.server.pid}/children",
                  encoding="ascii") as file:
            return int(file.read().split()[0])

    def send(self, path, body=None, method=None, raw=None, headers=None):
        """Sends a request. Returns the connection, whose response is to come.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                timeout=20)
        self.addCleanup(connection.close)
        data = raw
        if body is not None:
            data = json.dumps({"model": "model", **body}).encode()
        connection.request(method or ("GET" if data is None else "POST"), path,
                           data, {"Content-Type": "application/json",
                                  **(headers or {})})
        return connection

    def ask(self, path, body=None, status=200, **options):
        connection = self.send(path, body, **options)
        response = Response(connection.getresponse())
        connection.close()
        self.assertEqual(response.status, status, response.raw)
        return response

    def refused(self, path, body, status=400, **options):
        """Returns the message of the error that the request gets."""
        response = self.ask(path, body, status, **options)
        self.assertEqual(set(response.error),
                         {"message", "type", "param", "code"})
        self.assertEqual(response.headers["Content-Type"], "application/json")
        return response.error["message"]

    def chat(self, **fields):
        return self.ask(CHAT, {"messages": HI, **fields})

    def text(self, prompt="hi", **fields):
        return self.ask(TEXT, {"prompt": prompt, **fields})

    def requests(self):
        """Returns the messages that the engine got since the last call."""
        path = self.script["log"]
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
        os.remove(path)
        return [json.loads(line) for line in lines]

    def metric(self, name):
        lines = self.ask("/metrics").raw.decode().splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines
                     if line.startswith(f"qlora_{name} ")), 0.0)

    def wait_for(self, condition, seconds=60):
        """Waits until a condition holds. Returns how long that took."""
        start = time.monotonic()
        while not condition():
            self.assertLess(time.monotonic() - start, seconds)
            time.sleep(0.01)
        return time.monotonic() - start

    def wait_until_idle(self):
        """Waits until no request is left, in the server and the engine."""
        self.wait_for(lambda: not any(map(self.metric, (
            "requests_running", "rows_running", "rows_waiting",
            "streams_open"))))


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
