# SPDX-License-Identifier: MIT

"""The rows of the covering array: family x format x adapter x ranks. Every two
levels of two factors occur together in a row unless REFUSED or ABSENT excludes
them. Also writes the folder of a row: model, data, adapter and configuration,
as a user would have them.

A new level is an entry of FAMILIES (covering_models.py), FORMATS
(covering_formats.py) or ADAPTERS (covering_adapters.py). It changes the rows:
Inputs/covering.py --write computes the new ones.
"""

import itertools
import json
import os

import numpy as np

import safetensors_io
from covering_adapters import ADAPTERS, DENSE, OURS, SPARSE, family_of
from covering_adapters import has_start, lora_options, named, write_adapter
from covering_formats import FORMATS, bits
from covering_models import FAMILIES, write_model

BATCH, LENGTH, STEPS = 2, 13, 2
FACTORS = {"family": FAMILIES, "format": FORMATS, "adapter": ADAPTERS,
           "ranks": (1, 2)}

# Combinations that are refused: two sets of levels, and the error message.
REFUSED = [
    ({"family": SPARSE - {"gptoss"}}, {"adapter": {"all-linear"}},
     "lora_target_modules: .* matches the experts"),
    ({"family": SPARSE - {"gptoss"}}, {"adapter": {"full"}},
     "is stored under other names"),
    ({"family": {"gptoss"}}, {"adapter": {"full"}},
     "has no derivative with respect to its sinks"),
    ({"format": {name for name, form in FORMATS.items() if form.options}},
     {"adapter": {"full"}}, "conflicts with finetuning_type full"),
    ({"format": {name for name, form in FORMATS.items()
                 if form.store and name != "mxfp4"}}, {"adapter": {"full"}},
     "is quantized and cannot be trained in full"),
    ({"format": {name for name, form in FORMATS.items()
                 if form.store and name != "mxfp4"}}, {"adapter": {"pissa"}},
     "init_lora_weights: .* is stored quantized"),
    ({"family": DENSE}, {"adapter": {"experts"}},
     "target_parameters: .* matches no parameter of experts"),
]
# Meaningless combinations, which no row has: experts of a dense model, and
# formats in which no models exist.
ABSENT = [
    ({"family": DENSE}, {"format": {"nf4-experts"}}),
    ({"family": set(FAMILIES) - {"gptoss"}}, {"format": {"mxfp4"}}),
    ({"format": {"mxfp4"}}, {"adapter": {"full"}}),
]


def excluded(row, table):
    for entry in table:
        if all(row.get(factor) in levels for part in entry[:2]
               for factor, levels in part.items()):
            return entry
    return None


def is_possible(row):
    return not excluded(row, REFUSED) and not excluded(row, ABSENT)


def pairs_of(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def all_pairs():
    """Returns the pairs of levels that some row can have."""
    found = set()
    for levels in itertools.product(*FACTORS.values()):
        row = dict(zip(FACTORS, levels))
        if is_possible(row):
            found |= pairs_of(row)
    return found


def covering_array():
    """Builds the array greedily: the next row has the most missing pairs, and
    among such rows, the levels that were used least. The order of levels
    decides the rest, so the array is the same on every machine."""
    missing, rows = all_pairs(), []
    used = {(f, level): 0 for f, levels in FACTORS.items() for level in levels}
    for family, form in itertools.product(FAMILIES, FORMATS):
        best = None
        for adapter, ranks in itertools.product(ADAPTERS, FACTORS["ranks"]):
            row = {"family": family, "format": form, "adapter": adapter,
                   "ranks": ranks}
            if is_possible(row):
                value = (len(pairs_of(row) & missing),
                         -used["adapter", adapter], -used["ranks", ranks])
                if best is None or value > best[0]:
                    best = value, row
        if best:
            rows.append(best[1])
            missing -= pairs_of(best[1])
            for level in best[1].items():
                used[level] += 1
    while missing:  # pairs of the other factors
        (one, other), rest = min(missing, key=str), None
        for levels in itertools.product(*FACTORS.values()):
            row = dict(zip(FACTORS, levels))
            if is_possible(row) and {one, other} <= set(row.items()):
                met = len(pairs_of(row) & missing)
                if rest is None or met > rest[0]:
                    rest = met, row
        rows.append(rest[1])
        missing -= pairs_of(rest[1])
    return {name_of(row): row for row in rows}


def name_of(row):
    return ".".join(str(row[factor]) for factor in FACTORS)


def refused_rows():
    """Returns a row for every two levels that an entry of REFUSED excludes,
    and the message. The other factors have levels that nothing excludes."""
    for first, second, message in REFUSED:
        (one, firsts), = first.items()
        (other, seconds), = second.items()
        for pair in itertools.product(sorted(firsts), sorted(seconds)):
            base = {"family": "llama2", "format": "bf16", "adapter": "rslora",
                    "ranks": 1} | dict(zip((one, other), pair))
            yield base, message


# Folders ---------------------------------------------------------------------


def batches(row, seed):
    """Returns the data: labels begin at a random token, and some rows have
    padding."""
    count = STEPS * row["ranks"]
    shape = (count, BATCH, LENGTH)
    vocabulary = FAMILIES[row["family"]].config["vocab_size"]

    def below(name, limit, shape):
        return (bits(seed, name, int(np.prod(shape))) % np.uint64(limit)
                ).astype(np.int32).reshape(shape)
    ids = below("ids", vocabulary, shape)
    place = np.arange(LENGTH)
    unseen = ((place < below("prompt", 6, shape[:2])[..., None])
              | (place >= LENGTH - below("padding", 4, shape[:2])[..., None]))
    return {"input_ids": ids,
            "labels": np.where(unseen, np.int32(-100), ids)}


def settings(row):
    options = lora_options(row)
    values = {"model_name_or_path": "model",
              "train_file": "batches.safetensors", "compute_dtype": "float32",
              "per_device_train_batch_size": BATCH, "max_length": LENGTH,
              "max_steps": STEPS, "learning_rate": 5e-3,
              "lr_scheduler_type": "constant", "weight_decay": 0.01,
              "adam_epsilon": 1e-5, "max_grad_norm": 1.0, "logging_steps": 1,
              **FORMATS[row["format"]].options}
    if options is None:
        return values | {"finetuning_type": "full"}
    if has_start(row):
        values["adapter_name_or_path"] = "adapter_init"
    return values | named(options)


def settings_after(row, folder):
    """Returns the settings with which a second run loads the output. With
    PiSSA, the output is a plain adapter with a different rank, for the
    unquantized model."""
    values = settings(row)
    if row["adapter"] != "pissa":
        return values
    with open(os.path.join(folder, "adapter_config.json")) as file:
        config = json.load(file)
    values = {name: value for name, value in values.items()
              if name not in FORMATS[row["format"]].options}
    return values | named({name: config[name] for name in (
        "init_lora_weights", "lora_alpha", *OURS)})


def write_yaml(path, values):
    with open(path, "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in values.items())


def write_row(folder, row, seed):
    write_model(os.path.join(folder, "model"), family_of(row),
                FORMATS[row["format"]], seed)
    if has_start(row) and is_possible(row):
        write_adapter(os.path.join(folder, "adapter_init"), row, seed)
    safetensors_io.save(os.path.join(folder, "batches.safetensors"),
                        batches(row, seed))
    write_yaml(os.path.join(folder, "train.yaml"), settings(row))


def sampled(logits):
    """Returns 16 of the logits, evenly spaced."""
    flat = np.asarray(logits, np.float32).reshape(-1)
    return [float(x) for x in flat[np.linspace(5, flat.size - 3, 16)
                                   .astype(int)]]
