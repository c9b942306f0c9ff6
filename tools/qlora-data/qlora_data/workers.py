# SPDX-License-Identifier: MIT
"""Runs the parts of a job in several processes and yields results in order.
Worker w of n runs parts w, w + n, ... Each worker has its own pipe. If the
parent is gone, the worker's next write fails and the worker exits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

from .errors import DataError

_MAX_WORKERS = 16


def worker_count(file_bytes: int, wanted: int | None) -> int:
    """Returns `wanted`, else one per CPU; 1 for small files; at most 16."""
    if file_bytes < 1 << 20:
        return 1
    return min(wanted or len(os.sched_getaffinity(0)), _MAX_WORKERS)


def in_order(parts: Callable[[], Iterator[Any]],
             workers: int) -> Iterator[Any]:
    """Yields the results of `parts()` in order. Each of `workers` processes
    calls `parts` and runs every n-th part, a function without arguments. Raises
    the exceptions of the workers here."""
    if workers == 1:
        yield from (part() for part in parts())
        return
    context = multiprocessing.get_context("fork")
    readers, processes = [], []
    try:
        for index in range(workers):
            reader, writer = context.Pipe(duplex=False)
            readers.append(reader)
            processes.append(context.Process(
                target=_work, args=(parts, index, workers, readers, writer),
                daemon=True))
            processes[-1].start()
            writer.close()
        for number in count():
            try:
                result = readers[number % workers].recv()
            except (EOFError, OSError):  # OSError: in the middle of a message
                raise _ended(processes[number % workers]) from None
            if isinstance(result, Exception):
                raise result
            if result is None:
                return
            yield result
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _ended(process) -> Exception:
    """Returns the error for a worker that ended without a result."""
    process.join()
    if process.exitcode == -signal.SIGKILL:  # out of memory, on Linux
        return MemoryError()
    # Report 128 + the signal number, as shells do.
    code = process.exitcode
    if code < 0:
        code = 128 - code
    return DataError(f"a worker ended with code {code}",
                     "run it again with --workers 1 to see the error")


def _work(parts, index: int, workers: int, readers, writer) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    # Close copies of the parent's readers. With them open, another worker's
    # write would not fail after the parent's end.
    for reader in readers:
        reader.close()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        for part in islice(parts(), index, None, workers):
            writer.send(part())
        writer.send(None)
    except (DataError, MemoryError) as error:
        writer.send(error)
    except BrokenPipeError:
        pass
    except Exception:  # a bug here; not all exceptions can be sent
        writer.send(RuntimeError("in a worker: "
                                 + traceback.format_exc().strip()))
