#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""nvcc_check.py NVCC ROOT ARCHS FILE.cu...: checks nvcc on device code.

Compiles each file for each architecture (90,compute_80) with the flags that
qloracc uses. Fails on a warning and on registers that spill to memory; prints
how many kernels it saw.
"""

import os
import re
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-Werror", "all-warnings",
         "-Xptxas", "-v"]


def compile_one(nvcc, root, arch, path, folder):
    """Returns the names of the kernels, and their warnings and spills."""
    is_ptx = arch.startswith("compute_")
    command = [nvcc, *FLAGS, "-arch=" + (arch if is_ptx else "sm_" + arch),
               "-ptx" if is_ptx else "-cubin", "-I", root,
               "-o", os.path.join(folder, "image"), path]
    done = subprocess.run(command, capture_output=True, text=True)
    text = done.stdout + done.stderr
    if done.returncode or "warning" in text:
        return [], [f"{path} for {arch}:\n{text}"]
    if is_ptx:
        with open(os.path.join(folder, "image")) as file:
            return re.findall(r"\.entry (\w+)", file.read()), []
    kernels, errors = [], []
    for name, stack, stores, loads in re.findall(
            r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, "
            r"(\d+) bytes spill stores, (\d+) bytes spill loads", text, re.S):
        kernels.append(name)
        if int(stack) or int(stores) or int(loads):
            errors.append(f"{name} for {arch}: {stack} bytes of stack, "
                          f"{stores} stored and {loads} loaded by spills")
    return kernels, errors


def main(nvcc, root, archs, paths):
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            with open(path) as file:
                expected = file.read().count("__global__")
            for arch in archs.split(","):
                kernels, found = compile_one(nvcc, root, arch, path, folder)
                errors += found
                if not found and len(kernels) != expected:
                    errors.append(f"{path} for {arch}: {len(kernels)} kernels "
                                  f"in the image, {expected} in the text")
            print(f"{os.path.basename(path)}: {expected} kernels")
    for error in errors:
        print("error:", error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
