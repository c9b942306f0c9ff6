#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Converts qloracc's plan.json to a snapshot for pytorch.org/memory_viz.

    qlora-memory-viz plan.json plan.pickle

Writes the plan like torch.cuda.memory._dump_snapshot. Each arena in device
memory is a segment of device 0. Permanent content (weights, adapters,
gradients, moments, inputs, results) consists of blocks of its arena's segment.
Other buffers are allocated in the trace at their first command and freed after
their last. The trace lists the entries one after the other. It omits
`accumulate`, which runs the micro-batches before a step's last: it equals the
last micro-batch's entry without collectives. `time_us` is the predicted time
since the trace began.

The stack frames of a buffer are the kernel that first writes it and the layer,
both with their location in model.mlir, and then the entry.
"""

import argparse
import functools
import itertools
import json
import pickle
import sys

# Address of the first segment. It is as high as GPU addresses, and exactly
# representable as a double, because readers compute with doubles.
FIRST_ADDRESS = 0x7F0000000000
# Segments begin at multiples of this, as in PyTorch's caching allocator.
ALIGNMENT = 2 << 20
# These arenas hold the buffers of the trace, in the order of a buffer's
# `arena`.
PACKED = ("activation", "workspace")


def rows(columns):
    """Yields a dictionary per row."""
    for values in zip(*columns.values()):
        yield dict(zip(columns, values))


# The cache makes equal frames one object, which a pickle holds once.
@functools.lru_cache(maxsize=None)
def frame(name, location=""):
    filename, _, line = location.rpartition(":")
    return {"filename": filename, "line": int(line or 0), "name": name}


def place_arenas(plan):
    """Returns the address of each arena in device memory."""
    addresses, end = {}, FIRST_ADDRESS
    for arena in plan["timeline"]["device_arenas"]:
        addresses[arena] = end
        end += -(-plan["arenas"][arena] // ALIGNMENT) * ALIGNMENT
    return addresses


def block(address, size, frames):
    return {"address": address, "size": size,
            "requested_size": size if frames else 0,
            "state": "active_allocated" if frames else "inactive",
            "frames": frames}


def segment(arena, address, size, used):
    """Returns a segment. `used` are the (offset, bytes, frame) that are always
    in use. Other ranges become inactive blocks, because readers expect blocks
    without gaps."""
    blocks, end = [], 0
    for offset, count, name in [*sorted(used, key=lambda row: row[0]),
                                (size, 0, None)]:
        if offset > end:
            blocks.append(block(address + end, offset - end, []))
        if name:
            blocks.append(block(address + offset, count, [name]))
        end = offset + count
    active = sum(count for _, count, _ in used)
    return {"device": 0, "address": address, "total_size": size,
            "allocated_size": active, "active_size": active,
            "requested_size": active, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False,
            "frames": [frame(arena)], "blocks": blocks}


def segments(plan, addresses):
    texts = plan["timeline"]["texts"]
    used = {arena: [] for arena in addresses}
    for row in rows(plan["timeline"]["parameters"]):
        # Parameters of other arenas are in host memory.
        used.get(texts[row["arena"]], []).append(
            (row["offset"], row["bytes"],
             frame(texts[row["name"]], texts[row["location"]])))
    for arena, address in addresses.items():
        size = plan["arenas"][arena]
        if not used[arena] and arena not in PACKED:
            used[arena] = [(0, size, frame(arena))]
        if size:
            yield segment(arena, address, size, used[arena])


def events_of(entry, timeline, texts, addresses):
    """Yields (command, is_end, event) of each buffer of an entry."""
    about = frame("{kind}, batch {batch}, length {length}".format(**entry))
    for buffer in rows(timeline["buffers"]):
        kernel = texts[timeline["commands"]["kernel"][buffer["writer"]]]
        location = texts[buffer["location"]]
        event = {"addr": addresses[PACKED[buffer["arena"]]] + buffer["offset"],
                 "size": buffer["bytes"], "stream": 0, "device": 0,
                 "frames": [frame(kernel, location),
                            frame(texts[buffer["label"]], location), about]}
        yield buffer["first"], False, {"action": "alloc", **event}
        for action in ("free_requested", "free_completed"):
            yield buffer["last"], True, {"action": action, **event}


def trace(plan, addresses):
    begun = now = 0
    for entry, timeline in zip(plan["entries"], plan["timeline"]["entries"]):
        if entry["kind"] == "accumulate":
            continue
        commands = timeline["commands"]
        # Queues run concurrently, but a trace's times must not decrease.
        times = (list(itertools.accumulate(commands["start"], max)),
                 commands["end"])
        events = events_of(entry, timeline, plan["timeline"]["texts"],
                           addresses)
        for command, is_end, event in sorted(events, key=lambda row: row[:2]):
            now = max(now, begun + times[is_end][command])
            yield {**event, "time_us": int(now)}
        begun += entry["seconds"] * 1e6


def snapshot(plan):
    addresses = place_arenas(plan)
    return {"segments": list(segments(plan, addresses)),
            "device_traces": [list(trace(plan, addresses))],
            "allocator_settings": {}, "external_annotations": []}


def main():
    parser = argparse.ArgumentParser(
        prog="qlora-memory-viz",
        description="Converts the memory plan of qloracc --plan-report "
                    "plan.json to a snapshot for pytorch.org/memory_viz.")
    parser.add_argument("plan", metavar="plan.json")
    parser.add_argument("snapshot", metavar="plan.pickle")
    options = parser.parse_args()
    try:
        with open(options.plan, encoding="utf-8") as file:
            result = snapshot(json.load(file))
    except OSError as error:
        print("qlora-memory-viz: error: cannot read "
              f"'{options.plan}': {error.strerror}", file=sys.stderr)
        return 1
    except (AttributeError, LookupError, TypeError, ValueError):
        print(f"qlora-memory-viz: error: '{options.plan}' is not a plan; write "
              "one with qloracc --plan-report plan.json", file=sys.stderr)
        return 1
    try:
        with open(options.snapshot, "wb") as file:
            # memory_viz reads protocols 2 to 4.
            pickle.dump(result, file, protocol=2)
    except OSError as error:
        print("qlora-memory-viz: error: cannot write "
              f"'{options.snapshot}': {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
