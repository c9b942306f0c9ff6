#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""fake_engine.py SCRIPT.json: speaks the protocol of `qlora-run --generate`
(runtime/Session/GenerationSession.h), with tokens from the script:

    answers    list of lists of token ids; row i gets list i, or the last one
    slots      rows at a time (default 2)
    capacity   tokens of a row (default 64)
    adapters   names of adapters that rows choose (default: none)
    has_base   whether rows may use none of them (default true)
    refuses    id of a row that gets an error
    delay      seconds before each token (default 0)
    load       seconds until it is ready (default 0)
    starts     file that it writes when it starts (default: none)
    tokens     number of tokens after which it dies (default: never)
    log        file that gets all requests, one a line
    gpu_logs   whether each process has a log, LOG.GPU (default false)
    dies_on    GPU of the only process that dies (default: all of them)
    scores     whether token t has the log-probability -(t % 7) / 10 instead of
               -0.5 (default false)

Rows run at the same time, and the newest row gets its token first.
"""

import json
import os
import queue
import signal
import sys
import threading
import time


class FakeEngine:
    def __init__(self, script):
        self.script = script
        self.answers = script["answers"]
        self.waiting, self.running = [], {}
        self.sent = 0
        self.gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.log = script.get("log")
        if script.get("gpu_logs"):
            self.log += f".{self.gpu}"
        self.last = script.get("tokens")
        if script.get("dies_on", self.gpu) != self.gpu:
            self.last = None

    def write(self, value):
        print(json.dumps(value), flush=True)

    def take(self, line):
        """Reads a request."""
        if self.log:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(line)
        request = json.loads(line)
        if "cancel" in request:
            self.running.pop(request["cancel"], None)
            self.waiting = [row for row in self.waiting
                            if row["id"] != request["cancel"]]
            return
        length, capacity = len(request["input_ids"]), self.capacity()
        if request["id"] == self.script.get("refuses"):
            self.write({"id": request["id"], "error": "refused"})
        elif length + (request.get("max_new_tokens") != 0) > capacity:
            self.write({"id": request["id"], "error": f"the prompt has {length}"
                        f" tokens, but a row has at most {capacity}"})
        else:
            self.waiting.append(request)

    def capacity(self):
        return self.script.get("capacity", 64)

    def step(self):
        """Sends a token of each running row."""
        while self.waiting and len(self.running) < self.script.get("slots", 2):
            request = self.waiting.pop(0)
            row = min(request["id"], len(self.answers) - 1)
            self.running[request["id"]] = [request, list(self.answers[row])]
        for number in sorted(self.running, reverse=True):
            self.send(*self.running[number])

    def send(self, request, tokens):
        if self.sent == self.last:
            print("qlora-run: error: the fake engine dies", file=sys.stderr)
            sys.exit(3)
        time.sleep(self.script.get("delay", 0))
        if request.pop("prompt_logprobs", False):
            line = {"id": request["id"], "prompt_logprobs": [None] + [
                self.scores(request, token)
                for token in request["input_ids"][1:]]}
            if request.get("max_new_tokens") == 0:
                del self.running[request["id"]]
                self.write({**line, "finish": "length"})
                return
            self.write(line)
        token = tokens.pop(0)
        line = {"id": request["id"], "token": token}
        if request["logprobs"]:
            line["logprobs"] = self.scores(request, token)
        request["input_ids"].append(token)
        request["max_new_tokens"] = request.get("max_new_tokens", 99) - 1
        if token in request["eos_token_id"]:
            line["finish"] = "stop"
        elif (not tokens or not request["max_new_tokens"]
              or len(request["input_ids"]) >= self.capacity()):
            line["finish"] = "length"
        if "finish" in line:
            del self.running[request["id"]]
        self.write(line)
        self.sent += 1

    def scores(self, request, token):
        own = -(token % 7) / 10 if self.script.get("scores") else -0.5
        count = request.get("logprobs", 0)
        return [[token, own]] + [[other, -1.0 - other]
                                 for other in range(count)]

    def run(self):
        if "starts" in self.script:
            with open(self.script["starts"], "w", encoding="utf-8"):
                pass
        time.sleep(self.script.get("load", 0))
        self.write({"ready": {"slots": self.script.get("slots", 2),
                              "capacity": self.capacity(),
                              "vocabulary": 999,
                              "adapters": self.script.get("adapters", []),
                              "base": self.script.get("has_base", True)}})
        lines = queue.Queue()

        def read():
            for line in sys.stdin:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        is_open = True
        while is_open or self.waiting or self.running:
            is_busy = bool(self.waiting or self.running)
            while is_open and not (is_busy and lines.empty()):
                line = lines.get()
                is_open = line is not None
                if is_open:
                    self.take(line)
                is_busy = True
            self.step()


if __name__ == "__main__":
    # Like other programs, it ends when its output is closed.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with open(sys.argv[1], encoding="utf-8") as script:
        FakeEngine(json.load(script)).run()
