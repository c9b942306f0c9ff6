#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""limits.py REPOSITORY: checks rules that a reader of the sources can rely on.

No file over 500 lines (over 350 is printed) and no function over 80; line 1 is
the licence, and one of the next lines says what the file is for; every pass
has a description, a file and a test of its own name; layers include only lower
layers; no TODO without a number and no path of one machine.
"""

import glob
import os
import re
import sys

SOURCES = (".h", ".cpp", ".td", ".py", ".def", ".c")
MAX_LINES, AIM_LINES, MAX_FUNCTION = 500, 350, 80
FOLDERS = ("compiler", "dialects", "frontend", "runtime", "tools", "tests",
           "bench")
# The modules of runtime/. A module includes only itself and earlier modules.
ROOMS = ("ABI", "Base", "Options", "Kernels", "Module", "Device", "Generate",
         "Ranks", "Weights", "Gguf", "Data", "Predict", "Watch", "Checkpoint",
         "Session", "Extras", "Export")
# The only file that may call dump() of the JSON library, which throws on bytes
# that are not UTF-8.
DUMPING = "runtime/Base/JsonText.h"
# The only files that may open an OpenMP parallel region: the loops of our
# kernels, and the caller of generated C.
PARALLEL = ("runtime/Kernels/Cpu/Parallel.h",
            "runtime/Device/Cpu/CpuDevice.cpp")
ALLOWED_BELOW = {
    "dialects": ("dialects", "runtime/ABI", "runtime/Kernels/KernelTable.h",
                 "runtime/Kernels/Math/CacheInt8.h",
                 "runtime/Kernels/Math/Stored.h"),
    "runtime": ("runtime",),
}


def sources(root):
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                if name.endswith(SOURCES) and "Inputs" not in path:
                    yield os.path.relpath(os.path.join(path, name), root)


def check_file(root, path, errors):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        lines = file.read().splitlines()
    if not lines or "SPDX-License-Identifier: MIT" not in "".join(lines[:2]):
        errors.append(f"{path}: line 1 is not the licence")
    if not any(len(line.strip("/*# \"'")) > 15 for line in lines[1:8]):
        errors.append(f"{path}: does not say what it is for")
    if len(lines) > MAX_LINES:
        errors.append(f"{path}: {len(lines)} lines, at most {MAX_LINES}")
    elif len(lines) > AIM_LINES:
        print(f"note: {path} has {len(lines)} lines; {AIM_LINES} is the aim")
    if path.startswith("runtime") and path not in PARALLEL and any(
            line.startswith("#pragma omp parallel") for line in lines):
        errors.append(f"{path}: a parallel region of its own; the loops of "
                      f"{PARALLEL[0]} let no exception out of one")
    check_functions(path, lines, errors)
    check_includes(path, lines, errors)
    for number, line in enumerate(lines, 1):
        if re.search(r"\bTODO\b(?!\(#\d+\))", line) and "lint" not in path:
            errors.append(f"{path}:{number}: a TODO without a number")
        if (re.search(r"(\.|->)dump\(", line) and path != DUMPING and
                path.endswith((".h", ".cpp"))):
            errors.append(f"{path}:{number}: dump() throws on bytes that are "
                          f"not UTF-8; use {DUMPING}")
        if re.search(r"(?<![\w./])/(work|root|tmp/w)/",
                     line) and "lint" not in path:
            errors.append(f"{path}:{number}: a path of one machine")


def check_functions(path, lines, errors):
    """Checks the lengths of functions that begin at the left margin, up to
    '}'."""
    if not path.endswith((".h", ".cpp", ".c")):
        return
    start, is_open = None, False
    for number, line in enumerate(lines, 1):
        if start is None:
            if "(" in line and re.match(
                    r"(?!class|struct|namespace|INSTANTIATE)[A-Za-z]", line):
                start, is_open = number, False
            else:
                continue
        if line.startswith("}"):
            if number - start + 1 > MAX_FUNCTION:
                errors.append(f"{path}:{start}: a function of "
                              f"{number - start + 1} lines, at most "
                              f"{MAX_FUNCTION}")
            start = None
        elif line.endswith("{"):
            is_open = True
        elif not is_open and line.endswith((";", "}")):
            start = None  # a declaration, or one line


def check_includes(path, lines, errors):
    layer = path.split(os.sep)[0]
    if path.startswith("compiler/Support"):
        if any('"mlir/' in line for line in lines if "#include" in line):
            errors.append(f"{path}: Support knows no MLIR")
    for line in lines:
        match = re.match(r'#include "([^"]+)"', line)
        if not match or layer not in ALLOWED_BELOW:
            continue
        target = match.group(1)
        foreign = target.split("/")[0] in FOLDERS or (
            layer == "runtime" and target.startswith(("mlir/", "llvm/")))
        if foreign and not target.startswith(ALLOWED_BELOW[layer]):
            errors.append(f"{path}: {layer} must not include {target}")
        if layer == "runtime" and target.startswith("runtime/"):
            check_rooms(path, target, errors)


def check_rooms(path, target, errors):
    room, other = (name.split("/")[1] for name in (path, target))
    if ROOMS.index(other) > ROOMS.index(room):
        errors.append(f"{path}: {room} must not include {target}, which is "
                      "to its right in runtime/README.md")


def check_passes(root, errors):
    text = ""
    for path in sorted(glob.glob(os.path.join(root, "compiler/**/*Passes.td"),
                                 recursive=True)):
        with open(path) as file:
            text += file.read()
    for name, mnemonic in re.findall(r'def (\w+) *: *Pass<"([a-z0-9-]+)"',
                                     text):
        body = text[text.index(f"Pass<\"{mnemonic}\""):]
        if "let description" not in body[:body.index("\n}\n")]:
            errors.append(f"pass {mnemonic}: no description")
        wanted = {f"{name}.cpp": "compiler", f"{mnemonic}.mlir": "tests"}
        for file, folder in wanted.items():
            found = any(file in names for _, _, names in
                        os.walk(os.path.join(root, folder)))
            if not found:
                errors.append(f"pass {mnemonic}: no {file} in {folder}/")


def main():
    root = sys.argv[1]
    errors = []
    for path in sources(root):
        check_file(root, path, errors)
    check_passes(root, errors)
    for error in errors:
        print(f"error: {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
