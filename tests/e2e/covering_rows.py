# SPDX-License-Identifier: MIT

"""The rows of the covering array: family x format x adapter x ranks, so that
every two levels of two factors meet in a row unless REFUSED or ABSENT says
that they cannot; and the folder of a row, as a user would have it.

A new level is an entry of FAMILIES, FORMATS or ADAPTERS. It changes which rows
there are: Inputs/covering.py --write computes those that are new.
"""

import itertools
import json
import os

import numpy as np

import safetensors_io
from covering_formats import FORMATS, bits, draw
from covering_models import FAMILIES, write_model

BATCH, LENGTH, STEPS = 2, 13, 2
SPARSE = {name for name, family in FAMILIES.items() if family.experts}
DENSE = set(FAMILIES) - SPARSE

# Beside what all have; "linears" is all-linear, of experts the named targets.
ADAPTERS = {
    "all-linear": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "patterns": {"r": 4, "lora_alpha": 12, "layers_to_transform": [1]},
    "rslora": {"r": 5, "lora_alpha": 3, "target_modules": "linears",
               "use_rslora": True},
    "dora": {"r": 3, "lora_alpha": 6, "target_modules": "linears",
             "use_dora": True},
    "bias": {"r": 4, "lora_alpha": 8, "target_modules": "linears",
             "lora_bias": True},
    "plus": {"r": 2, "lora_alpha": 7, "target_modules": "linears",
             "loraplus_lr_ratio": 3.0},
    "embedding": {"r": 6, "lora_alpha": 9, "modules_to_save": ["lm_head"]},
    "experts": {"r": 3, "lora_alpha": 5, "target_parameters": [
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    "full": None,
}
FACTORS = {"family": FAMILIES, "format": FORMATS, "adapter": ADAPTERS,
           "ranks": (1, 2)}

# Two sets of levels that no row has both of, and what refuses them how.
REFUSED = [
    ({"family": SPARSE - {"gptoss"}}, {"adapter": {"all-linear"}},
     "lora_target_modules: .* reaches the experts"),
    ({"family": SPARSE - {"gptoss"}}, {"adapter": {"full"}},
     "has other names in the files"),
    ({"family": {"gptoss"}}, {"adapter": {"full"}},
     "has no derivative of its sinks"),
    ({"format": {name for name, form in FORMATS.items() if form.options}},
     {"adapter": {"full"}}, "does not go with finetuning_type full"),
    ({"format": {name for name, form in FORMATS.items()
                 if form.store and name != "mxfp4"}}, {"adapter": {"full"}},
     "is quantised and cannot be trained in full"),
    ({"family": DENSE}, {"adapter": {"experts"}},
     "target_parameters: .* matches no parameter of experts"),
]
# What means nothing: experts of a model without, a format that none publishes.
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
    """Those that some row can have."""
    found = set()
    for levels in itertools.product(*FACTORS.values()):
        row = dict(zip(FACTORS, levels))
        if is_possible(row):
            found |= pairs_of(row)
    return found


def covering_array():
    """Greedy: the row that meets most pairs which no row has met, where several
    do the one whose levels were used least. The order of levels decides the
    rest, so that it is the same everywhere."""
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
    """A row for every two levels that a line of REFUSED keeps apart, and the
    message; the other factors are at levels that nothing is against."""
    for first, second, message in REFUSED:
        (one, firsts), = first.items()
        (other, seconds), = second.items()
        for pair in itertools.product(sorted(firsts), sorted(seconds)):
            base = {"family": "llama2", "format": "bf16", "adapter": "rslora",
                    "ranks": 1} | dict(zip((one, other), pair))
            yield base, message


# Folders ---------------------------------------------------------------------


def lora_options(row):
    """As PEFT has them, targets written out; None: all weights."""
    options = ADAPTERS[row["adapter"]]
    if options is None:
        return None
    options, family = dict(options), FAMILIES[row["family"]]
    targets = list(family.targets)
    if options.get("target_modules") == "linears":
        is_dense = row["family"] in DENSE
        options["target_modules"] = "all-linear" if is_dense else targets
    options.setdefault("target_modules", targets)
    if row["adapter"] == "patterns":
        options["rank_pattern"] = {targets[0]: 7}
        options["alpha_pattern"] = {targets[1]: 3.5}
    if row["adapter"] == "embedding":
        options["target_modules"] = [targets[0], family.embedding]
        if family.tied:  # PEFT would train a copy of the head
            del options["modules_to_save"]
    return options


def adapted_linears(row):
    """Path, out and in of what the targets reach."""
    family, options = FAMILIES[row["family"]], lora_options(row)
    targets = options["target_modules"]
    top = "transformer.h" if row["family"] == "gpt2" else "model.layers"
    for i in options.get("layers_to_transform", (0, 1)):
        for path, shape in family.linears(f"{top}.{i}"):
            if targets == "all-linear" or any(
                    path.endswith("." + target) for target in targets):
                yield path, *(shape[::-1] if row["family"] == "gpt2"
                              else shape)


def expert_adapters(row, rank):
    """PEFT nests what is of one module: the second parameter is outside."""
    family = FAMILIES[row["family"]]
    hidden, count = family.sizes()[0], family.experts["count"]
    inner = family.experts["inner"]
    for i in range(2):
        module = f"model.layers.{i}.mlp.experts"
        for path, out, fan_in in ((f"{module}.base_layer", 2 * inner, hidden),
                                  (module, hidden, inner)):
            yield f"{path}.lora_A.weight", (rank * count, fan_in)
            yield f"{path}.lora_B.weight", (out, rank * count)


def adapter_shapes(row):
    """Under the names that PEFT saves, without base_model.model."""
    family, options = FAMILIES[row["family"]], lora_options(row)
    for path, out, fan_in in adapted_linears(row):
        rank = next((r for name, r in options.get("rank_pattern", {}).items()
                     if path.endswith("." + name)), options["r"])
        yield f"{path}.lora_A.weight", (rank, fan_in)
        yield f"{path}.lora_B.weight", (out, rank)
        if options.get("use_dora"):
            yield f"{path}.lora_magnitude_vector", (out,)
        if options.get("lora_bias"):
            yield f"{path}.lora_B.bias", (out,)
    if options.get("target_parameters"):
        yield from expert_adapters(row, options["r"])
    if row["adapter"] == "embedding":
        name, _, (vocabulary, hidden) = next(iter(family.tensors()))
        path = name[:-len(".weight")]
        yield f"{path}.lora_embedding_A", (options["r"], vocabulary)
        yield f"{path}.lora_embedding_B", (hidden, options["r"])
        if "modules_to_save" in options:
            yield "lm_head.weight", (vocabulary, hidden)


def adapter_tensors(row, seed):
    """Nothing is neutral: B of zeros would hide what A's gradient is."""
    tensors = {}
    for name, shape in adapter_shapes(row):
        if name.endswith("magnitude_vector"):
            values = draw(seed, name, shape, 0.1, 1.0)
        elif name.endswith(("lora_B.weight", "lora_B.bias", "embedding_A")):
            values = draw(seed, name, shape, 0.05)
        else:
            values = draw(seed, name, shape, shape[-1] ** -0.5)
        tensors[f"base_model.model.{name}"] = values
    return tensors


def write_adapter(folder, row, seed):
    options = lora_options(row)
    options.pop("loraplus_lr_ratio", None)
    os.makedirs(folder, exist_ok=True)
    safetensors_io.save(os.path.join(folder, "adapter_model.safetensors"),
                        adapter_tensors(row, seed))
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none",
              "lora_dropout": 0.0, "base_model_name_or_path": "model",
              "fan_in_fan_out": is_turned(row), **options}
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump(config, file)


def is_turned(row):
    """Whether PEFT adapts Conv1D; bitsandbytes makes linears of it."""
    return row["family"] == "gpt2" and FORMATS[row["format"]].is_plain()


def batches(row, seed):
    """Labels begin at random, and some rows have padding."""
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
    names = {"r": "lora_r", "target_modules": "lora_target_modules",
             "rank_pattern": "lora_rank_pattern",
             "alpha_pattern": "lora_alpha_pattern"}
    return values | {"adapter_name_or_path": "adapter_init"} | {
        names.get(name, name): value for name, value in options.items()}


def write_row(folder, row, seed):
    family, form = FAMILIES[row["family"]], FORMATS[row["format"]]
    write_model(os.path.join(folder, "model"), family, form, seed)
    if row["adapter"] != "full" and is_possible(row):
        write_adapter(os.path.join(folder, "adapter_init"), row, seed)
    safetensors_io.save(os.path.join(folder, "batches.safetensors"),
                        batches(row, seed))
    with open(os.path.join(folder, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in settings(row).items())


def sampled(logits):
    """16 of them, all over."""
    flat = np.asarray(logits, np.float32).reshape(-1)
    return [float(x) for x in flat[np.linspace(5, flat.size - 3, 16)
                                   .astype(int)]]
