# SPDX-License-Identifier: MIT

"""The machine that gpu.sh measures: its GPU and libraries, the unpacked bundle,
weights in scratch space, programs with a deadline, and the GPU's clocks while
they run.
"""

import glob
import hashlib
import json
import os
import shutil
import signal
import site
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time

from gpu_bundle import Failure, reason
from tensors import model_bytes, write_random_model, write_tokens

# Folders of CUDA libraries that the dynamic loader may not search.
LIBRARY_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/cuda/lib64",
                   "/usr/local/cuda-*/lib64", "/usr/lib/wsl/lib")
WHEEL_FOLDERS = ("nvidia/cu*/lib", "nvidia/cublas/lib", "nvidia/cudnn/lib",
                 "nvidia/nccl/lib")
TOOL_FOLDERS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin",
                "/usr/local/cuda-*/bin", "/usr/local/cuda/compute-sanitizer")
# Time for an interrupted run to finish its step.
GRACE_SECONDS = 20


def cuda_folders():
    patterns = list(LIBRARY_FOLDERS)
    for packages in [*site.getsitepackages(), site.getusersitepackages()]:
        patterns += [os.path.join(packages, name) for name in WHEEL_FOLDERS]
    return [folder for pattern in patterns
            for folder in sorted(glob.glob(pattern)) if os.path.isdir(folder)]


class Finished:
    """A program that ended: `lines` are (seconds since its start, text)."""

    def __init__(self, code, lines, start, is_late):
        self.code, self.lines, self.start = code, lines, start
        self.seconds, self.is_late = time.monotonic() - start, is_late

    @property
    def text(self):
        return "\n".join(line for _, line in self.lines)

    def result(self):
        """Returns the last JSON object that the program printed. Skips other
        lines, which libraries may print."""
        objects = [line for _, line in self.lines if line.startswith("{")]
        if not objects:
            raise Failure("it printed no result: "
                          + reason(self.code, self.text))
        return json.loads(objects[-1])

    def failure(self):
        """Returns why the program failed, in one line, or None if it succeeded
        in time."""
        if self.is_late:
            return f"not done after {self.seconds:.0f} s"
        if self.code:
            return reason(self.code, self.text)
        return None


