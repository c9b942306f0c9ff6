# SPDX-License-Identifier: MIT

"""Measures this machine: peak rates, calibration, memory of processes, and the
time to read a file."""

import functools
import json
import os
import subprocess
import time

import ours


def probe():
    """Returns the output of cpu_peak_probe.cpp."""
    return json.loads(ours.call(f"{ours.TOOLS}/cpu-peak"))


@functools.cache
def peer_environment():
    """Returns the environment variables for baseline_cpu.py. On a machine that
    hides the sizes of AMX tiles, PyTorch's oneDNN would execute an illegal
    instruction, so a variable disables AMX. qlora-run avoids AMX there
    automatically."""
    if not probe()["hides_tile_sizes"]:
        return dict(os.environ)
    return {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ}


def peak():
    """Returns the probe's rates in FLOP/s, by operand type."""
    found = probe()
    return {"float32": found["f32_gflops"] * 1e9,
            "bfloat16": found["bf16_gflops"] * 1e9}


def higher(left, right):
    """Returns the higher rates of two probes: noise only lowers a rate."""
    return {name: max(left[name], right[name]) for name in left}


def calibrate(folder, threads=0):
    """Returns the path of device.json, which has the rates of this machine with
    `threads` threads (0: all). Measures only if `folder` has no such file."""
    folder = os.path.join(folder, f"threads-{threads}") if threads else folder
    path = os.path.join(folder, "device.json")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        subprocess.run([f"{ours.TOOLS}/qlora-run", "--calibrate", "--threads",
                        str(threads)], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
    return path


def cpu_name():
    with open("/proc/cpuinfo") as lines:
        return next(line.split(":", 1)[1].strip() for line in lines
                    if line.startswith("model name"))


def read_seconds(path):
    """Returns the seconds to read a file once, from disk or the page cache."""
    start = time.perf_counter()
    buffer = bytearray(1 << 24)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def children(pid):
    """Returns the processes that `pid` has started, and their descendants."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            direct = [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []
    return direct + [other for child in direct for other in children(child)]


def proportional_bytes(pid):
    """Returns a process's PSS in bytes: a page that n processes share counts
    1/n."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return next(int(line.split()[1]) << 10 for line in lines
                        if line.startswith("Pss:"))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return 0


def private_bytes(pid):
    """Returns the resident bytes of a process that no other process maps."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return sum(int(line.split()[1]) << 10 for line in lines
                       if line.startswith("Private_"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def cpu_seconds(pid):
    """Returns the CPU seconds that the threads of a process have used."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return total * 1e-9


def tree_proportional_bytes(pid):
    return sum(map(proportional_bytes, [pid, *children(pid)]))
