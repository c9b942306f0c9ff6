#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Compares the formats of one report: JSON, page, and memory_viz's snapshot,
which qlora-memory-viz makes of the JSON.

    check_report.py plan.json plan.html [--predicted run.json] [--name TEXT]
                    [--run JSON]

* the page is one file without external references, and has the plan of the
  JSON;
* a tensor can have the name TEXT, which may contain HTML: it is data in page
  and snapshot, and adds no elements to the page;
* the head of the page describes the run with the values of the JSON; everything
  that is drawn has a plain name and a colour;
* in page and snapshot no two buffers share a byte at a time, and the arenas
  are as large as the plan says;
* the page's peak, its categories and its collectives are those of the plan;
* a step takes as long as qlora-run predicts (run.json is its output).
"""

import argparse
import bisect
import html.parser
import json
import math
import os
import pickle
import re
import subprocess
import tempfile

# Number of elements in the page. Tensor names must not change it.
ELEMENTS = {"script": 2, "style": 1, "h1": 1}
OUTSIDE = ("src", "href", "srcset", "action", "data", "poster", "background")


class Page(html.parser.HTMLParser):
    """Parses the page as a browser does."""

    def __init__(self, text):
        super().__init__()
        self.counts, self.texts, self.open, self.ids = {}, {}, None, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        outside = [name for name in attributes if name in OUTSIDE]
        assert not outside, f"<{tag}> has {outside}"
        assert tag not in ("link", "iframe", "object", "img"), tag
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.open = (tag, attributes.get("id"))

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, text):
        self.texts[self.open] = self.texts.get(self.open, "") + text


class Arena:
    """The byte ranges in use. Fails if a byte is used twice at a time."""

    def __init__(self):
        self.starts, self.ends, self.top = [], [], 0

    def take(self, offset, size):
        at = bisect.bisect_right(self.starts, offset)
        before = self.ends[at - 1] if at else 0
        after = self.starts[at] if at < len(self.starts) else math.inf
        assert before <= offset and offset + size <= after, (
            f"{offset} to {offset + size} is in use")
        self.starts.insert(at, offset)
        self.ends.insert(at, offset + size)
        self.top = max(self.top, offset + size)

    def give(self, offset, size):
        at = bisect.bisect_left(self.starts, offset)
        assert self.starts[at] == offset and self.ends[at] == offset + size
        del self.starts[at], self.ends[at]


def check_arena_refuses():
    arena = Arena()
    arena.take(0, 64)
    arena.take(128, 64)
    for offset, size in ((0, 64), (63, 1), (64, 65), (32, 256), (191, 8)):
        try:
            arena.take(offset, size)
        except AssertionError:
            continue
        raise SystemExit("an overlap was not noticed")
    arena.take(64, 64)


def by_command(buffers, key, commands):
    lists = [[] for _ in range(commands)]
    for i, command in enumerate(buffers[key]):
        lists[command].append(i)
    return lists


def replay(categories, entry):
    """Replays an entry. Returns the heights of the arenas, and the first
    command at the peak."""
    commands, buffers = len(entry["commands"]["queue"]), entry["buffers"]
    first = by_command(buffers, "first", commands)
    last = by_command(buffers, "last", commands)
    arenas = (Arena(), Arena())
    alive = dict.fromkeys(categories, 0)
    peak = 0, 0, {}  # command, bytes, bytes by category

    def count(i, sign):
        alive[categories[buffers["category"][i]]] += sign * buffers["bytes"][i]

    for command in range(commands):
        for i in first[command]:
            arenas[buffers["arena"][i]].take(buffers["offset"][i],
                                             buffers["bytes"][i])
            count(i, 1)
        total = sum(alive.values()) - alive["workspace"]
        if total > peak[1]:
            peak = command, total, {name: size for name, size in alive.items()
                                    if size and name != "workspace"}
        for i in last[command]:
            arenas[buffers["arena"][i]].give(buffers["offset"][i],
                                             buffers["bytes"][i])
            count(i, -1)
    assert not any(alive.values())
    return [arena.top for arena in arenas], peak


def check_entry(timeline, entry, planned, buckets):
    categories, texts = timeline["categories"], timeline["texts"]
    for columns in (entry["commands"], entry["buffers"]):
        assert len({len(column) for column in columns.values()}) == 1
    heights, peak = replay(categories, entry)
    assert heights == [planned["activation_bytes"],
                       planned["workspace_bytes"]], heights
    expected = (entry["peak_command"], planned["activation_live_bytes"],
                planned["peak"])
    assert peak == expected, (peak, expected)
    buffers = entry["buffers"]
    saved = sum(size for size, category in
                zip(buffers["bytes"], buffers["category"])
                if categories[category] == "saved")
    assert saved == planned["saved_bytes"], saved
    # Weights that recomputed ops read are in the category "decoded", not in
    # that of recomputed values.
    kinds = {categories[category] for label, category in
             zip(buffers["label"], buffers["category"])
             if texts[label].endswith("_proj.weight")}
    assert kinds <= {"decoded"}, kinds
    sent = [collective["bytes"] for collective in
            sorted(entry["collectives"], key=lambda row: row["bucket"])]
    expected = [bucket["bytes"] for bucket in buckets]
    assert sent == (expected if planned["kind"] == "accumulate_last" else [])
    times = list(zip(entry["commands"]["start"], entry["commands"]["end"]))
    assert all(0 <= start <= end for start, end in times)
    assert max((end for _, end in times), default=0) <= (
        planned["seconds"] * 1e6 + 0.1)


def read_page(path, plan):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    for tag, count in ELEMENTS.items():
        assert page.counts[tag] == count, (tag, page.counts[tag])
    data = json.loads(page.texts["script", "data"])
    assert data["plan"] == plan, "the page has another plan"
    code = page.texts["script", None] + page.texts["style", None]
    assert not re.search(r"https?:|//[a-z]+\.|url\(|import\b|fetch\(|innerHTML",
                         code)
    check_words(page, data)
    return data


def check_words(page, data):
    """Checks that everything has a plain name and a colour."""
    code, style = page.texts["script", None], page.texts["style", None]
    arenas = [arena for arena in data["plan"]["arenas"] if arena != "host"]
    kinds = {entry["kind"] for entry in data["plan"]["entries"]}
    for arena in arenas:
        assert f"['{arena}', '" in code, arena
    categories = data["plan"]["timeline"]["categories"]
    for key in (*categories, *kinds):
        assert f"  {key}: '" in code, key
    for colour in (*arenas, *categories):
        assert f"--{colour}: #" in style, colour
    assert len(page.ids) == len(set(page.ids))
    missing = set(re.findall(r"byId\('(\w[\w-]*)'\)", code)) - set(page.ids)
    assert not missing, missing


def check_run(run, plan, expected):
    options, rates = run["options"], run["rates"]
    for name in run["set"]:
        assert name in options, name
    full = {("accumulate_last", options["per_device_train_batch_size"], length)
            for length in options["max_length"]}
    made = {(entry["kind"], entry["batch"], entry["length"])
            for entry in plan["entries"]}
    assert full <= made, full - made
    assert 0 < run["trainable"] < run["parameters"]
    assert ("quantized" in run) == options["load_in_4bit"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"]), run["date"]
    assert all(rates[rate] > 0 for rate in rates if rate.endswith("ps"))
    for key, value in expected.items():
        assert run[key] == value, (key, run[key], value)


def check_timeline(plan):
    timeline = plan["timeline"]
    assert len(timeline["entries"]) == len(plan["entries"])
    for entry, planned in zip(timeline["entries"], plan["entries"]):
        check_entry(timeline, entry, planned, plan["bucket-gradients"])
    for arena in ("activation", "workspace"):
        largest = max(entry[f"{arena}_bytes"] for entry in plan["entries"])
        assert plan["arenas"][arena] == largest, arena


def check_segments(segments, plan):
    """Checks that blocks are adjacent and fill their segment."""
    sizes = sorted(segment["total_size"] for segment in segments)
    assert sizes == sorted(size for arena, size in plan["arenas"].items()
                           if size and arena != "host")
    places = Arena()
    for segment in segments:
        places.take(segment["address"], segment["total_size"])
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end and block["size"] > 0
            end += block["size"]
        assert end == segment["address"] + segment["total_size"]
        active = sum(block["size"] for block in segment["blocks"]
                     if block["state"] == "active_allocated")
        assert active == segment["active_size"]


def check_trace(trace, segments):
    memory, used = Arena(), set()
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                memory.take(block["address"], block["size"])
    before, kept, tops = 0, len(memory.starts), {}
    for event in trace:
        assert event["time_us"] >= before
        before = event["time_us"]
        kernel, layer, _ = event["frames"]
        assert kernel["name"] and isinstance(kernel["line"], int)
        used.add(layer["name"])
        place = event["addr"], event["size"]
        if event["action"] == "alloc":
            memory.take(*place)
            segment = max(s["address"] for s in segments
                          if s["address"] <= place[0])
            tops[segment] = max(tops.get(segment, 0), sum(place))
        elif event["action"] == "free_completed":
            memory.give(*place)
    assert len(memory.starts) == kept, "something was not freed"
    for segment in segments:
        if segment["address"] in tops:
            assert tops[segment["address"]] == (segment["address"] +
                                                segment["total_size"])
    return used


def read_snapshot(path):
    with tempfile.TemporaryDirectory() as folder:
        snapshot = os.path.join(folder, "plan.pickle")
        subprocess.run(["qlora-memory-viz", path, snapshot], check=True)
        with open(snapshot, "rb") as file:
            return pickle.load(file)


def check_snapshot(snapshot, plan):
    check_segments(snapshot["segments"], plan)
    [trace] = snapshot["device_traces"]
    names = check_trace(trace, snapshot["segments"])
    made = sum(event["action"] == "alloc" for event in trace)
    assert made == sum(
        len(entry["buffers"]["bytes"]) for entry, planned in
        zip(plan["timeline"]["entries"], plan["entries"])
        if planned["kind"] != "accumulate")
    return names


def check_prediction(path, plan):
    with open(path, encoding="utf-8") as file:
        [step] = json.load(file)["predictions"]
    assert step["micro_batches"] == 1 and step["ranks"] == 1
    entries = [entry for entry in plan["entries"]
               if entry["kind"] in ("accumulate_last", "update")]
    for key, figure in (("seconds", step), ("seconds_low", step["low"])):
        ours, theirs = sum(e[key] for e in entries), figure["step_seconds"]
        assert abs(ours - theirs) < 1e-6 * ours, (
            f"{ours} {key}, but qlora-run predicts {theirs}")
    assert step["low"]["step_seconds"] > step["step_seconds"]


def main():
    parser = argparse.ArgumentParser()
    for name in ("json", "html"):
        parser.add_argument(name)
    parser.add_argument("--predicted")
    parser.add_argument("--name")
    parser.add_argument("--run", type=json.loads, default={})
    options = parser.parse_args()
    check_arena_refuses()
    with open(options.json, encoding="utf-8") as file:
        plan = json.load(file)
    data = read_page(options.html, plan)
    check_timeline(plan)
    check_run(data["run"], plan, options.run)
    names = check_snapshot(read_snapshot(options.json), plan)
    if options.name:
        assert options.name in plan["timeline"]["texts"]
        assert options.name in names
    if options.predicted:
        check_prediction(options.predicted, plan)


if __name__ == "__main__":
    main()
