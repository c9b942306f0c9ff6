#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""headers.py REPOSITORY BUILD COMPILER: our declarations of NVIDIA's libraries
against NVIDIA's own headers and libraries.

  headers    the files of this folder compile: every function, structure and
             value that we declare by hand matches the header, and no header
             has a newer version of a function
  complete   no value or structure of CudaTypes.h and CudnnTypes.h is left out
  libraries  every function that is looked up, and every one that a library of
             the software platform exports, is in NVIDIA's library
  breaks     deliberate changes of a value, a field, an argument, an order, a
             handle and a version are found

With a CUDA toolkit (nvcc), the test fails if cuda.h, cublasLt.h or nvml.h is
missing; scripts/install.sh installs nvml.h into .venv. Any other missing header
is skipped: the remaining checks run, then the test ends as skipped (77).
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

SKIPPED = 77
TYPES = ("CudaTypes.h", "CudnnTypes.h")
TABLES = "runtime/Kernels/Cuda"
CALLERS = (TABLES, "runtime/Device/Cuda")
HEADERS = "tests/cuda/Headers"


@dataclass
class Library:
    source: str       # of this folder
    header: str
    symbols: str      # how the names of its functions look
    files: tuple      # of the library, the best first
    needed: bool      # if there is a toolkit


LIBRARIES = (
    Library("Driver", "cuda.h", r"cu[A-Z]\w+", ("libcuda.so.1", "libcuda.so"),
            True),
    Library("CublasLt", "cublasLt.h", r"cublasLt[A-Z]\w+",
            ("libcublasLt.so.13", "libcublasLt.so.12"), True),
    Library("Cudnn", "cudnn.h", r"cudnn[A-Z]\w+", ("libcudnn.so.9",), False),
    Library("Nccl", "nccl.h", r"nccl[A-Z]\w+", ("libnccl.so.2",), False),
    Library("Nvml", "nvml.h", r"nvml[A-Z]\w+", ("libnvidia-ml.so.1",), True),
)

# Library, file, text, replacement of the text, expected message.
BREAKS = (
    ("Driver", "CudaTypes.h", "kCudaAttributeMajor = 75",
     "kCudaAttributeMajor = 74", "kCudaAttributeMajor: not the value of"),
    ("Driver", "CudaSymbols.inc", "cuMemAlloc_v2, (CUdeviceptr *, size_t)",
     "cuMemAlloc_v2, (CUdeviceptr *)", "cuMemAlloc_v2: not the parameters"),
    ("Driver", "CudaSymbols.inc", "(CUdeviceptr, unsigned char, size_t,",
     "(CUdeviceptr, size_t, unsigned char,",
     "cuMemsetD8Async: not the parameters"),
    ("Driver", "CudaSymbols.inc", "cuGraphLaunch, (CUgraphExec, CUstream)",
     "cuGraphLaunch, (CUgraph, CUstream)", "cuGraphLaunch: not the parameters"),
    ("Driver", "CudaSymbols.inc", "cuMemFree_v2,", "cuMemFree,",
     "cuMemFree: the header has a newer version"),
    ("CublasLt", "CudaTypes.h", "  cublasStatus_t state;\n  float wavesCount;",
     "  float wavesCount;\n  cublasStatus_t state;",
     "cublasLtMatmulHeuristicResult_t::state: not the place"),
    ("CublasLt", "CudaTypes.h", "CUBLAS_STATUS_NOT_SUPPORTED",
     "CUBLAS_STATUS_LICENSE_ERROR", "kCublasNotSupported: not the value of"),
    ("Cudnn", "CudnnTypes.h", "kTensorStrides = 903", "kTensorStrides = 904",
     "kTensorStrides: not the value of"),
    ("Nccl", "CudaTypes.h", "char internal[128]", "char internal[64]",
     "ncclUniqueId: not the size"),
    ("Nvml", "CudaTypes.h", "unsigned gpuInstanceId, computeInstanceId;",
     "unsigned computeInstanceId, gpuInstanceId;",
     "nvmlProcessInfo_t::gpuInstanceId: not the place"),
)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


