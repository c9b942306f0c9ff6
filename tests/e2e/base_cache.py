#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Quantized bases that are cached between runs change nothing but time.

    base_cache.py --tools build/bin

  same      the run that makes a base, one that maps it and one without a
            cache have the same losses and adapter, on one and two ranks
  damaged   a run warns of a damaged base, replaces it, and trains the same
  read      the second start reads the cached base and no weights of the
            model: about a third of the model's bytes. Both files are dropped
            from the page cache before, so later resident pages were read
  changed   new weights in the same file, with its old time, are loaded
  shared    PSS of two ranks is at most that of one, plus the second rank's
            plan without the base, plus 64 MiB; for mapped bases and for
            bases that were just made
"""

import argparse
import ctypes
import glob
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time

import promises

sys.path.insert(0, os.path.join(promises.HERE, "..", "..", "bench"))
import tensors  # noqa: E402

# 136 million parameters, so that a second copy of the base exceeds 64 MiB.
MODEL = dict(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=8,
    num_attention_heads=16, num_key_value_heads=16, vocab_size=2048,
    tie_word_embeddings=True, rope_theta=1e4,
    architectures=["LlamaForCausalLM"], model_type="llama",
    hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=512,
    torch_dtype="bfloat16")
LENGTH = 32
THIRD = 0.34
HEADERS = 4 << 20  # read ahead around the headers of a model's files
SETTLED = 2.1  # seconds until a file's times are trusted (FileDescriptor.h)
SLACK = 64 << 20


class Runs:
    """Runs of a module with a separate cache of bases."""

    def __init__(self, tools, module, work, flags):
        self.tools, self.module, self.flags = tools, module, flags
        self.cache = os.path.join(work, "bases")
        self.out = os.path.join(work, "out")

    def command(self, *flags, cache=None):
        return (f"{self.tools}/qlora-run", self.module,
                "--verbose", "--overwrite-output-dir", "--output-dir",
                self.out, "--base-cache", cache or self.cache, *self.flags,
                *flags)

    def train(self, *flags, cache=None):
        """Returns the output, losses and adapter."""
        text = promises.call(*self.command(*flags, cache=cache))
        rows = self.metrics()
        return text, ([row["loss"] for row in rows if "loss" in row],
                      promises.read(os.path.join(self.out,
                                                 "adapter_model.safetensors")))

    def metrics(self):
        with open(os.path.join(self.out, "metrics.jsonl")) as lines:
            return [json.loads(line) for line in lines
                    if line.endswith("\n")]

    def bases(self):
        return glob.glob(os.path.join(self.cache, "*"))


def same(tools, folder):
    for name, form, ranks in (("llama-nf4", "tiled", "1"),
                              ("llama-nf4", "per-use", "2"),
                              ("qwen2-nf4", "once", "2")):
        work = os.path.join(folder, name, form)
        os.makedirs(work)
        case = promises.Case(tools, name, work)
        case.compile(f"--dequantize={form}")
        runs = Runs(tools, case.module, work, (
            "--config", case.yaml, "--max-steps", "6", "--gpus", ranks))
        text, made = runs.train()
        assert "mapped from" not in text and len(runs.bases()) == 1, text
        text, mapped = runs.train()
        assert f"mapped from '{runs.bases()[0]}'" in text, text
        text, without = runs.train(cache="none")
        assert "mapped from" not in text, text
        assert made == mapped == without, f"{name}, {form}: runs differ"


def damaged(tools, folder):
    case = promises.Case(tools, "llama-nf4", folder)
    case.compile()
    runs = Runs(tools, case.module, folder, ("--config", case.yaml))
    _, wanted = runs.train("--gpus", "2")
    [path] = runs.bases()
    with open(path, "r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    text, again = runs.train("--gpus", "2")
    assert "damaged" in text and "is quantized again" in text, text
    text, mended = runs.train("--gpus", "2")
    assert "mapped from" in text and "warning" not in text, text
    assert wanted == again == mended, "runs differ"
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)
    text, again = runs.train()
    assert "is quantized again" in text, text


def resident_bytes(path):
    """Returns the resident bytes of a file's pages."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    size = os.path.getsize(path)
    descriptor = os.open(path, os.O_RDONLY)
    base = library.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ,
                        mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
    os.close(descriptor)
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    failed = library.mincore(ctypes.c_void_p(base), ctypes.c_size_t(size),
                             pages)
    library.munmap(ctypes.c_void_p(base), ctypes.c_size_t(size))
    assert not failed, os.strerror(ctypes.get_errno())
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


