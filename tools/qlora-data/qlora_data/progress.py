# SPDX-License-Identifier: MIT
"""Shows progress: lines for another program, one line that changes on a
terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN = 0.1
_SECONDS_BEFORE_THE_FIRST = 1.0
_MIB = 1 << 20


@contextmanager
def progress_writer(for_program: bool,
                    line_of: Callable[[int, int, float], str] | None = None
                    ) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that takes the bytes done and the bytes in total, or
    other amounts with `line_of`, which also gets the seconds."""
    line_of = line_of or _line
    if not for_program and not sys.stderr.isatty():
        yield lambda done, total: None
        return
    start = time.monotonic()
    shown = 0.0

    def write(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < _SECONDS_BETWEEN and done < total:
            return
        if for_program:
            print(f"qlora-data: progress: {done} {total}", file=sys.stderr,
                  flush=True)
        elif now - start > _SECONDS_BEFORE_THE_FIRST:
            print(f"\r{line_of(done, total, now - start)}\x1b[K",
                  end="", file=sys.stderr, flush=True)
        shown = now

    try:
        yield write
    finally:
        if not for_program and shown - start > _SECONDS_BEFORE_THE_FIRST:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _line(done: int, total: int, seconds: float) -> str:
    left = seconds * (total - done) / max(done, 1)
    return (f"tokenising {100 * done / max(total, 1):3.0f} %  "
            f"{done / _MIB:.0f} of {total / _MIB:.0f} MiB  "
            f"{done / _MIB / seconds:.1f} MiB/s  "
            f"{int(left) // 60}:{int(left) % 60:02d} left")
