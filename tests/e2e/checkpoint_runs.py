# SPDX-License-Identifier: MIT

"""Runs the demo, interrupts and resumes it, and compares the results. Used by
resume_exact.py, resume_changed.py, hosts.py, jobset.py, slurm.py,
supervision.py and watching.py."""

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "..", "..", "examples", "demo")
# Metrics that may differ between two runs with the same losses.
TIMES = ("step_time", "exposed_communication", "tokens_per_second",
         "memory_bytes", "eval_runtime",
         "rank_memory_bytes", "rank_step_time", "rank_gpu_utilization",
         "rank_gpu_power_watts", "train_runtime", "checkpoint_runtime",
         "train_steps_per_second", "train_tokens_per_second",
         "peak_memory_bytes", "predicted_peak_memory_bytes", "planned_bytes")
SAVE_STEPS = 7


class Failure(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failure(" ".join(str(part) for part in what))


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items()
                if key not in TIMES and key != "seconds"}
    return value


def metrics_of(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        return [without_times(json.loads(line)) for line in file]


def read_state(path):
    """Returns the tensors of a checkpoint file as bytes, and its metadata."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    state = without_times(json.loads(header.pop("__metadata__")["state"]))
    return header, state, data[8 + size:]


def steps_of(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    return sorted(int(name.split("-")[1]) for name in names
                  if re.fullmatch(r"checkpoint-\d+", name))


def verify(folder):
    """Checks a checkpoint's manifest with code independent of the runtime."""
    with open(os.path.join(folder, "MANIFEST.json")) as file:
        manifest = json.load(file)
    for name, facts in manifest["files"].items():
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        check(len(data) == facts["bytes"] and
              hashlib.sha256(data).hexdigest() == facts["sha256"],
              folder, name, "is not what its manifest says")
    check(set(os.listdir(folder)) == {*manifest["files"], "MANIFEST.json"},
          folder, "has other files than its manifest")


def contents(folder):
    """Returns everything in a run's folder that must be equal after the run was
    resumed."""
    last = os.path.join(folder, f"checkpoint-{steps_of(folder)[-1]}")
    with open(os.path.join(folder, "adapter_model.safetensors"), "rb") as file:
        adapter = file.read()
    return (adapter, read_state(os.path.join(last, "state.safetensors")),
            metrics_of(folder))


class Runs:
    """Runs of the demo in separate folders."""

    def __init__(self, tools, work, steps):
        self.tools, self.work, self.steps = tools, work, steps
        model = os.path.join(DEMO, "model")
        self.compile("train.so", model)
        self.references = {}

    def compile(self, name, model, *flags):
        graph = os.path.join(self.work, name + ".mlir")
        program = os.path.join(self.work, name)
        for command in (["qlora-import", model, "-o", graph],
                        ["qloracc", "--target=cpu",
                         graph, "-o", program, "--config",
                         os.path.join(DEMO, "train.yaml"), *flags]):
            command[0] = os.path.join(self.tools, command[0])
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return program

    def folder(self, name):
        path = os.path.join(self.work, name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def command(self, folder, *flags, program="train.so"):
        return [os.path.join(self.tools, "qlora-run"),
                os.path.join(self.work, program), "--config",
                os.path.join(DEMO, "train.yaml"), "--max-steps",
                str(self.steps), "--save-steps", str(SAVE_STEPS),
                "--logging-steps", "4", "--threads", "1", "--output-dir",
                folder, *flags]

    def compile_for_cards(self, program, *flags):
        self.compile(program, os.path.join(DEMO, "model"), "--target", "cuda",
                     "--cuda-arch", "90", "--cuda-compiler",
                     os.path.join(HERE, "..", "cuda", "host-nvcc"), *flags)

    def cards(self, count):
        """Returns an environment with `count` GPUs of the software CUDA
        platform."""
        return {"QLORA_TEST_CUDA_DEVICES": ",".join(["sm_90:4096"] * count),
                "LD_LIBRARY_PATH": os.path.join(os.path.dirname(self.tools),
                                                "cuda-platform")}

    def run(self, folder, *flags, environment=None, expect=0, **named):
        done = subprocess.run(
            self.command(folder, *flags, **named), capture_output=True,
            text=True, env={**os.environ, **(environment or {})})
        if expect is not None:
            check(done.returncode == expect, "exit code", done.returncode,
                  "instead of", expect, "\n", done.stdout, done.stderr)
        return done

    def reference(self, *flags):
        if flags not in self.references:
            folder = self.folder("reference" + "".join(flags))
            self.run(folder, *flags)
            self.references[flags] = contents(folder)
        return self.references[flags]

    def finish(self, folder, *flags):
        """Resumes a run to its end, and checks that the result is that of an
        uninterrupted run."""
        done = self.run(folder, "--resume-from-checkpoint", "true", *flags)
        self.compare(folder, *flags)
        return done

    def compare(self, folder, *flags):
        names = ("the adapter", "the state", "the metrics")
        for name, own, expected in zip(names, contents(folder),
                                       self.reference(*flags)):
            check(own == expected, folder, name, "of the resumed run differs",
                  own if name == "the metrics" else "",
                  expected if name == "the metrics" else "")


def lines_of_trouble(text):
    return [line for line in text.splitlines()
            if re.match(r"qlora-run: (warning|error)", line)]


def run_parts(parts, arguments):
    """Runs the named parts, or all."""
    try:
        with tempfile.TemporaryDirectory() as work:
            runs = Runs(os.path.abspath(arguments.tools), work,
                        arguments.steps)
            for part in parts:
                if not arguments.parts or part.__name__ in arguments.parts:
                    part(runs, arguments)
    except Failure as failure:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {failure}")
