#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Time of 4-bit weights in each form of decoding, and in the chosen form.

    bench/decode.py [--shapes smollm2-135m,...] [--rows 32,128,512,2048]
                    [--compute bfloat16] [--samples 20] [--work DIR]

Compiles a few layers of each shape, with a small vocabulary, in each form of
--dequantize, and trains them on one row of each number of tokens in --rows. The
time of a linear is the time of its GEMM and its decode, separately for forward
and backward; each time is the median of --samples.

The chosen form is qloracc's default. Without a memory limit, it is `tiled` or
`per-use`; with a large limit, it can also be `once`. A choice meets the target
if all linears of a layer together take at most 10 % more time than in the
fastest available form. Fails if a choice contradicts the cost model's own
predictions.
"""

import argparse
import math
import os
import re
import statistics

import cpu_machine
import ours
from shapes import (REPOSITORY, SHAPES, write_batch, write_config, write_model)
from tensors import count, tensor_shapes

SHAPES_MEASURED = ("smollm2-135m", "qwen2.5-0.5b", "llama3.2-1b")
ROWS = (32, 128, 512, 2048)
FORMS = ("tiled", "per-use", "once")
NEAR = 1.1  # target: chosen form's seconds relative to the fastest form's
SCRATCH_GAIN = 0.03  # predicted gain for which plan-dequant chooses per-use
VOCABULARY = 512
# Maximum number of weights in all layers of a shape. One layer may exceed it.
LAYER_WEIGHTS = 20e6
ROOM = "1TiB"  # memory limit that allows everything


def layered(shape):
    """Returns the config of a shape with 1 to 6 layers."""
    config = dict(SHAPES[shape], vocab_size=VOCABULARY, num_hidden_layers=1,
                  tie_word_embeddings=True)
    linears = [size for name, size in tensor_shapes(
        {"model_type": config["family"], **config}).items()
        if name.endswith("proj.weight")]
    layers = int(LAYER_WEIGHTS / sum(map(count, linears)))
    config["num_hidden_layers"] = max(1, min(6, layers))
    return config


def without_layer(name):
    """Returns "mlp.up_proj" for "model.layers.0.mlp.up_proj.weight"."""
    return re.sub(r"^model\.layers\.\d+\.", "", name).removesuffix(".weight")


class Case:
    """A shape and the number of tokens in its row of data."""

    def __init__(self, shape, compute, profile, work, rows):
        self.folder = os.path.join(work, f"{shape}-layers")
        config = layered(shape)
        self.config = write_config(self.folder, config)
        write_model(self.folder, config)
        self.compute, self.rows = compute, rows
        self.flags = ("--device-profile", profile)
        self.data = os.path.join(self.folder, f"decode-{rows}.safetensors")
        write_batch(self.data, VOCABULARY, rows)
        self.work = {without_layer(name): 2.0 * rows * count(size)
                     for name, size in tensor_shapes(self.config).items()
                     if name.endswith("proj.weight")}

    def compile(self, name, *flags):
        return ours.planned(self.folder, f"decode-{name}", self.compute,
                            *self.flags, *flags, length=self.rows)

    def measure(self, form, samples):
        """Returns a dictionary: (linear, is backward) -> median seconds."""
        module, _ = self.compile(form, "--dequantize", form)
        steps = math.ceil(samples / self.config["num_hidden_layers"])
        trace = ours.profile(module, self.data, *self.flags, active=steps)
        found = {}
        for (_, *group), seconds in self.sums(trace).items():
            found.setdefault(tuple(group), []).append(seconds)
        return {group: statistics.median(seconds)
                for group, seconds in found.items()}

    def sums(self, trace):
        """Returns a dictionary: ((step, layer), linear, is backward) -> seconds
        of the GEMM and decode. The backward begins after the LM head."""
        found, step, is_backward = {}, 0, False
        for event in ours.commands(trace):
            entry = event["args"]["entry"]
            if entry == "update":
                step, is_backward = step + (is_backward is True), False
                continue
            is_backward |= event["cat"] == "head and loss"
            linear = without_layer(event["name"])
            is_product = event["args"].get("flops") == self.work.get(linear)
            is_decode = event["args"].get("kernel", "").startswith("decode.")
            if linear in self.work and (is_product or is_decode):
                layer = re.search(r"\d+", event["name"])[0]
                key = ((step, layer), linear, is_backward)
                found[key] = found.get(key, 0) + event["dur"] * 1e-6
        return found

    def choices(self, name, *flags):
        """Returns a dictionary: (linear, is backward) -> the linear's group in
        plan-dequant's report, with its form and predicted seconds."""
        _, plan = self.compile(name, *flags)
        return {(without_layer(weight["weight"]), group["backward"]): group
                for weight in plan["plan-dequant"]
                for group in weight["groups"]
                if group["step"] == "accumulate"}


def least_form(group):
    """Returns tiled or per-use, according to the predicted seconds."""
    gains = group["per_use_seconds"] < (
        (1 - SCRATCH_GAIN) * group["tiled_seconds"])
    return "per-use" if gains else "tiled"