def drop(path):
    """Drops the file's pages from memory. Pages that are resident later were
    read after this call."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    left = resident_bytes(path)
    assert left < 1 << 20, (
        f"{left} bytes of '{path}' stay in memory; what a start reads shows "
        "on a disk only: set TMPDIR to a folder on one")


class Large:
    """MODEL, compiled once, and two files with different weights for it."""

    def __init__(self, tools, folder):
        self.model = os.path.join(folder, "model")
        tensors.write_random_model(self.model, MODEL, 300)
        self.weights = os.path.join(self.model, "model.safetensors")
        graph, module = (os.path.join(folder, name)
                         for name in ("m.mlir", "t.so"))
        data = os.path.join(folder, "tokens.safetensors")
        tensors.write_tokens(data, MODEL["vocab_size"], 4, 1, LENGTH)
        promises.call(f"{tools}/qlora-import", self.model, "-o", graph)
        self.plan = os.path.join(folder, "plan.json")
        promises.call(f"{tools}/qloracc", "--target=cpu", graph, "-o", module,
                      "--load-in-4bit", "--bnb-4bit-use-double-quant",
                      "--per-device-train-batch-size", "1", "--max-length",
                      str(LENGTH), "--plan-report", self.plan)
        self.runs = Runs(tools, module, folder, (
            "--train-file", data, "--max-steps", "2", "--logging-steps", "1"))
        time.sleep(SETTLED)


def read(large):
    text, made = large.runs.train()
    assert "mapped from" not in text, text
    [base] = large.runs.bases()
    for path in (large.weights, base):
        drop(path)
    text, mapped = large.runs.train()
    assert "mapped from" in text and made == mapped, text
    from_model, from_base = map(resident_bytes, (large.weights, base))
    share = (from_model + from_base) / os.path.getsize(large.weights)
    print(f"     the second start read {share:.1%} of the model's bytes, "
          f"{from_model} of them from its own file")
    assert from_base >= 0.99 * os.path.getsize(base), "the base is not read"
    assert from_model <= HEADERS, f"{from_model} bytes of the model are read"
    assert share <= THIRD, f"{share:.1%} of the model's bytes are read"


def changed(large):
    _, before = large.runs.train()
    times = os.stat(large.weights)
    with open(large.weights, "r+b") as file:
        size = os.path.getsize(large.weights)
        for offset in range(size // 2, size - (1 << 20), 1 << 24):
            file.seek(offset)
            block = file.read(1 << 16)
            file.seek(offset)
            file.write(bytes(byte ^ 0x80 for byte in block))
    os.utime(large.weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    text, after = large.runs.train()
    assert "mapped from" not in text and "two seconds" in text, text
    _, wanted = large.runs.train(cache="none")
    assert after == wanted != before, "old weights were trained"
    time.sleep(SETTLED)
    large.runs.train()
    text, again = large.runs.train()
    assert "mapped from" in text and again == wanted, text


def processes_of(root):
    with open(f"/proc/{root}/task/{root}/children") as file:
        children = [int(word) for word in file.read().split()]
    return [root] + [process for child in children
                     for process in processes_of(child)]


def pss(process):
    with open(f"/proc/{process}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    raise AssertionError("no Pss in smaps_rollup")


def pss_of_run(runs, ranks, cache):
    """Returns the proportional set size (PSS), in bytes, of all processes of a
    run after some steps."""
    path = os.path.join(runs.out, "metrics.jsonl")
    if os.path.exists(path):
        os.remove(path)
    child = subprocess.Popen(
        runs.command("--gpus", str(ranks), "--max-steps", "1000000",
                     cache=cache),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not (os.path.exists(path) and len(runs.metrics()) >= 3):
            assert child.poll() is None, "the run has ended"
            assert time.monotonic() < end, "no step in 120 s"
            time.sleep(0.05)
        return sum(pss(process) for process in processes_of(child.pid))
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def shared(large):
    with open(large.plan) as file:
        plan = json.load(file)
    own = plan["total_bytes"] - plan["arenas"]["frozen"]
    for cache in (None, "none"):
        one, two = (pss_of_run(large.runs, ranks, cache) for ranks in (1, 2))
        print(f"     one rank {one >> 20} MiB, two {two >> 20} MiB, planned "
              f"for one {own >> 20} MiB and {plan['arenas']['frozen'] >> 20}"
              f" MiB of base; {'mapped' if cache is None else 'just made'}")
        assert two <= one + own + SLACK, (one, two, own)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    tools = os.path.abspath(parser.parse_args().tools)
    failures = 0

    def check(function, *arguments):
        nonlocal failures
        try:
            function(*arguments)
            print(f"ok   {function.__name__}", flush=True)
        except AssertionError as error:
            failures += 1
            print(f"FAIL {function.__name__}: {error}", flush=True)

    for function in (same, damaged):
        with tempfile.TemporaryDirectory() as folder:
            check(function, tools, folder)
    with tempfile.TemporaryDirectory() as folder:
        large = Large(tools, folder)
        for function in (read, changed, shared):
            check(function, large)
    print(f"base cache: {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
