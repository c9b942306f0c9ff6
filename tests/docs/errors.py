#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""errors.py REPOSITORY: compares docs/errors.md with the tools' messages.

A bullet of the page that is only code is a message. Each message of the
sources must be on the page, and each message of the page in the sources. A
remedy must follow each list of messages. Prints missing and stale messages with
their places.
"""

import fnmatch
import os
import re
import sys
from typing import NamedTuple

from messages import Message, normalise, read_messages

PAGE = "docs/errors.md"

# Files whose messages share one entry of the page, and the entry's heading.
SHARED = {
    # Internal checks of the compiler, by phase.
    "compiler/Codegen/ModuleTables.cpp": "The compiler refuses its own work",
    "compiler/Codegen/KernelText.cpp": "The compiler refuses its own work",
    "compiler/Codegen/KernelFunction.cpp": "The compiler refuses its own work",
    "compiler/Codegen/PrintKernels.cpp": "The compiler refuses its own work",
    "compiler/Codegen/Row*.cpp": "The compiler refuses its own work",
    "compiler/Place/PlaceFrozenWeights.cpp":
        "The compiler refuses its own work",
    "compiler/Adapt/AttachLoss.cpp": "The compiler refuses its own work",
    "compiler/Exchange/BucketGradients.cpp":
        "The compiler refuses its own work",
    "compiler/Differentiate/BuildTrainStep.cpp":
        "The compiler refuses its own work",
    "compiler/Exchange/CompressGradients.cpp":
        "The compiler refuses its own work",
    "compiler/Optimize/PlanDequant.cpp": "The compiler refuses its own work",
    "compiler/Adapt/QuantizeBase.cpp": "The compiler refuses its own work",
    "compiler/Memory/OffloadActivations.cpp":
        "The compiler refuses its own work",
    "compiler/Memory/Rematerialize.cpp": "The compiler refuses its own work",
    "compiler/Partition/ShardVocabulary.cpp":
        "The compiler refuses its own work",
    "compiler/Schedule/*.cpp": "The compiler refuses its own work",
    # Checks of each field of a module's tables.
    "runtime/Module/*Check.cpp": "train.so is damaged",
    "runtime/Extras/DropoutMasks.cpp": "train.so is damaged",
    # Checks of each field of a safetensors header.
    "runtime/Weights/SafetensorsHeader.cpp": "A safetensors file is damaged",
    "runtime/Weights/StoredTensors.cpp": "A safetensors file is damaged",
    # Reasons for which a kernel refuses a launch.
    "runtime/Kernels/C*/*": "No kernel is left for an operation",
    "runtime/Kernels/LibraryKernel.h": "No kernel is left for an operation",
}


class Page(NamedTuple):
    messages: list[Message]
    headings: set[str]
    errors: list[str]


def read_page(root: str) -> Page:
    with open(os.path.join(root, PAGE), encoding="utf-8") as file:
        lines = file.read().splitlines()
    page = Page([], set(), [])
    asked = 0  # the line of a message without a remedy so far
    for number, line in enumerate(lines + ["#"], 1):
        message = re.fullmatch(r"- (`+) ?(.*?) ?\1", line)
        if message:
            text = normalise(message[2])
            page.messages.append(Message(text, PAGE, number))
            asked = number
        elif line.startswith("#"):
            page.headings.add(line.strip("# "))
            if asked:
                page.errors.append(f"{PAGE}:{asked}: no cause and remedy")
            asked = 0
        elif line.strip():
            asked = 0
    return page


def shared_heading(path: str) -> str | None:
    for pattern, heading in SHARED.items():
        if fnmatch.fnmatch(path, pattern):
            return heading
    return None


def shared_errors(page: Page, found: list[Message]) -> list[str]:
    errors = [f"{PAGE}: no heading '{heading}'"
              for heading in sorted(set(SHARED.values()) - page.headings)]
    for pattern in SHARED:
        if not any(fnmatch.fnmatch(one.path, pattern) for one in found):
            errors.append(f"tests/docs/errors.py: no file with "
                          f"messages is '{pattern}'")
    return errors


def compare(page: Page, found: list[Message]) -> list[str]:
    errors = page.errors + shared_errors(page, found)
    known = {message.text: message for message in found}
    written: set[str] = set()
    for message in page.messages:
        place = f"{message.path}:{message.line}"
        if message.text in written:
            errors.append(f"{place}: twice: {message.text}")
        elif message.text not in known:
            errors.append(f"{place}: stale: {message.text}")
        written.add(message.text)
    for message in known.values():
        if message.text not in written and not shared_heading(message.path):
            errors.append(f"{message.path}:{message.line}: missing: "
                          f"{message.text}")
    return errors


def main() -> int:
    root = sys.argv[1]
    errors = compare(read_page(root), list(read_messages(root)))
    for error in errors:
        print(f"error: {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
