# SPDX-License-Identifier: MIT

"""Reads from machine code the instructions that a kernel's thread executes.

`nvdisasm`'s text becomes blocks of instructions and the edges between them;
loops are the strongly connected components of that graph. A *body* is one
iteration of a loop, or everything that a kernel executes outside of its loops;
an inner loop is a separate body. The path through a body that moves the most
bytes is measured; among several, the longest. A block that calls a subroutine
(slow paths, such as 64-bit divisions) is on a path only if no path avoids it,
and is then measured with the subroutine.

Bytes are those of loads and stores, in whatever cache they hit.
"""

import re
from collections import namedtuple

Body = namedtuple("Body", "instructions bytes is_loop")
Block = namedtuple("Block", "instructions bytes next calls")

LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")
LABEL = re.compile(r"^([.$\w]+):\s*$")
TARGET = re.compile(r"`\(([^)]+)\)")
ACCESS = re.compile(r"(LDG|STG|LDGSTS|LD|ST|ATOMG|RED)$")
ENDS = ("EXIT", "RET", "BRA", "BRX", "JMP", "KILL")


def access_bytes(opcode):
    """Returns the bytes that an instruction loads from or stores to global
    memory; 0 for other instructions."""
    words = opcode.split(".")
    if not ACCESS.match(words[0]):
        return 0
    for word, size in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2),
                       ("U8", 1), ("S8", 1)):
        if word in words:
            return size
    return 4


class Function:
    """A kernel as blocks of instructions. A label begins a block, a branch ends
    one."""

    def __init__(self, lines):
        self.blocks, self.labels, self.entry = [], {}, 0
        self.spills = 0
        self._cut([line for line in lines if line.strip()])

    def _cut(self, lines):
        pending, last = [], None
        open_block = {"n": 0, "bytes": 0, "next": [], "calls": []}
        blocks = []

        def close(falls):
            nonlocal open_block
            blocks.append((open_block, falls))
            open_block = {"n": 0, "bytes": 0, "next": [], "calls": []}

        for line in lines:
            label = LABEL.match(line.strip())
            if label:
                if open_block["n"]:
                    close(True)
                self.labels[label.group(1)] = len(blocks)
                continue
            found = LINE.match(line)
            if not found:
                continue
            predicate, opcode, rest = found.groups()
            stem = opcode.split(".")[0]
            open_block["n"] += 1
            open_block["bytes"] += access_bytes(opcode)
            self.spills += stem in ("LDL", "STL")
            target = TARGET.search(rest)
            if stem == "CALL":
                open_block["calls"].append(target.group(1) if target else "")
            # BRA.DIV and BRA.CONV handle diverged threads, so they are not on
            # the common path.
            elif stem in ENDS and not re.search(r"\.(DIV|CONV)", opcode):
                if stem == "BRA" and target:
                    open_block["next"].append(target.group(1))
                elif stem in ("BRX", "JMP"):
                    raise ValueError(f"cannot follow {opcode}{rest}")
                operand = rest.strip()
                is_always = not predicate and not re.match(r"!?U?P\d", operand)
                close(not is_always)
        if open_block["n"]:
            close(False)
        for i, (block, falls) in enumerate(blocks):
            next_blocks = [self.labels[name] for name in block["next"]]
            if falls and i + 1 < len(blocks):
                next_blocks.append(i + 1)
            self.blocks.append(Block(block["n"], block["bytes"], next_blocks,
                                     block["calls"]))

    def bodies(self):
        """Returns the body outside of loops, and one per loop."""
        calls = {i for i, block in enumerate(self.blocks) if block.calls}
        whole = self.reachable(self.entry, set())
        around = self.reachable(self.entry, calls)
        if self.accesses(whole) != self.accesses(around):
            around = whole  # no path without calls
        found = []
        self.measure(self.entry, around, False, found)
        return [body for body in found if body.bytes]

    def accesses(self, numbers):
        return sum(self.blocks[n].bytes for n in numbers)

    def reachable(self, start, skipped):
        found, stack = set(), [start]
        while stack:
            number = stack.pop()
            if number not in found and number not in skipped:
                found.add(number)
                stack += self.blocks[number].next
        return found

    def cost(self, number):
        block = self.blocks[number]
        called = 0
        for label in block.calls:
            start = self.labels[label]
            called += self.measure(start, self.reachable(start, set()), False,
                                   []).instructions
        return block.bytes, block.instructions + called

    def measure(self, header, inside, is_loop, found):
        """Returns the body of a region with one entry. Adds this body and the
        bodies of its loops to `found`. A loop with memory accesses is a
        separate body, and adds no cost to the region's body. A loop without
        accesses counts in the region's body as one iteration."""
        parts = components(self.blocks, inside, header)
        part_of = {n: i for i, part in enumerate(parts) for n in part}
        costs = []
        for part in parts:
            if len(part) == 1 and part[0] not in self.blocks[part[0]].next:
                costs.append(self.cost(part[0]))
            elif header in part:  # a loop of one block
                costs.append(self.cost(header))
            else:
                costs.append(self.loop(set(part), inside, found))
        # Tarjan's algorithm yields components in reverse topological order, so
        # successors come first.
        best = []
        for i, part in enumerate(parts):
            after = max((best[part_of[n]] for m in part
                         for n in self.blocks[m].next
                         if n in part_of and n != header and part_of[n] != i),
                        default=(0, 0))
            best.append((costs[i][0] + after[0], costs[i][1] + after[1]))
        size, length = best[part_of[header]]
        body = Body(length, size, is_loop)
        found.append(body)
        return body

    def loop(self, members, inside, found):
        headers = [n for n in sorted(members) if any(
            n in self.blocks[m].next for m in inside - members)]
        body = self.measure((headers or sorted(members))[0], members, True,
                            found)
        has_accesses = self.accesses(members)
        return (0, 0) if has_accesses else (0, body.instructions)


def components(blocks, inside, header):
    """Returns the strongly connected components of the blocks `inside`, without
    edges to the header, in reverse topological order (Tarjan)."""
    order, low, stack, parts, on_stack = {}, {}, [], [], set()

    def visit(root):
        work = [(root, iter(blocks[root].next))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, ways = work[-1]
            for n in ways:
                if n not in inside or n == header:
                    continue
                if n not in order:
                    order[n] = low[n] = len(order)
                    stack.append(n)
                    on_stack.add(n)
                    work.append((n, iter(blocks[n].next)))
                    break
                if n in on_stack:
                    low[node] = min(low[node], order[n])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    part = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        part.append(member)
                        if member == node:
                            break
                    parts.append(part)

    visit(header)
    return parts


def functions(text):
    """Returns name -> Function for all of `nvdisasm`'s text."""
    sections, name = {}, None
    for line in text.splitlines():
        if line.startswith("//-----") or line.lstrip().startswith(".section"):
            found = re.search(r"\.section\s+\.text\.(\w+),", line)
            if found:
                name = found.group(1)
                sections[name] = []
            elif line.lstrip().startswith(".section"):
                name = None
        elif name:
            sections[name].append(line)
    return {name: Function(lines) for name, lines in sections.items()}


def max_threads(text):
    """Returns name -> threads of a block, from __launch_bounds__."""
    return {name: int(word, 16) for name, word in re.findall(
        r"\.section\s+\.nv\.info\.(\w+),(?:(?!\.section\s).)*?"
        r"EIATTR_MAX_THREADS.*?\.word\s+(0x[0-9a-f]+)", text, re.S)}
