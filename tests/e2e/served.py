# SPDX-License-Identifier: MIT

"""A running `qlora serve` of the demo model, with expected answers."""

import json
import os
import re
import signal
import subprocess
import tempfile
import urllib.request

# Small products are faster without threads. Read when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tokenizers import Tokenizer

from golden_case import Failure
from reference_llama import Llama

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
DEMO = os.path.join(ROOT, "examples/demo")
MODEL = os.path.join(DEMO, "model")


class Served:
    """`flags`: of qlora serve, which computes in float32. A context manager
    that ends the server with SIGTERM, and checks that it exits with 0."""

    def __init__(self, tools, *flags, cache=None, **environment):
        self._folder = tempfile.TemporaryDirectory()
        self.log = os.path.join(self._folder.name, "log")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "",
                       "XDG_CACHE_HOME": cache or self._folder.name,
                       **environment}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [os.path.join(tools, "qlora"), "serve", MODEL, "--port=0",
                 "--compute-dtype=float32", *flags], stdout=subprocess.PIPE,
                stderr=log, text=True, env=environment)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"serving (.*) at (http://.*:(\d+))/v1\n", line)
        if not found:
            raise Failure(f"qlora serve did not start: {line}{self.errors()}")
        self.names = found[1].split(", ")
        self.url, self.port = found[2], int(found[3])

    def errors(self):
        with open(self.log) as file:
            return file.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(
            signal.SIGKILL if kind else signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        if not kind and code:
            raise Failure(f"qlora serve exited {code}: {self.errors()}")
        self._folder.cleanup()

    def engine(self):
        """Returns the process id of qlora-run."""
        number = self.process.pid
        with open(f"/proc/{number}/task/{number}/children") as file:
            return int(file.read().split()[0])

    def metrics(self):
        """Returns the values without labels, by their names."""
        with urllib.request.urlopen(self.url + "/metrics") as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines
                 if line[0] != "#" and "{" not in line)}


class Expected:
    """Answers of the demo model, computed without qlora."""

    def __init__(self):
        self.llama = Llama(MODEL)
        self.tokenizer = Tokenizer.from_file(
            os.path.join(MODEL, "tokenizer.json"))
        with open(os.path.join(MODEL, "generation_config.json"),
                  encoding="utf-8") as file:
            ends = json.load(file)["eos_token_id"]
        self.ends = ends if isinstance(ends, list) else [ends]

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def rendered(self, question):
        """Returns the ids of a conversation with one question."""
        return self.ids(f"<|text|><|user|> {question}<|end|><|assistant|>")

    def text(self, prompt, answer):
        """Returns the text of an answer, after the text of the prompt."""
        return self.tokenizer.decode(prompt + answer)[
            len(self.tokenizer.decode(prompt)):]

    def answers(self, prompts, count):
        """Returns (prompt, answer, text) of each prompt whose greedy answer
        does not depend on rounding."""
        found = []
        for prompt in prompts:
            answer = self.llama.greedy(prompt, count, self.ends)
            if answer:
                found.append((prompt, answer, self.text(prompt, answer)))
        return found


def questions(count):
    """Returns the first questions of the demo's data."""
    with open(os.path.join(DEMO, "data/train.jsonl"),
              encoding="utf-8") as file:
        return [json.loads(line)["messages"][0]["content"]
                for line, _ in zip(file, range(count))]
