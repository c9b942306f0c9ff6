#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""lanes.py N: runs the commands of standard input, N at a time.

One shell command per line, in order; empty lines and comments are skipped. A
command's output is printed when it ends, after a line with the seconds of its
start and end. The first failure ends the other commands and this script.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time


class Lanes:
    def __init__(self, commands):
        self.commands = iter(commands)
        self.lock = threading.Lock()
        self.running = set()
        self.code = 0
        self.start = time.monotonic()

    def next(self):
        """Returns a started command, its output, and when; None at the end."""
        with self.lock:
            command = None if self.code else next(self.commands, None)
            if command is None:
                return None
            said = tempfile.TemporaryFile()
            process = subprocess.Popen(
                ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True)
            self.running.add(process)
            return command, process, said, time.monotonic() - self.start

    def end(self, code):
        """Ends all commands with the code of the first failure."""
        self.code = self.code or code
        for process in self.running:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass

    def work(self):
        while begun := self.next():
            command, process, said, start = begun
            code = process.wait()
            with self.lock:
                self.running.discard(process)
                if code and self.code:
                    return  # ended because another failed
                print(f"+ {start:.0f}s to {time.monotonic() - self.start:.0f}s: "
                      f"{command}", flush=True)
                said.seek(0)
                sys.stdout.buffer.write(said.read())
                sys.stdout.flush()
                if code:
                    print(f"lanes: exit status {code} of: {command}", flush=True)
                    self.end(code)


def main():
    lines = (line.strip() for line in sys.stdin)
    lanes = Lanes([line for line in lines if line and not line.startswith("#")])

    def stop(number, _):
        lanes.end(128 + number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    threads = [threading.Thread(target=lanes.work)
               for _ in range(int(sys.argv[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lanes.code if 0 <= lanes.code < 256 else 1


if __name__ == "__main__":
    sys.exit(main())