def wrong_choices(choices, has_room):
    """Returns messages about linears whose forms contradict the predicted
    seconds. If one GEMM of a weight has the form `once`, all of them have."""
    wrong = []
    for linear in dict.fromkeys(linear for linear, _ in choices):
        groups = [choices[linear, is_backward] for is_backward in (False, True)
                  if (linear, is_backward) in choices]
        wanted = [least_form(group) for group in groups]
        least = sum(group[f"{form.replace('-', '_')}_seconds"]
                    for group, form in zip(groups, wanted))
        if has_room and sum(group["once_seconds"]
                            for group in groups) < least:
            wanted = ["once"] * len(groups)
        forms = [group["form"] for group in groups]
        if forms != wanted:
            wrong.append(f"{linear} is {', '.join(forms)}, predicted seconds "
                         f"ask for {', '.join(wanted)}")
    return wrong


def chosen_seconds(choices, times):
    """Returns the seconds of all linears in their chosen forms."""
    return sum(times[choices[group]["form"]][group] for group in
               times[FORMS[0]])


def name_of(choices):
    """Returns the chosen form as text, or the count of each chosen form."""
    forms = [group["form"] for group in choices.values()]
    found = {form: forms.count(form) for form in FORMS if form in forms}
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{form} {times}" for form, times in found.items())


def measure_case(case, samples):
    times = {form: case.measure(form, samples) for form in FORMS}
    missing = [form for form in FORMS if times[form].keys() !=
               times["once"].keys()]
    totals = {form: sum(times[form].values()) for form in FORMS}
    result = {"rows": case.rows, "seconds": totals, "chosen": {},
              "linears": [{"linear": linear, "backward": is_backward,
                           **{form: times[form][linear, is_backward]
                              for form in FORMS}}
                          for linear, is_backward in times["once"]],
              "failures": [f"{form}: other linears than once"
                           for form in missing]}
    for name, has_room, flags in (("no limit", False, ()),
                                  ("room", True, ("--memory-limit", ROOM))):
        choices = case.choices("chosen", *flags)
        result["failures"] += [f"{name}: {why}" for why in
                               wrong_choices(choices, has_room)]
        least = sum(min(times[form][group] for form in
                        FORMS[:3 if has_room else 2])
                    for group in times["once"])
        seconds = chosen_seconds(choices, times)
        result["chosen"][name] = {
            "forms": name_of(choices), "seconds": seconds,
            "over_fastest": seconds / least,
            "predicted": {form: sum(group[f"{form.replace('-', '_')}_seconds"]
                                    for group in choices.values())
                          for form in FORMS}}
    return result


def measure(shapes, compute, profile, work, rows=ROWS, samples=20):
    """Measures all cases. Returns JSON."""
    cases = []
    for shape in shapes:
        for number in rows:
            case = Case(shape, compute, profile, work, number)
            cases.append({"shape": shape, **measure_case(case, samples)})
    return {"name": "decode", "compute": compute, "samples": samples,
            "cases": cases,
            "failures": [f"{case['shape']}, {case['rows']} rows: {why}"
                         for case in cases for why in case["failures"]],
            "verdicts": [(f"{case['shape']}, {case['rows']} rows, {name}: "
                          f"{of['over_fastest']:.2f}x the fastest",
                          of["over_fastest"] <= NEAR)
                         for case in cases
                         for name, of in case["chosen"].items()]}


def text_of(result):
    """Returns Markdown."""
    lines = [f"{result['compute']}; ms of the linears of a layer, and in "
             "parentheses as predicted; median of "
             f"{result['samples']}", "",
             "| shape | rows | " + " | ".join(FORMS)
             + " | chosen | over the fastest | chosen with room | over the "
             "fastest |", "|---" * (2 + len(FORMS) + 4) + "|"]
    for case in result["cases"]:
        free, room = case["chosen"]["no limit"], case["chosen"]["room"]
        forms = " | ".join(
            f"{case['seconds'][form] * 1e3:.2f} "
            f"({free['predicted'][form] * 1e3:.2f})" for form in FORMS)
        lines.append(
            f"| {case['shape']} | {case['rows']} | {forms} | {free['forms']} "
            f"| {free['over_fastest']:.2f} | {room['forms']} | "
            f"{room['over_fastest']:.2f} |")
    missed = [what for what, is_met in result["verdicts"] if not is_met]
    lines += ["", f"* {'missed: ' + '; '.join(missed) if missed else 'met'}: "
              f"within {NEAR - 1:.0%} of the fastest form"]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default=",".join(SHAPES_MEASURED))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--compute", default="bfloat16")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--work", default=os.path.join(REPOSITORY, "out",
                                                       "bench"))
    options = parser.parse_args()
    result = measure(options.shapes.split(","), options.compute,
                     cpu_machine.calibrate(options.work), options.work,
                     [int(rows) for rows in options.rows.split(",")],
                     options.samples)
    return ours.conclude(text_of(result), result["failures"])


if __name__ == "__main__":
    raise SystemExit(main())
