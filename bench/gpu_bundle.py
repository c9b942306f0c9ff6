# SPDX-License-Identifier: MIT

"""gpu.sh --prepare: on a machine with LLVM and a CUDA compiler, makes the files
that a machine with a GPU needs. The folder gets two files:

  bundle.json     the content, and the cost of compiling it
  bundle.tar.xz   bin/       qlora-run, KernelTests, gpu-micro
                  lib/       their shared libraries, except the C library's
                  cubins/    the device units, for KernelTests
                  goldens/   NAME.so and NAME-bf16.so
                  nccl/      LAYOUT/CASE.so
                  modules/   NUMBER.so, one for each entry of `runs`
"""

import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time

from tensors import write_sparse_model

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDENS = os.path.join(REPOSITORY, "tests", "Inputs", "goldens")
UNITS = os.path.join(REPOSITORY, "runtime", "Kernels", "Cuda", "Device")
CARRIED = ("qlora-run", "KernelTests", "gpu-micro")
NEEDED = CARRIED + ("qlora-import", "qloracc")
# Libraries of the C library, which each machine has. They are not bundled.
C_LIBRARY = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|resolv|util)\.so")
LIMIT_BYTES = 60 << 20
SMALLEST = re.compile(r"the smallest plan needs .*\((\d+) bytes\)")


class Failure(Exception):
    """An error with a message of one line for the user."""


