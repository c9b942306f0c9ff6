# SPDX-License-Identifier: MIT

"""Sends thousands of requests to `qlora serve` from 64 clients, which
disconnect at random. Every answer must be the expected one. In the end no row,
no memory and no descriptor may be left.

    serve_load.py [--requests 10000]
"""

import argparse
import asyncio
import collections
import json
import os
import random
import time

import aiohttp

from golden_case import Failure
from served import ROOT, Expected, Served, questions

CLIENTS = 64
# Growth of memory between the first tenth of the requests and the last.
MIB_OF_GROWTH = 24
SECONDS_OF_AN_ANSWER = 60


class Load:
    def __init__(self, server, answers, count):
        self.server, self.answers, self.count = server, answers, count
        self.seen = collections.Counter()
        self.next = 0
        self.early = None  # memory after a tenth of the requests

    def memory(self):
        """Returns the resident MiB of the server and of its engine."""
        return [resident(self.server.process.pid),
                resident(self.server.engine())]

    async def run(self):
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=SECONDS_OF_AN_ANSWER)
        async with aiohttp.ClientSession(
                self.server.url, connector=connector,
                timeout=timeout) as session:
            await asyncio.gather(*(self.client(session)
                                   for _ in range(CLIENTS)))

    async def client(self, session):
        while self.next < self.count:
            number = self.next
            self.next += 1
            if number == self.count // 10:
                self.early = self.memory()
            await self.request(session, random.Random(number))

    async def request(self, session, chance):
        prompt, answer, text = chance.choice(self.answers)
        body = {"model": "base", "prompt": prompt, "max_tokens": len(answer),
                "stream": chance.random() < 0.5, "logprobs": 0,
                "n": chance.choice([1, 1, 1, 2])}
        leaves = chance.random()
        if leaves < 0.3:  # sometime, perhaps before the answer begins
            task = asyncio.create_task(self.ask(session, body, text))
            await asyncio.wait([task], timeout=chance.expovariate(50))
            kind = "complete" if task.done() else "left"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if task.done() and not task.cancelled() and task.exception():
                raise task.exception()
        elif leaves < 0.4 and body["stream"]:  # within the stream
            kind = "left"
            await self.ask(session, body, text, chance.randrange(1, 6))
        else:
            kind = "complete"
            await self.ask(session, body, text)
        self.seen[kind] += 1

    async def ask(self, session, body, text, events=None):
        """Compares an answer, or leaves after some events."""
        async with session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise Failure(f"status {response.status}: "
                              f"{await response.text()}")
            texts = [""] * body["n"]
            if not body["stream"]:
                for choice in (await response.json())["choices"]:
                    texts[choice["index"]] = choice["text"]
            else:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            texts[choice["index"]] += choice["text"]
                    events = events and events - 1
                    if events == 0:
                        response.close()
                        break
            is_right = all(text.startswith(one) if events == 0 else one == text
                           for one in texts)
            if not is_right:
                raise Failure(f"{body}: got {texts}, expected {text!r}")


def resident(process):
    """Returns the MiB of anonymous memory in use, without files."""
    with open(f"/proc/{process}/status") as file:
        line = next(line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def descriptors(process):
    return len(os.listdir(f"/proc/{process}/fd"))


def cpu_ticks(process):
    with open(f"/proc/{process}/stat") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))


def check_idle(server):
    """Waits until nothing runs, which must be soon."""
    start = time.monotonic()
    names = ("requests_running", "streams_open", "rows_running",
             "rows_waiting")
    while any(server.metrics()["qlora_" + name] for name in names):
        if time.monotonic() - start > 5:
            raise Failure(f"something is left: {server.metrics()}")
        time.sleep(0.05)
    # An engine with a row would compute.
    before = cpu_ticks(server.engine())
    time.sleep(1)
    if cpu_ticks(server.engine()) - before > 5:
        raise Failure("the engine still computes")


def run(server, answers, count):
    check_idle(server)
    processes = [server.process.pid, server.engine()]
    before = list(map(descriptors, processes))
    load = Load(server, answers, count)
    start = time.monotonic()
    asyncio.run(load.run())
    seconds = time.monotonic() - start
    check_idle(server)
    late, after = load.memory(), list(map(descriptors, processes))
    growth = [one - other for one, other in zip(late, load.early)]
    print(f"{count} requests in {seconds:.0f} s, "
          f"{load.seen['complete']} compared, {load.seen['left']} left early; "
          f"MiB of server and engine {late[0]:.0f} and {late[1]:.0f}, grown by "
          f"{growth[0]:.1f} and {growth[1]:.1f}; descriptors {after}, before "
          f"{before}")
    if max(growth) > MIB_OF_GROWTH:
        raise Failure("memory has grown")
    if any(one > other for one, other in zip(after, before)):
        raise Failure("descriptors are left")
    if load.seen["complete"] < count / 2 or load.seen["left"] < count / 10:
        raise Failure("the mixture of requests is wrong")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", default=os.path.join(ROOT, "build/bin"))
    parser.add_argument("--requests", type=int, default=10000)
    arguments = parser.parse_args()
    expected = Expected()
    prompts = [expected.ids(text[:place]) for text in questions(12)
               for place in (12, 30)]
    answers = [found for found in expected.answers(prompts, 10)
               if len(found[1]) > 2]
    try:
        with Served(arguments.tools, "--served-model-name=base",
                    "--generation-length=64", "--threads=1") as server:
            run(server, answers, arguments.requests)
    except Failure as failure:
        raise SystemExit(f"serve_load: {failure}")


if __name__ == "__main__":
    main()
