#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""cuda_units.py REPOSITORY CACHE [--all]: compiles the device code with nvcc.

Every file of runtime/Kernels/Cuda/Device must compile without a warning for the
lowest, the last and one more architecture of --cuda-arch's default (--all: for
each), and to PTX for the lowest. ptxas must report neither spills nor a stack
frame. The PTX of Decode.cu and Quantize.cu must not fuse a product and a sum:
nvcc contracts by default, and decoded or quantized values must have the CPU's
bits.

The folder CACHE remembers successes by the hash of all texts, the compiler and
the flags. Exits with 77 if nvcc is missing.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

ARCHS = ("80", "89", "90", "100", "120")
FEW = ("80", "90", "120")
FLAGS = ("-std=c++20", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v")
DEVICE = "runtime/Kernels/Cuda/Device"
SKIPPED = 77
# Files with results bit-equal to the CPU's, and PTX operations that ensure it.
ROUNDED = {"Decode.cu": ("mul.rn.f32", "add.rn.f32"),
           "Quantize.cu": ("mul.rn.f32", "add.rn.f32", "div.rn.f32")}


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def texts_hash(root, nvcc, archs):
    digest = hashlib.sha256(" ".join(FLAGS + archs).encode())
    digest.update(subprocess.run([nvcc, "--version"], check=True,
                                 capture_output=True).stdout)
    for folder in (DEVICE, "runtime/Kernels/Math", "runtime/ABI",
                   "runtime/Kernels"):
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if name.endswith((".cu", ".cuh", ".h")):
                with open(os.path.join(root, folder, name), "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()[:16]


def compile_unit(nvcc, root, unit, output, *target):
    """Returns the output of nvcc and ptxas; exits the test if nvcc fails."""
    command = [nvcc, *FLAGS, *target, "-I" + root, "-o", output,
               os.path.join(root, DEVICE, unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{unit} {' '.join(target)}:\n{done.stdout}{done.stderr}")
    return done.stderr


def check_registers(unit, arch, report):
    """Returns the functions in ptxas' report that spill or have a stack
    frame."""
    name, errors, functions = "", [], 0
    for line in report.splitlines():
        found = re.search(r"Compiling entry function '(\w+)'", line)
        if found:
            name = found.group(1)
        found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores,"
                          r" (\d+) bytes spill loads", line)
        if found:
            functions += 1
            if found.groups() != ("0", "0", "0"):
                errors.append(f"{unit} sm_{arch} {name}: {line.strip()}")
    if not functions:
        errors.append(f"{unit} sm_{arch}: ptxas reported no function")
    return errors


def check_roundings(unit, ptx):
    """Checks that products, sums and quotients are rounded separately."""
    errors = []
    if re.search(r"\bfma\.\w+(\.ftz)?\.f(32|64)", ptx):
        errors.append(f"{unit}: a product and a sum are fused")
    for operation in ROUNDED[unit]:
        if operation not in ptx:
            errors.append(f"{unit}: no {operation} in its PTX")
    return errors


def main():
    root, cache = os.path.abspath(sys.argv[1]), sys.argv[2]
    archs = ARCHS if "--all" in sys.argv[3:] else FEW
    nvcc = find_nvcc()
    if not nvcc:
        print("skipped: no nvcc; Debian's package is nvidia-cuda-toolkit")
        sys.exit(SKIPPED)
    stamp = os.path.join(cache, texts_hash(root, nvcc, archs))
    if os.path.exists(stamp):
        return
    units = sorted(name for name in os.listdir(os.path.join(root, DEVICE))
                   if name.endswith(".cu"))
    errors = [] if units else ["no device code found"]
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out")
        for unit in units:
            for arch in archs:
                report = compile_unit(nvcc, root, unit, output, "-cubin",
                                      "-arch=sm_" + arch)
                errors += check_registers(unit, arch, report)
            compile_unit(nvcc, root, unit, output, "-ptx", "-arch=compute_80")
            if unit in ROUNDED:
                with open(output, encoding="utf-8") as file:
                    errors += check_roundings(unit, file.read())
    if errors:
        sys.exit("\n".join(errors))
    os.makedirs(cache, exist_ok=True)
    with open(stamp, "w", encoding="utf-8"):
        pass


if __name__ == "__main__":
    main()
