# SPDX-License-Identifier: MIT

"""Reads the files of GCC 12's coverage: notes (.gcno) and counts (.gcda).

gcov prints the same numbers, but with those of all headers, and again for each
test: too long for hundreds of tests. `python3 gcov_files.py NOTES
COUNTS` compares both for one object file.

GCC counts only some arcs between the blocks of a function. The counts of the
other arcs follow, since a block is left as often as it is entered.
"""

import json
import struct
import subprocess
import sys

# Begin of "B22*", GCC 12, in the byte order of the files. Other versions of GCC
# write other fields.
VERSION = b"22B"
FUNCTION, ARCS, LINES, COUNTS = (
    0x01000000, 0x01430000, 0x01450000, 0x01a10000)
ON_TREE, FAKE = 1, 2
ENTRY, EXIT = 0, 1


class Reader:
    """Reads numbers and strings from one file."""

    def __init__(self, path, magic):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:4] != magic or self.data[5:8] != VERSION:
            sys.exit(f"{path} is no coverage file of GCC 12")
        self.at = 16  # after magic, version, stamp and checksum

    def number(self):
        self.at += 4
        return struct.unpack_from("<I", self.data, self.at - 4)[0]

    def numbers(self, count):
        self.at += 4 * count
        return struct.unpack_from(f"<{count}I", self.data, self.at - 4 * count)

    def string(self):
        length = self.number()
        self.at += length
        return self.data[self.at - length:self.at - 1].decode()

    def records(self):
        """Yields the tag and the length in bytes of each record. A tag of zero
        ends the file."""
        while self.at + 8 <= len(self.data):
            tag, length = struct.unpack_from("<Ii", self.data, self.at)
            if tag == 0:
                return
            self.at += 8
            following = self.at + max(0, length)
            yield tag, length
            self.at = following


class Function:
    """Blocks and arcs of a function, and the order in which to compute their
    counts."""

    def __init__(self, reader):
        self.key = reader.numbers(3)
        self.name = reader.string()
        self.is_artificial = reader.number() != 0
        self.file = reader.string()
        self.start = reader.numbers(2)  # line and column
        self.arcs = []  # (source, target, flags), as GCC numbers them
        self.places = {}  # block -> [(file, line)]

    def add_arcs(self, reader, length):
        source = reader.number()
        for _ in range((length - 4) // 8):
            self.arcs.append((source, *reader.numbers(2)))

    def add_lines(self, reader):
        file, places = self.file, self.places.setdefault(reader.number(), [])
        while True:
            line = reader.number()
            if line:
                places.append((file, line))
                continue
            file = reader.string()
            if not file:
                return

    def finish(self):
        """Finds an order in which the count of each arc follows from earlier
        counts."""
        into, out = {}, {}
        for index, (source, target, _) in enumerate(self.arcs):
            out.setdefault(source, []).append(index)
            into.setdefault(target, []).append(index)
        self.into, self.out = into, out
        self.counted = [index for index, arc in enumerate(self.arcs)
                        if not arc[2] & ON_TREE]
        known, self.steps = set(self.counted), []
        open_blocks = (set(into) | set(out)) - {ENTRY, EXIT}
        while open_blocks:
            solved = {block for block in open_blocks
                      if self._solve(block, known)}
            if not solved:
                break
            open_blocks -= solved

    def _solve(self, block, known):
        """Adds a step that computes the only unknown arc of a block, if only
        one is unknown.

        Returns whether all arcs of the block are known.
        """
        into, out = self.into.get(block, []), self.out.get(block, [])
        unknown = [arc for arc in into + out if arc not in known]
        if len(unknown) > 1:
            return False
        for arc in unknown:
            same, other = (into, out) if arc in into else (out, into)
            self.steps.append((arc, other, [a for a in same if a != arc]))
            known.add(arc)
        return True

    def arc_counts(self, measured):
        counts = [0] * len(self.arcs)
        for index, count in zip(self.counted, measured):
            counts[index] = count
        for arc, plus, minus in self.steps:
            counts[arc] = (sum(counts[other] for other in plus) -
                           sum(counts[other] for other in minus))
        return counts

    def branches(self):
        """Yields (arc, file, line, index in the line) for each branch.

        A block with a fake arc calls a function; its other arcs are the return
        and exceptions.
        """
        place, indices = None, {}
        for block in sorted(set(self.out) - {ENTRY, EXIT}):
            places = self.places.get(block)
            if places:  # gcov's choice among the lines of a statement
                place = max(one for one in places if one[0] == places[-1][0])
            arcs = self.out[block]
            if (place and len(arcs) > 1 and
                    not any(self.arcs[arc][2] & FAKE for arc in arcs)):
                for arc in arcs:
                    indices[place] = indices.get(place, -1) + 1
                    yield arc, *place, indices[place]

    def lines(self):
        """Yields (arcs into a block, file, line)."""
        for block, places in self.places.items():
            for place in set(places):
                yield self.into.get(block, []), *place


def read_notes(path):
    """Returns the functions of an object file."""
    reader, functions = Reader(path, b"oncg"), []
    reader.string()  # the compiler's folder
    reader.number()  # whether it marks blocks that are never executed
    for tag, length in reader.records():
        if tag == FUNCTION:
            functions.append(Function(reader))
        elif tag == ARCS:
            functions[-1].add_arcs(reader, length)
        elif tag == LINES:
            functions[-1].add_lines(reader)
    for function in functions:
        function.finish()
    return functions


def read_counts(path):
    """Returns the counts of functions that were called, by their keys."""
    reader, counts, key = Reader(path, b"adcg"), {}, None
    for tag, length in reader.records():
        if tag == FUNCTION:
            # A record without a key belongs to an inline function, which
            # another object file has.
            key = reader.numbers(3) if length else None
        elif tag == COUNTS and length > 0 and key:
            counts[key] = struct.unpack_from(f"<{length // 8}q", reader.data,
                                             reader.at)
    return counts


def compare(notes, counts):
    """Compares the counts of lines and branches with gcov's."""
    ours, measured = {}, read_counts(counts)
    for function in read_notes(notes):
        arcs = function.arc_counts(measured.get(function.key, []))
        for arc, file, line, _ in function.branches():
            ours.setdefault((file, line, function.name), []).append(arcs[arc])
    printed = json.loads(subprocess.run(
        ["gcov", "--json-format", "--stdout", "--branch-probabilities", counts],
        check=True, stdout=subprocess.PIPE).stdout)
    theirs = {}
    for file in printed["files"]:
        for line in file["lines"]:
            taken = [branch["count"] for branch in line["branches"]]
            throws = any(branch["throw"] for branch in line["branches"])
            if taken and not throws:
                key = (file["file"], line["line_number"],
                       line.get("function_name"))
                theirs[key] = taken
    differ = {key for key, taken in theirs.items()
              if sorted(ours.get(key, [])) != sorted(taken)}
    for key in sorted(differ):
        print(key, "gcov:", theirs[key], "here:", ours.get(key))
    print(f"{len(theirs)} lines with branches, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(compare(*sys.argv[1:]))
