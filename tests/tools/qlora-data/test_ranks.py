# SPDX-License-Identifier: MIT
"""`qlora-data generate --ranks N` starts several engines."""

import json
import os
import signal
import subprocess
import time
import unittest

from fixtures import CHATML
from test_generate import GenerateTest


class RanksTest(GenerateTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.script["gpu_logs"] = True

    def gpus(self):
        """Returns the ids of the requests that each GPU got, by its name."""
        prefix = os.path.basename(self.script["log"]) + "."
        ids = {}
        for name in os.listdir(self.folder):
            if name.startswith(prefix):
                with open(self.path(name), encoding="utf-8") as file:
                    ids[name.removeprefix(prefix)] = [
                        json.loads(line).get("id") for line in file]
        return ids

    def ranks(self, count, *rows, visible=None, flags=(), code=0):
        self.write_data(*rows)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
        if visible is None:
            del environment["CUDA_VISIBLE_DEVICES"]
        self.generate("--input", self.data, "--output", self.output,
                      f"--ranks={count}", *flags, code=code, env=environment)
        return self.results()

    def test_order(self):
        self.script["slots"] = 3
        self.answers("hello " * 9, *["the"] * 500)
        rows = [{"prompt": "a", "name": number} for number in range(900)]
        results = self.ranks(3, *rows)
        self.assertEqual([row["name"] for row in results], list(range(900)))
        ids = self.gpus()
        self.assertEqual(sorted(ids), ["0", "1", "2"])
        self.assertEqual(sorted(sum(ids.values(), [])), list(range(900)))
        # Each rank gets at least the rows that are sent at first.
        self.assertGreaterEqual(min(map(len, ids.values())), 6)

    def test_the_rank_with_the_fewest_rows(self):
        self.answers("the")
        self.ranks(2, *[{"prompt": "a"}] * 4)
        self.assertEqual(self.gpus(), {"0": [0, 2], "1": [1, 3]})

    def test_visible_gpus(self):
        self.answers("the")
        for visible, gpus in (("GPU-a, GPU-b,7", ["GPU-a", "GPU-b"]),
                              ("5", ["", "5"]), ("", [""])):
            with self.subTest(visible):
                self.output = self.path(f"answers.{visible}")
                self.ranks(2, *[{"prompt": "a"}] * 4, visible=visible)
                ids = self.gpus()
                self.assertEqual(sorted(ids), gpus)
                for gpu in gpus:
                    os.remove(f"{self.script['log']}.{gpu}")

    def test_cancelling(self):
        self.answers("hello world" + " the user" * 20)
        self.script["delay"] = 0.01
        self.ranks(2, *[{"prompt": "a"}] * 4, flags=["--stop=world"])
        logs = {}
        for gpu in "01":
            with open(f"{self.script['log']}.{gpu}", encoding="utf-8") as file:
                logs[gpu] = [json.loads(line) for line in file]
        for log in logs.values():
            sent = [line["id"] for line in log if "id" in line]
            cancelled = [line["cancel"] for line in log if "cancel" in line]
            self.assertEqual((len(sent), sorted(cancelled)), (2, sorted(sent)))

    def test_a_rank_that_dies(self):
        self.answers("hello")
        rows = [{"prompt": "a"}] * 200
        whole = self.ranks(3, *rows)
        self.assertEqual(len(whole), 200)
        os.remove(self.output)
        self.script.update(tokens=3, dies_on="1")
        results = self.ranks(3, *rows, code=1)
        first, second = self.errors.splitlines()
        self.assertEqual(first, "qlora-run: error: the fake engine dies")
        self.assertIn("ended with code 3 before the last answer", second)
        self.assertEqual(results, whole[:len(results)])
        self.assertLess(len(results), 200)
        # The next run continues.
        del self.script["tokens"]
        self.assertEqual(self.ranks(2, *rows), whole)

    def test_a_rank_that_cannot_start(self):
        self.write_data({"prompt": "a"})
        self.script["answers"] = []
        command = self.command("--input", self.data, "--ranks=3")
        os.remove(self.path("script.json"))
        done = subprocess.run(command, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with code 1 before the last answer", done.stderr)

    def test_ctrl_c_ends_all_ranks(self):
        self.answers("hello world the user" * 9)
        self.script["delay"] = 0.2
        self.write_data(*[{"prompt": "a"}] * 9)
        run = subprocess.Popen(
            self.command("--input", self.data, "--ranks=3"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(self.gpus()) < 3:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        # The pipes close only once all processes have ended.
        _, errors = run.communicate(timeout=20)
        self.assertEqual((run.returncode, errors), (130, b""))

    def test_a_prompt(self):
        self.assertIn("--ranks needs --input",
                      self.refused("--prompt=a", "--ranks=2"))
        self.assertIn("expects a number above 0",
                      self.refused("--prompt=a", "--ranks=0"))


if __name__ == "__main__":
    unittest.main()