def reason(code, text):
    """Returns why a program failed: its first error, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if match := re.search(r"\berror: (.*)", line, re.I):
            return match.group(1)[:400]
    return f"exit code {code}: {lines[-1][:300] if lines else 'no output'}"


def call(*words):
    """Runs a command. Returns its seconds."""
    start = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{os.path.basename(words[0])}: "
                      + reason(done.returncode, done.stdout + done.stderr))
    return time.perf_counter() - start


def find_compiler(name):
    found = shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")
    if not found:
        raise Failure(f"no CUDA compiler '{name}' here; Debian's package is "
                      "nvidia-cuda-toolkit, or name one with --cuda-compiler")
    return os.path.abspath(found)


def check_tools(tools):
    missing = [name for name in NEEDED
               if not os.access(os.path.join(tools, name), os.X_OK)]
    if missing:
        raise Failure(f"{tools} has no {', '.join(missing)}; run "
                      "scripts/build.sh, or name a folder with --tools")


def drop_run_path(path):
    """Drops a program's run path, so that it uses the libraries of the machine
    that runs it. The run path of KernelTests leads to the software CUDA
    platform, which would hide a GPU."""
    listed = subprocess.run(["readelf", "-d", path], check=True, text=True,
                            capture_output=True).stdout
    if found := re.search(r"R(?:UN)?PATH\).*\[(.+)\]", listed):
        text = found.group(1).encode() + b"\0"
        with open(path, "rb+") as file:
            data = file.read()
            file.seek(data.index(text))
            file.write(bytes(len(text)))


def copy_programs(tools, folder):
    os.makedirs(os.path.join(folder, "bin"))
    os.makedirs(os.path.join(folder, "lib"))
    for name in CARRIED:
        path = os.path.join(tools, name)
        copied = os.path.join(folder, "bin", name)
        call("strip", "-o", copied, path)
        drop_run_path(copied)
        listed = subprocess.run(["ldd", path], check=True, text=True,
                                capture_output=True).stdout
        if missing := re.search(r"(\S+) => not found", listed):
            raise Failure(f"{path} needs {missing.group(1)}, which is not "
                          "here")
        for library, place in re.findall(r"(\S+) => (/\S+)", listed):
            if not C_LIBRARY.match(library):
                shutil.copy(place, os.path.join(folder, "lib", library))


class Builder:
    """Compiles modules and device code, with one cache for all kernels."""

    def __init__(self, tools, compiler, arch, work):
        self.tools, self.compiler, self.arch = tools, compiler, arch
        self.work, self.imported = work, {}
        self.cache = os.path.join(work, "cache")

    def units(self, folder):
        os.makedirs(folder)
        for name in sorted(os.listdir(UNITS)):
            if name.endswith(".cu"):
                call(self.compiler, "-std=c++20", "-O3",
                     f"-arch=sm_{self.arch}", "-cubin", f"-I{REPOSITORY}",
                     "-o", os.path.join(folder, name[:-3] + ".cubin"),
                     os.path.join(UNITS, name))

    def import_model(self, folder, flags):
        model = (folder, *flags)
        if model not in self.imported:
            path = os.path.join(self.work, f"m{len(self.imported)}.mlir")
            call(f"{self.tools}/qlora-import", folder, "-o", path, *flags)
            self.imported[model] = path
        return self.imported[model]

    def compile(self, folder, module, flags, cache=None, import_flags=()):
        """Compiles a model folder to `module`. `flags` maps option names to
        values. Returns the seconds."""
        words = [f"--{key.replace('_', '-')}={text(value)}"
                 for key, value in flags.items()]
        return call(f"{self.tools}/qloracc",
                    self.import_model(folder, import_flags), "-o", module,
                    "--target", "cuda", "--cuda-arch", self.arch,
                    "--cuda-compiler", self.compiler, "--cache-dir",
                    cache or self.cache, *words)


def text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def golden_model(name):
    """Returns a case's train.yaml, its model and the importer's flags."""
    yaml = os.path.join(GOLDENS, name, "train.yaml")
    with open(os.path.join(GOLDENS, name, "case.json")) as file:
        import_flags = json.load(file).get("import_flags", [])
    with open(yaml) as lines:
        model = json.loads(next(
            line.split(":", 1)[1] for line in lines
            if line.startswith("model_name_or_path:")))
    model = os.path.normpath(os.path.join(GOLDENS, name, model))
    return yaml, model, import_flags


def prepare_goldens(builder, shapes, folder):
    os.makedirs(folder)
    for name in shapes["goldens"]:
        yaml, model, import_flags = golden_model(name)
        for suffix, compute in (("", {}),
                                ("-bf16", {"compute_dtype": "bfloat16"})):
            seconds = builder.compile(
                model, os.path.join(folder, f"{name}{suffix}.so"),
                {"config": yaml, **compute}, import_flags=import_flags)
            print(f"golden {name}{suffix}: {seconds:.1f} s", flush=True)


def prepare_layouts(builder, shapes, folder):
    """Compiles the modules of the part `nccl` to LAYOUT/CASE.so."""
    for name, layout in shapes["nccl"].items():
        os.makedirs(os.path.join(folder, name))
        yaml, model, import_flags = golden_model(layout["case"])
        seconds = builder.compile(
            model, os.path.join(folder, name, layout["case"] + ".so"),
            {"config": yaml, **layout.get("compile", {})},
            import_flags=import_flags)
        print(f"layout {name}: {seconds:.1f} s", flush=True)


def settings(shapes, run):
    """Returns the options of qloracc for a run."""
    return {**shapes["compile"], "max_length": run["length"],
            "per_device_train_batch_size": run["batch"],
            **run.get("compile", {})}


def smallest_plan(builder, folder, flags, work):
    """Returns the smallest limit that the compiler accepts, in bytes."""
    try:
        builder.compile(folder, os.path.join(work, "none.so"),
                        {**flags, "memory_limit": "1B"})
    except Failure as failure:
        if found := SMALLEST.search(str(failure)):
            return found.group(1) + "B"
        raise
    raise Failure("a plan of one byte was accepted")


def compile_run(builder, folder, module, flags, work, is_timed):
    """Compiles a run. Returns its record for bundle.json."""
    report = os.path.join(work, "report.json")
    if flags.get("memory_limit") == "smallest":
        flags["memory_limit"] = smallest_plan(builder, folder, flags, work)
    flags["report"] = report
    own_cache = tempfile.mkdtemp(dir=work) if is_timed else None
    record = {"compile_seconds": builder.compile(folder, module, flags,
                                                 own_cache)}
    if is_timed:
        record["cached_compile_seconds"] = builder.compile(folder, module,
                                                           flags, own_cache)
    with open(report) as file:
        record["planned_bytes"] = json.load(file)["total_bytes"]
    return record


def prepare_runs(builder, shapes, folder, work):
    """Compiles all runs. Returns one record per run; if compiling failed, the
    record has only the reason."""
    os.makedirs(folder)
    records = []
    for number, run in enumerate(shapes["runs"]):
        model = os.path.join(work, "models", run["model"])
        if not os.path.exists(model):
            write_sparse_model(model, shapes["models"][run["model"]])
        title = f"{run['part']} {run['name']}"
        try:
            record = compile_run(
                builder, model, os.path.join(folder, f"{number}.so"),
                settings(shapes, run), work, run["part"] == "g7")
            print(f"{title}: {record['compile_seconds']:.1f} s, plan "
                  f"{record['planned_bytes'] / 2**30:.2f} GiB", flush=True)
        except Failure as failure:
            record = {"not_planned": str(failure)}
            print(f"{title}: not planned: {failure}", flush=True)
        records.append(record)
    return records


def commit():
    done = subprocess.run(["git", "-C", REPOSITORY, "describe", "--always",
                           "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def write_archive(folder, path):
    """Archives a folder. The same files give the same bytes. The modules share
    device code; the LZMA dictionary is large enough to store it once."""
    def plain(member):
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 256 << 20}]
    with (lzma.open(path, "wb", filters=filters) as packed,
          tarfile.open(fileobj=packed, mode="w") as archive):
        for name in sorted(os.listdir(folder)):
            archive.add(os.path.join(folder, name), name, filter=plain)


def prepare(target, tools, compiler, arch, shapes):
    """Fills the folder `target`; `shapes` has the form of gpu_shapes.json."""
    check_tools(tools)
    compiler = find_compiler(compiler)
    load = round(os.getloadavg()[0], 1)
    os.makedirs(target, exist_ok=True)
    if shapes["goldens"] == "*":
        shapes["goldens"] = sorted(set(os.listdir(GOLDENS))
                                   - set(shapes["edges"]))
    with tempfile.TemporaryDirectory() as work:
        staged = os.path.join(work, "bundle")
        os.makedirs(staged)
        builder = Builder(tools, compiler, arch, work)
        copy_programs(tools, staged)
        builder.units(os.path.join(staged, "cubins"))
        records = prepare_runs(builder, shapes,
                               os.path.join(staged, "modules"), work)
        prepare_goldens(builder, shapes, os.path.join(staged, "goldens"))
        prepare_layouts(builder, shapes, os.path.join(staged, "nccl"))
        write_archive(staged, os.path.join(target, "bundle.tar.xz"))
    described = {"arch": arch, "commit": commit(), "shapes": shapes,
                 "prepared": time.strftime("%Y-%m-%d"),
                 "build_cores": os.cpu_count(), "build_load": load,
                 "runs": records}
    with open(os.path.join(target, "bundle.json"), "w") as file:
        json.dump(described, file, indent=1)
    size = sum(os.path.getsize(os.path.join(target, name))
               for name in ("bundle.json", "bundle.tar.xz"))
    print(f"{target}: {size / 2**20:.1f} MiB for sm_{arch}")
    if size > LIMIT_BYTES:
        raise Failure(f"that is more than {LIMIT_BYTES >> 20} MiB")