class Checker:
    def __init__(self, root, build, compiler):
        self.root, self.build, self.compiler = root, build, compiler
        self.errors, self.missing = [], []
        self.toolkit = find_toolkit()
        packages = glob.glob(
            f"{root}/.venv/lib/python3*/site-packages/nvidia/*")
        homes = [self.toolkit] if self.toolkit else []
        self.includes = [f"{home}/include" for home in [*homes, *packages]]
        self.includes += ["/usr/include"]
        self.folders = [f"{home}/{folder}" for home in [*homes, *packages]
                        for folder in ("lib64", "lib", "lib64/stubs")]
        self.folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]

    def find(self, folders, names):
        paths = [os.path.join(folder, name) for name in names
                 for folder in folders]
        return next((path for path in paths if os.path.exists(path)), None)

    def compile(self, library, before=()):
        """Returns the compiler's output, or nothing."""
        folders = [folder for folder in self.includes
                   if folder != "/usr/include" and os.path.isdir(folder)]
        command = [self.compiler, "-std=c++20", "-fsyntax-only", "-Wall",
                   "-Wno-deprecated-declarations"]
        command += [f"-isystem{folder}" for folder in folders]
        command += [f"-I{folder}" for folder in (*before, self.root)]
        done = subprocess.run(
            command + [f"{self.root}/{HEADERS}/{library.source}.cpp"],
            capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def check_headers(self):
        """Returns the libraries whose header is installed and matches."""
        agreeing = []
        for library in LIBRARIES:
            if not self.find(self.includes, [library.header]):
                self.missing.append(library.header)
                if library.needed and self.toolkit:
                    self.errors.append(
                        f"no {library.header} in {self.toolkit} or in "
                        ".venv; scripts/install.sh installs nvml.h, the others "
                        "are the toolkit's")
            elif wrong := self.compile(library):
                self.errors.append(f"{library.header}:\n{wrong}")
            else:
                agreeing.append(library)
        return agreeing

    def check_complete(self):
        """Reports our names that no file of this folder compares."""
        compared = "".join(read(path) for path in
                           glob.glob(f"{self.root}/{HEADERS}/*.cpp"))
        for file in TYPES:
            space, count = "", 0
            for line in read(self.root, TABLES, file).splitlines():
                if found := re.match(r"namespace (cudnn_\w+) {", line):
                    space = found[1] + "::"
                space = "" if line.startswith("} // namespace") else space
                names = [space + name for name in
                         re.findall(r"\b(k[A-Z]\w*) = ", line)]
                names += re.findall(r"^struct (\w+) {", line)
                names += re.findall(r"^#define (\w+)\(X\)", line)
                count += len(names)
                self.errors += [
                    f"{TABLES}/{file}: {name} is compared with no header in "
                    f"{HEADERS}" for name in names
                    if not re.search(rf"\b{name}\b", compared)]
            if count < 20:
                self.errors.append(f"{TABLES}/{file}: only {count} names")

    def wanted(self, library):
        """Returns symbol -> where it is used."""
        names = re.findall(r"^QLORA_\w+\(\w+,\s*(\w+),",
                           read(self.root, TABLES, "CudaSymbols.inc"), re.M)
        for path in (path for folder in CALLERS
                     for path in glob.glob(f"{self.root}/{folder}/*.cpp")):
            names += re.findall(r'findSymbol\([^;"]*"(\w+)"', read(path))
        symbols = {name: "qlora-run looks it up" for name in names
                   if re.fullmatch(library.symbols, name)}
        for path in glob.glob(f"{self.build}/cuda-p*/lib*.so"):
            for name in exports(path):
                if re.fullmatch(library.symbols, name):
                    symbols.setdefault(name, f"{path} exports it")
        return symbols

    def check_libraries(self):
        for library in LIBRARIES:
            wanted = self.wanted(library)
            if not wanted:
                self.errors.append(f"no function of {library.files[0]} is "
                                   "looked up")
            path = self.find(self.folders, library.files)
            if not path:
                continue  # its header has been compared
            there = exports(path)
            self.errors += [f"{path} has no {name}, but {who}"
                            for name, who in sorted(wanted.items())
                            if name not in there]

    def check_breaks(self, agreeing):
        for source, file, old, new, said in BREAKS:
            library = next((each for each in agreeing
                            if each.source == source), None)
            if not library:
                continue
            text = read(self.root, TABLES, file)
            with tempfile.TemporaryDirectory() as folder:
                os.makedirs(f"{folder}/{TABLES}")
                with open(f"{folder}/{TABLES}/{file}", "w",
                          encoding="utf-8") as changed:
                    changed.write(text.replace(old, new))
                heard = self.compile(library, [folder])
            if text.count(old) != 1:
                self.errors.append(f"{file}: '{old}' is not there once")
            elif said not in heard:
                self.errors.append(f"{file}: '{new}' is not found:\n{heard}")


def find_toolkit():
    """Returns the folder of an nvcc with headers next to it, unlike PyPI's."""
    for name in ("nvcc", "/usr/local/cuda/bin/nvcc"):
        nvcc = os.path.realpath(shutil.which(name) or name)
        home = os.path.dirname(os.path.dirname(nvcc))
        if os.path.exists(f"{home}/include/cuda.h"):
            return home
    return None


def exports(path):
    listed = subprocess.run(["nm", "-D", "--defined-only", path], check=True,
                            capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in listed.splitlines()}


def main(root, build, compiler):
    checker = Checker(os.path.abspath(root), os.path.abspath(build), compiler)
    agreeing = checker.check_headers()
    checker.check_complete()
    checker.check_libraries()
    checker.check_breaks(agreeing)
    if checker.errors:
        sys.exit("\n".join(checker.errors))
    if checker.missing:
        print("skipped, there is no", ", ".join(checker.missing))
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main(*sys.argv[1:])
