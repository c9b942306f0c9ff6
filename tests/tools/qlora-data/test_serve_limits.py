# SPDX-License-Identifier: MIT
"""`qlora-data serve` with bad requests, many clients, disconnects and signals.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

from fixtures import MISTRAL, chat
from serving import (CHAT, HI, TEXT, ServeTest, free_port, is_running)


class RefusalTest(ServeTest):
    def test_fields(self):
        self.start()
        for body, param, message in (
                ({"frequency_penalty": 0.5}, None, "use presence_penalty"),
                ({"logit_bias": {"5": 1}}, None, "could change the answer"),
                ({"response_format": {"type": "json_object"}}, None,
                 "ask for the format in the prompt"),
                ({"reasoning_effort": "low"}, None, "remove it"),
                ({"functions": [1]}, None, "use 'tools'"),
                ({"temperature": -1}, None, "a number of at least 0, but got"),
                ({"temperature": "1"}, None, "but got a string"),
                ({"temperature": True}, None, "but got a boolean"),
                ({"top_p": 0}, None, "'top_p' expects a number above 0"),
                ({"top_k": 1.5}, None, "'top_k' expects a whole number"),
                ({"min_p": 2}, None, "'min_p'"),
                ({"repetition_penalty": 0}, None, "'repetition_penalty'"),
                ({"presence_penalty": 101}, None, "'presence_penalty'"),
                ({"n": 0}, None, "'n' expects a whole number from 1 to 128"),
                ({"n": [1]}, None, "a whole number, but got a list"),
                ({"seed": 1 << 64}, None, "'seed'"),
                ({"seed": 0.5}, None, "'seed'"),
                ({"max_tokens": 0}, None, "'max_tokens'"),
                ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens",
                 "differ. Fix: remove one"),
                ({"stop": [""]}, None, "none of them empty"),
                ({"stop": 5}, None, "'stop' expects a text or a list"),
                ({"stop": ["a"] * 17}, None, "at most 16 texts"),
                ({"stream": 1}, None, "'stream' expects true or false"),
                ({"stream_options": {}}, None, "needs \"stream\": true"),
                ({"stream": True, "stream_options": {"a": 1}}, "a", "'a' is"),
                ({"top_logprobs": 1}, None, "needs \"logprobs\": true"),
                ({"logprobs": True, "top_logprobs": 21}, "top_logprobs",
                 "from 0 to 20, but got 21"),
                ({"tool_choice": "auto", "tools": []}, "", ""),
                ({"tool_choice": "required"}, None, "needs 'tools'"),
                ({"tools": {}}, None, "'tools' expects a list"),
                ({"messages": []}, None, "at least one message"),
                ({"messages": "hi"}, None, "'messages' expects a list"),
                ({"messages": None}, None, "at least one message"),
                ({"messages": [1]}, "", "messages[0] expects an object"),
                ({"messages": [{"role": "user"}]}, "", "has neither"),
                ({"messages": chat(("user", "a"), ("assistant", "b"))}, "",
                 "the last message is the assistant's"),
                ({"messages": [{"role": "user", "content": [
                    {"type": "image_url", "image_url": {}}]}]}, "",
                 "a part that is not text"),
                ({"messages": chat(("user", "\ud800"))}, "", "surrogate"),
                ({"model": None}, "model", "'model' is missing"),
                ({"model": 5}, None, "'model' expects the name")):
            with self.subTest(body=body):
                if not message:
                    self.chat(**body)
                    continue
                response = self.ask(CHAT, {"messages": HI, **body}, 400)
                self.assertIn(message, response.error["message"])
                self.assertEqual(response.error["type"],
                                 "invalid_request_error")
                self.assertEqual(response.error["param"],
                                 next(iter(body)) if param is None
                                 else param or None)
        for body, message in (
                ({"prompt": ""}, "none of them empty"),
                ({"prompt": []}, "none of them empty"),
                ({"prompt": [[]]}, "none of them empty"),
                ({"prompt": [5, "a"]}, "'prompt' expects a text"),
                ({"prompt": [True]}, "'prompt' expects a text"),
                ({"prompt": [-1]}, "'prompt' expects a text"),
                ({"prompt": {}}, "'prompt' expects a text"),
                ({"prompt": None}, "'prompt' expects a text"),
                ({"prompt": [999]}, "token id 999 is outside of the vocabulary "
                 "of 999"),
                ({"prompt": [1 << 70]}, "is outside of the vocabulary"),
                ({"suffix": "b"}, "write the whole prompt as 'prompt'"),
                ({"best_of": 2}, "'best_of' other than 'n'"),
                ({"logprobs": True}, "'logprobs' expects a whole number"),
                ({"max_tokens": 0}, "needs \"echo\": true"),
                ({"messages": HI}, "'messages' is not supported"),
                ({"max_tokens": 64}, "the prompt has 2 tokens, and 64 are "
                 "wanted, but a row has at most 64. Fix: a shorter prompt"),
                ({"prompt": [5] * 64}, "has 64 tokens, and 1 are wanted")):
            with self.subTest(body=body):
                self.assertIn(message, self.refused(
                    TEXT, {"prompt": "hi", **body}))
        self.assertEqual(len(self.requests()), 1)  # the accepted one
        self.text([5] * 63, max_tokens=1)
        self.text([5] * 64, max_tokens=0, echo=True)
        self.stop()

    def test_bodies(self):
        self.start()
        deep = b'{"a":' * 100000
        for raw, message in (
                (b"", "is not JSON"), (b"{", "is not JSON"),
                (b"[]", "expects a JSON object, but got a list"),
                (b"\xff{}", "not UTF-8 (byte 1)"), (deep, "nested too deeply"),
                (b'{"temperature": NaN}', "NaN is not JSON"),
                (b'{"temperature": ' + b"9" * 5000 + b"}", "is not JSON"),
                (b'{"model":"model","prompt":"a","temperature":1e999}',
                 "'temperature' expects a number"),
                (b'{"model":"model","prompt":' + b"[" * 800 + b"]" * 800
                 + b"}", "'prompt' expects a text")):
            for path in (TEXT, CHAT):
                if b"prompt" in raw and path == CHAT:
                    continue
                with self.subTest(raw=raw[:50], path=path):
                    self.assertIn(message,
                                  self.refused(path, None, raw=raw))
        for kwargs in (b"{}", b'{"a":' * 400 + b"1" + b"}" * 400):
            raw = (b'{"model":"model","messages":[{"role":"user","content":'
                   b'"a"}],"chat_template_kwargs":' + kwargs + b"}")
            self.ask(CHAT, raw=raw)
        self.assertIn("Content-Type: application/json", self.refused(
            TEXT, {"prompt": "a"}, 415, headers={"Content-Type":
                                                 "text/plain"}))
        self.assertIn("'Content-Encoding: gzip' is not supported", self.refused(
            TEXT, None, 415, raw=b"text",
            headers={"Content-Encoding": "gzip"}))
        self.stop()

    def test_large_bodies(self):
        self.start("--max-request-bytes=1000")
        self.text("a" * 30, user="b" * 800)
        body = json.dumps({"model": "model",
                           "prompt": "a" * 10_000_000}).encode()
        for raw in (body, iter([body])):  # an iterator is sent in chunks
            self.assertIn("larger than --max-request-bytes",
                          self.refused(TEXT, None, 413, raw=raw))
        self.stop()

    def test_urls(self):
        self.start()
        for path, method, status, message in (
                ("/", "GET", 404, "there is no /. Fix: use /v1/chat"),
                ("/v1/embeddings", "POST", 404, "there is no /v1/embeddings"),
                (TEXT, "GET", 405, "does not allow GET. Fix: use POST"),
                ("/v1/models", "POST", 405, "does not allow POST"),
                ("/v1/models/none", "GET", 404, "no model is called 'none'")):
            self.assertIn(message, self.refused(path, None, status,
                                                method=method))
        response = self.ask(TEXT, method="OPTIONS", status=405)
        self.assertEqual(response.headers["Allow"], "POST")
        for name in response.headers:  # a page of another origin learns nothing
            self.assertFalse(name.lower().startswith("access-control"))
        self.stop()

    def test_a_template_that_refuses(self):
        self.make_model(MISTRAL)
        self.start()
        self.assertIn("roles must alternate", self.refused(CHAT, {
            "messages": chat(("user", "a"), ("user", "b"))}))
        self.stop()

    def test_no_template(self):
        self.make_model()
        self.start()
        self.assertIn("chat template", self.refused(CHAT, {"messages": HI}))
        self.text()
        self.stop()

    def test_api_keys(self):
        for flags, environment in ((("--api-key=sécret",), {}),
                                   ((), {"QLORA_API_KEY": "sécret"})):
            self.start(*flags, **environment)
            good = {"Authorization": "Bearer sécret".encode()}
            for key in (None, "Bearer x", "sécret", "Bearer sécret2"):
                headers = {"Authorization": key.encode()} if key else {}
                response = self.ask(TEXT, {"prompt": "a"}, 401,
                                    headers=headers)
                self.assertEqual(response.error["code"], "invalid_api_key")
                self.ask("/v1/models", status=401, headers=headers)
            self.ask(TEXT, {"prompt": "a"}, headers=good)
            self.ask("/health")
            self.ask("/metrics")
            self.stop()


class LimitsTest(ServeTest):
    def setUp(self):
        super().setUp()
        self.script.update(answers=[[80] * 50], delay=0.02, slots=2)

    def test_streams_and_the_queue(self):
        self.start("--max-streams=2", "--max-queue=3")
        open_streams = [self.send(TEXT, {"prompt": "a", "stream": True})
                        for _ in range(2)]
        self.wait_for(lambda: self.metric("streams_open") == 2)
        start = time.monotonic()
        response = self.ask(TEXT, {"prompt": "a", "stream": True}, 429)
        self.assertLess(time.monotonic() - start, 1)
        self.assertEqual(response.error["code"], "too_many_streams")
        self.assertEqual(response.headers["Retry-After"], "1")
        waiting = [self.send(TEXT, {"prompt": "a"}) for _ in range(3)]
        self.wait_for(lambda: self.metric("rows_waiting") == 3)
        response = self.ask(TEXT, {"prompt": "a"}, 429)
        self.assertEqual(response.error["code"], "queue_full")
        self.assertIn("3 rows are waiting", response.error["message"])
        for connection in open_streams + waiting:
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            response.read()
        self.assertIn("the request has 6 rows, but at most 5 can wait and run",
                      self.refused(TEXT, {"prompt": ["a"] * 3, "n": 2}))
        self.wait_until_idle()
        self.text()
        self.stop()

    def test_a_disconnected_client(self):
        self.start()
        for fields in ({}, {"stream": True}, {"n": 5}):
            self.requests()
            connection = self.send(TEXT, {"prompt": "a", "max_tokens": 50,
                                          **fields})
            self.wait_for(lambda: self.metric("generated_tokens_total") > 0)
            if "stream" in fields:
                connection.getresponse().read(10)
            connection.close()
            self.assertLess(self.wait_for(
                lambda: self.metric("requests_running") == 0), 2)
            self.wait_until_idle()
            messages = []

            def are_canceled():
                messages.extend(self.requests())
                return {one["id"] for one in messages if "id" in one} == {
                    one["cancel"] for one in messages if "cancel" in one}
            self.wait_for(are_canceled, 2)
        self.assertLess(self.metric("generated_tokens_total"), 100)
        self.assertIn('status="499"} 3', self.ask("/metrics").raw.decode())
        self.stop()

    def test_timeouts(self):
        self.start("--request-timeout=0.3")
        self.assertIn("longer than 0.3 seconds", self.refused(
            TEXT, {"prompt": "a", "max_tokens": 50}, 408))
        with self.send(TEXT, {"prompt": "a", "max_tokens": 50,
                              "stream": True}).getresponse() as response:
            *_, last = response.read().decode().strip().split("\n\n")
        self.assertEqual(json.loads(last[6:])["error"]["code"], "timeout")
        self.wait_until_idle()
        # A body that does not end.
        with socket.create_connection(("127.0.0.1", self.port), 20) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-"
                         b"Type: application/json\r\nContent-Length: 9\r\n\r\n")
            self.assertIn(b" 408 ", sock.recv(1 << 16))
        self.stop()

    def test_a_client_that_does_not_read(self):
        self.script.update(answers=[[80] * 5000], delay=0, capacity=6000)
        # stop() waits as long as the default time for draining.
        self.start("--request-timeout=1", "--drain-timeout=20")
        sock = socket.socket()
        self.addCleanup(sock.close)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", self.port))
        body = json.dumps({"model": "model", "prompt": "a", "n": 20,
                           "max_tokens": 5000, "stream": True}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type"
                     b": application/json\r\nContent-Length: %d\r\n\r\n"
                     % len(body) + body)
        self.wait_for(lambda: self.metric("requests_running") == 1)
        self.wait_for(lambda: self.metric("requests_running") == 0, 20)
        self.stop()

    def test_many_clients(self):
        count = 1000
        self.script.update(answers=[self.tokens("hello")], delay=0, slots=16)
        self.start("--max-queue=200")
        before = len(os.listdir(f"/proc/{self.server.pid}/fd"))
        body = json.dumps({"model": "model", "prompt": "a"}).encode()
        request = (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
                   b"application/json\r\nConnection: close\r\nContent-Length: "
                   b"%d\r\n\r\n" % len(body) + body)

        async def one(connected):
            reader, writer = await asyncio.open_connection("127.0.0.1",
                                                           self.port)
            connected.append(writer)
            while len(connected) < count:  # all are connected at once
                await asyncio.sleep(0.05)
            writer.write(request)
            response = await reader.read()
            writer.close()
            return int(response.split(b" ", 2)[1])

        async def all_of_them():
            connected = []
            return await asyncio.gather(*(one(connected)
                                          for _ in range(count)))

        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        statuses = asyncio.run(all_of_them())
        self.assertEqual(set(statuses) - {429}, {200})
        self.assertGreaterEqual(statuses.count(200), 200)
        self.wait_until_idle()
        self.wait_for(lambda: len(os.listdir(
            f"/proc/{self.server.pid}/fd")) <= before + 2)
        self.text()
        self.stop()


class EndTest(ServeTest):
    def setUp(self):
        super().setUp()
        self.script.update(answers=[[80] * 40], delay=0.03)

    def begin(self, *flags, **fields):
        """Starts a server, and a request that takes a second."""
        self.start(*flags)
        self.process = self.engine()
        connection = self.send(TEXT, {"prompt": "a", "max_tokens": 40,
                                      **fields})
        self.wait_for(lambda: self.metric("generated_tokens_total") > 0)
        return connection

    def check_gone(self):
        self.wait_for(lambda: not is_running(self.process), 10)

    def test_draining(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            running = self.begin(stream=True)
            self.server.send_signal(number)
            self.wait_for(lambda: self.send("/health").getresponse().status
                          == 503)
            response = self.ask(TEXT, {"prompt": "a"}, 503)
            self.assertEqual(response.error["code"], "shutting_down")
            self.assertEqual(response.headers["Connection"], "close")
            self.assertIn(b"data: [DONE]", running.getresponse().read())
            self.stop(number=None)
            self.check_gone()

    def test_the_end_of_draining(self):
        self.script["delay"] = 0.2
        for stream in (False, True):
            running = self.begin("--drain-timeout=0.2", stream=stream)
            self.server.send_signal(signal.SIGTERM)
            response = running.getresponse()
            self.assertEqual(response.status, 200 if stream else 503)
            self.assertIn(b"shutting_down", response.read())
            self.stop(number=None)
            self.check_gone()

    def test_a_second_signal(self):
        self.script["delay"] = 1  # 40 seconds for the answer
        self.begin()
        self.server.send_signal(signal.SIGTERM)
        self.wait_for(lambda: self.send("/health").getresponse().status == 503)
        start = time.monotonic()
        self.stop(143)
        self.assertLess(time.monotonic() - start, 20)
        self.check_gone()

    def test_a_signal_while_the_model_is_loaded(self):
        self.script.update(load=60, starts=self.path("starts"))
        self.server = subprocess.Popen(
            self.command("--port=0"), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        self.wait_for(lambda: os.path.exists(self.path("starts")))
        self.process = self.engine()
        self.stop(143)
        self.check_gone()

    def test_a_killed_server(self):
        self.begin()
        self.stop(-9, number=signal.SIGKILL)
        self.check_gone()

    def test_an_engine_that_dies(self):
        self.script["tokens"] = 10
        running = [self.begin(stream=True)]
        running += [self.send(TEXT, {"prompt": "a"}) for _ in range(2)]
        responses = [one.getresponse() for one in running]
        self.assertEqual([one.status for one in responses[1:]], [500, 500])
        for response in responses:
            self.assertIn("ended with code 3 before the last answer",
                          response.read().decode())
        self.stop(1, "qlora-data: error: ", number=None)

    def test_an_idle_engine_that_dies(self):
        self.start()
        os.kill(self.engine(), signal.SIGKILL)
        self.stop(1, "ended by signal 9", number=None)

    def test_a_port_in_use(self):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            port = sock.getsockname()[1]
            self.refused_start("is in use on 127.0.0.1; choose another port, "
                               "or 0 for any", f"--port={port}")
        self.refused_start("--host none.invalid", "--host=none.invalid")
        self.refused_start("--host 203.0.113.1", "--host=203.0.113.1",
                           f"--port={free_port()}")

    def test_other_machines(self):
        self.start("--host=0.0.0.0")
        self.stop(errors="every machine that reaches 0.0.0.0 can use the model")
        self.start("--host=0.0.0.0", "--api-key=a")
        self.stop()

    def test_mistakes(self):
        for flag in ("--port=65536", "--port=-1", "--max-queue=0",
                     "--request-timeout=0", "--drain-timeout=x"):
            self.refused_start(flag.split("=", maxsplit=1)[0], flag)
        self.script["adapters"] = ["model"]
        self.refused_start("both called 'model'; add --served-model-name",
                           "--port=0")
        os.remove(os.path.join(self.model, "tokenizer.json"))
        self.refused_start("has no tokenizer.json", "--port=0")

    def test_missing_packages(self):
        python = self.path("python")
        with open(python, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        os.chmod(python, 0o755)
        self.refused_start(f"run: {python} -m pip install tokenizers jinja2 "
                           "aiohttp", QLORA_PYTHON=python)

    def refused_start(self, message, *flags, **environment):
        done = subprocess.run(self.command(*flags), capture_output=True,
                              text=True, check=False, timeout=60,
                              env={**os.environ, **environment})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
