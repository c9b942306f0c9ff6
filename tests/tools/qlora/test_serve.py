# SPDX-License-Identifier: MIT
"""qlora serve passes its options on, and serves a run's adapter."""

import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import unittest

from test_qlora import DATA, MODEL, SMALL, QloraTest

FAST = ["--generation-length=64", "--compute-dtype=float32",
        "--base-cache=none", "--threads=1"]
QUESTION = [{"role": "user", "content": "Lena meets Ivan."}]


class DryRunTest(QloraTest):
    def words(self, *words):
        shown = self.run_qlora("serve", *words, "--dry-run").stdout
        return shlex.split(shown.splitlines()[-1])

    def test_flags(self):
        words = self.words(
            MODEL, "--host=::1", "--port=0", "--served-model-name=a b",
            "--max-queue=3", "--max-streams=4", "--max-request-bytes=5",
            "--request-timeout=6.5", "--drain-timeout=7", "--temperature=0.5",
            "--system=s", "--stop=x", "--seed=9")
        self.assertEqual(os.path.basename(words[0]), "qlora-data")
        self.assertEqual(words[1:words.index("--")], [
            "serve", "--model=" + MODEL, "--seed=9", "--system=s", "--stop=x",
            "--temperature=0.5", "--host=::1", "--port=0",
            "--served-model-name=a b", "--max-queue=3", "--max-streams=4",
            "--max-request-bytes=5", "--request-timeout=6.5",
            "--drain-timeout=7.0"])
        self.assertEqual(self.words(MODEL)[1:words.index("--")][:3],
                         ["serve", "--model=" + MODEL, "--seed=42"])

    def test_a_key_is_not_shown(self):
        self.assertNotIn("hidden", " ".join(
            self.words(MODEL, "--api-key=hidden")))

    def test_mistakes(self):
        for words, message in (
                ((), "expects one model, but got 0"),
                ((MODEL, "a"), "expects one model, but got 2"),
                ((MODEL, "--port=65536"), "--port"),
                ((MODEL, "--max-queue=0"), "--max-queue"),
                ((MODEL, "--request-timeout=0"), "--request-timeout"),
                ((MODEL, "--logprobs=1"), "unknown option")):
            self.assertIn(message, self.run_qlora("serve", *words,
                                                  code=1).stderr)
        self.assertIn("--max-streams", self.run_qlora("serve", "--help-all")
                      .stdout)


class AnswerTest(QloraTest):
    def serve(self, *words):
        self.server = subprocess.Popen(
            ["qlora", "serve", *words, *FAST, "--port=0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.folder, env=self.environment)
        self.addCleanup(self.server.stderr.close)
        self.addCleanup(self.server.stdout.close)
        self.addCleanup(self.server.kill)
        line = self.server.stdout.readline()
        found = re.fullmatch(r"serving (.*) at http://127.0.0.1:(\d+)/v1\n",
                             line)
        self.assertTrue(found, line or self.server.stderr.read())
        self.port = int(found[2])
        return found[1].split(", ")

    def ask(self, model, status=200, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/v1/chat/completions", json.dumps(
            {"model": model, "messages": QUESTION, "max_tokens": 8}),
            {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        self.assertEqual(response.status, status, body)
        return body["choices"][0]["message"]["content"] if status == 200 \
            else body["error"]["message"]

    def stop(self):
        self.server.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.wait(30), 0)

    def generated(self, *words):
        return self.run_qlora("generate", *words, QUESTION[0]["content"],
                              "--max-new-tokens=8", *FAST).stdout[:-1]

    def test_a_run_and_its_base(self):
        self.run_qlora("train", MODEL, DATA, *SMALL, "--learning-rate=0.1",
                       "--output-dir=run")
        run = os.path.join(self.folder, "run")
        answers = self.generated(run, "--adapter=none"), self.generated(run)
        self.assertNotEqual(*answers)
        self.assertEqual(self.serve(run), ["model", "run"])
        self.assertEqual((self.ask("model"), self.ask("run")), answers)
        self.assertIn("There are: model, run", self.ask("other", 404))
        self.stop()

    def test_an_adapter_without_a_base(self):
        self.run_qlora("train", MODEL, DATA, *SMALL, "--use-dora",
                       "--learning-rate=0.1", "--output-dir=dora")
        dora = os.path.join(self.folder, "dora")
        self.assertEqual(self.serve(dora), ["dora"])
        self.assertEqual(self.ask("dora"), self.generated(dora))
        self.stop()

    def test_keys_and_ports(self):
        self.serve(MODEL, "--api-key=secret")
        self.assertIn("the API key is wrong", self.ask("model", 401))
        self.ask("model", Authorization="Bearer secret")
        with open(f"/proc/{self.server.pid}/cmdline", "rb") as file:
            self.assertNotIn(b"secret", file.read())
        done = self.run_qlora("serve", MODEL, *FAST, f"--port={self.port}",
                              code=1)
        self.assertIn(f"--port {self.port} is in use", done.stderr)
        self.stop()


if __name__ == "__main__":
    unittest.main()
