#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""limits.py REPOSITORY: what a reader can rely on.

No file over 500 lines (over 350 is printed); line 1 is the licence, and one of
the next lines says what the file is for; every pass has a file and a test of
its own name; layers include only what is below them; no TODO without a number.
"""

import os
import re
import sys

SOURCES = (".h", ".cpp", ".td", ".py", ".def", ".c")
FOLDERS = ("compiler", "dialects", "frontend", "runtime", "tools", "tests",
           "bench")
ALLOWED_BELOW = {
    "dialects": ("dialects", "runtime/ABI", "runtime/Kernels/KernelTable.h",
                 "runtime/Kernels/Math/NF4.h"),
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
    if len(lines) > 500:
        errors.append(f"{path}: {len(lines)} lines, at most 500")
    elif len(lines) > 350:
        print(f"note: {path} has {len(lines)} lines; 350 is the aim")
    check_includes(path, lines, errors)
    for number, line in enumerate(lines, 1):
        if re.search(r"\bTODO\b(?!\(#\d+\))", line) and "lint" not in path:
            errors.append(f"{path}:{number}: a TODO without a number")


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


def check_passes(root, errors):
    with open(os.path.join(root, "compiler/Passes.td")) as file:
        text = file.read()
    for name, mnemonic in re.findall(r'def (\w+) *: *Pass<"([a-z0-9-]+)"',
                                     text):
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