def stop(process):
    """Sends SIGINT to the process group, and SIGKILL after GRACE_SECONDS."""
    for number, seconds in ((signal.SIGINT, GRACE_SECONDS),
                            (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


class Clocks:
    """Samples nvidia-smi every half second, inside a `with` block."""
    FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")

    def __init__(self, machine):
        self.program, self.samples = machine.nvidia_smi(), []

    def __enter__(self):
        if self.program:
            self.process = subprocess.Popen(
                [*self.program, "--query-gpu=" + ",".join(self.FIELDS), "-lms",
                 "500"], stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL)
            self.reader = threading.Thread(target=self.read, daemon=True)
            self.reader.start()
        return self

    def __exit__(self, *_):
        if self.program:
            self.process.terminate()
            self.reader.join(5)
            self.process.wait()

    def read(self):
        for line in self.process.stdout:
            try:
                self.samples.append((time.monotonic(),
                                     [float(x) for x in line.split(",")]))
            except ValueError:  # "[N/A]"
                continue

    def between(self, begin, end):
        """Returns minimum, median and maximum of each field in a time span; {}
        if there is no sample."""
        columns = zip(*(row for at, row in self.samples if begin <= at <= end))
        return {name: [min(column), statistics.median(column), max(column)]
                for name, column in zip(self.FIELDS, columns)}


class Machine:
    """The machine, its GPU and the unpacked bundle. All work must end `limit`
    seconds after the constructor starts."""

    def __init__(self, bundle, limit):
        self.end = time.monotonic() + limit
        self.running = []  # programs, of any thread
        described = os.path.join(bundle, "bundle.json")
        if not os.path.exists(described):
            raise Failure(f"{bundle} is not a bundle (it has no bundle.json); "
                          "make one with gpu.sh --prepare")
        with open(described) as file:
            self.bundle = json.load(file)
        self.shapes, self.arch = self.bundle["shapes"], self.bundle["arch"]
        self.work = os.path.join(tempfile.gettempdir(),
                                 f"qlora-gpu-{os.getuid()}")
        os.makedirs(self.work, mode=0o700, exist_ok=True)
        self.folder = self.unpack(os.path.join(bundle, "bundle.tar.xz"))
        self.environment = {**os.environ,
                            "LD_LIBRARY_PATH": self.library_path()}
        self.card = self.measure_card()

    def left(self):
        return self.end - time.monotonic()

    def unpack(self, archive):
        """Unpacks an archive, unless it was unpacked before. Returns the
        folder."""
        if not os.path.exists(archive):
            raise Failure(f"{archive} is missing; make the bundle again with "
                          "gpu.sh --prepare")
        with open(archive, "rb") as file:
            name = hashlib.sha256(file.read()).hexdigest()[:12]
        folder = os.path.join(self.work, f"bundle-{name}")
        if not os.path.exists(folder):
            shutil.rmtree(folder + ".part", ignore_errors=True)
            with tarfile.open(archive) as file:
                file.extractall(folder + ".part")
            os.rename(folder + ".part", folder)
        return folder

    def library_path(self):
        given = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        return ":".join(filter(None, [os.path.join(self.folder, "lib"),
                                      *given, *cuda_folders()]))

    def program(self, name):
        return os.path.join(self.folder, "bin", name)

    def module(self, number):
        return os.path.join(self.folder, "modules", f"{number}.so")

    def find_tool(self, name):
        places = [place for pattern in TOOL_FOLDERS
                  for place in sorted(glob.glob(pattern))]
        return shutil.which(name) or shutil.which(name,
                                                  path=":".join(places))

    def nvidia_smi(self):
        """Returns the nvidia-smi command for the measured GPU, or None."""
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        program = self.find_tool("nvidia-smi")
        return program and [program, "-i", card or "0",
                            "--format=csv,noheader,nounits"]

    def micro(self, modules, seconds, on_line=None):
        """Runs gpu-micro for at most `seconds`. Returns a Finished."""
        flags = [f"--{key.replace('_', '-')}={value}"
                 for key, value in self.shapes["micro"]["flags"].items()]
        return self.run([self.program("gpu-micro"), *modules, *flags], seconds,
                        on_line=on_line)

    def measure_card(self):
        """Returns the GPU's name, library versions and measured rates. Fails
        without a GPU, driver or cuBLASLt."""
        done = self.micro([], 120)
        if failure := done.failure():
            raise Failure(failure)
        card = done.result()
        if smi := self.nvidia_smi():
            names = ("driver_version", "power.limit", "clocks.max.sm",
                     "clocks.max.mem")
            said = self.run([*smi, "--query-gpu=" + ",".join(names)], 20)
            card.update(zip(names, said.text.split(", ")))
        same_kind = card["arch"] // 10 == int(self.arch) // 10
        if not same_kind or card["arch"] < int(self.arch):
            raise Failure(f"the bundle is for sm_{self.arch}, but the "
                          f"{card['name']} is sm_{card['arch']}: make one "
                          f"with --cuda-arch {card['arch']}")
        return card

    def run(self, command, seconds, environment=None, on_line=None):
        """Runs a program, and stops it after `seconds`. Calls `on_line` with
        each line as it arrives. Returns a Finished."""
        start = time.monotonic()
        seconds = max(1.0, min(seconds, self.left()))
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
            env=environment or self.environment)
        self.running.append(process)
        lines = []

        def read():
            for line in process.stdout:
                lines.append((time.monotonic() - start, line.rstrip("\n")))
                if on_line:
                    on_line(lines[-1][1])
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        is_late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            if process.poll() is None:
                stop(process)
            self.running.remove(process)
        reader.join(5)
        return Finished(process.returncode, lines, start, is_late)

    def stop_running(self):
        """Stops programs that other threads wait for, when the script ends."""
        for process in list(self.running):
            stop(process)

    def model(self, name, seconds):
        """Writes random weights unless they exist, in at most `seconds`.
        Deletes other models' weights if space is short. Returns the folder and
        the seconds that it took."""
        config = self.shapes["models"][name]
        folder = os.path.join(self.work, "models", name)
        needed = model_bytes(config)
        path = os.path.join(folder, "model.safetensors")
        if os.path.exists(path) and os.path.getsize(path) == needed:
            return folder, 0.0
        os.makedirs(folder, exist_ok=True)
        for other in glob.glob(os.path.join(self.work, "models", "*")):
            if other != folder and self.free() < needed + (1 << 28):
                shutil.rmtree(other)
        if self.free() < needed + (1 << 28):
            raise Failure(f"{self.work} has {self.free() / 1e9:.1f} GB free, "
                          f"{name} takes {needed / 1e9:.1f}: set TMPDIR to "
                          "a larger disk")
        start = time.monotonic()
        try:
            write_random_model(folder, config, seconds)
        except TimeoutError as error:
            raise Failure(f"{folder} takes too long to write ({error}): set "
                          "TMPDIR to a faster disk") from error
        return folder, time.monotonic() - start

    def free(self):
        return shutil.disk_usage(self.work).free

    def tokens(self, run):
        """Writes a token file with the micro-batches of one step. Returns its
        path."""
        path = os.path.join(self.work, "tokens.safetensors")
        config = self.shapes["models"][run["model"]]
        write_tokens(path, config["vocab_size"], run["accumulation"],
                     run["batch"], run["length"])
        return path
