# SPDX-License-Identifier: MIT

"""The adapters of the covering array: ADAPTERS has an entry for each. Makes
PEFT's options for a row of the array, and the adapter folder that a run starts
from.
"""

import json
import os

import safetensors_io
from covering_formats import FORMATS, NARROW, draw
from covering_models import FAMILIES

SPARSE = {name for name, family in FAMILIES.items() if family.experts}
DENSE = set(FAMILIES) - SPARSE
# PEFT's option names that have the prefix "lora_" in qlora.
OURS = ("r", "target_modules", "rank_pattern", "alpha_pattern")

# PEFT's options of each adapter, in addition to common options. "linears"
# stands for all-linear, or for the target modules of an MoE family.
ADAPTERS = {
    "all-linear": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "patterns": {"r": 4, "lora_alpha": 12, "layers_to_transform": [1]},
    "rslora": {"r": 5, "lora_alpha": 3, "target_modules": "linears",
               "use_rslora": True},
    "dora": {"r": 3, "lora_alpha": 6, "target_modules": "linears",
             "use_dora": True},
    "lora-bias": {"r": 4, "lora_alpha": 8, "target_modules": "linears",
                  "lora_bias": True},
    "bias-all": {"r": 2, "lora_alpha": 4, "target_modules": "linears",
                 "bias": "all"},
    "bias-lora": {"r": 4, "lora_alpha": 6, "bias": "lora_only"},
    "pissa": {"r": 4, "lora_alpha": 8, "target_modules": "linears",
              "init_lora_weights": "pissa"},
    "plus": {"r": 2, "lora_alpha": 7, "target_modules": "linears",
             "loraplus_lr_ratio": 3.0},
    "embedding": {"r": 6, "lora_alpha": 9, "modules_to_save": ["lm_head"]},
    "experts": {"r": 3, "lora_alpha": 5, "target_parameters": [
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    "full": None,
}


def family_of(row):
    return FAMILIES[row["family"]].stored_as(FORMATS[row["format"]])


def lora_options(row):
    """Returns PEFT's options, targets written out; None: full fine-tuning."""
    options = ADAPTERS[row["adapter"]]
    if options is None:
        return None
    options, family = dict(options), family_of(row)
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
    if row["adapter"] == "pissa":  # one output allows only rank 1
        options["rank_pattern"] = {name: 1 for name in targets
                                   if name in NARROW}
    return options


def adapted_linears(row):
    """Yields path, output width and input width of the modules that the targets
    match."""
    family, options = family_of(row), lora_options(row)
    targets = options["target_modules"]
    top = "transformer.h" if row["family"] == "gpt2" else "model.layers"
    for i in options.get("layers_to_transform", (0, 1)):
        for path, shape in family.linears(f"{top}.{i}"):
            if targets == "all-linear" or any(
                    path.endswith("." + target) for target in targets):
                yield path, *(shape[::-1] if row["family"] == "gpt2"
                              else shape)


def expert_adapters(row, rank):
    """Lists the adapters of expert weights. PEFT wraps a module once per
    parameter, so the wrapper of the second parameter is the outer one."""
    family = family_of(row)
    hidden, count = family.sizes()[0], family.experts["count"]
    inner = family.experts["inner"]
    for i in range(2):
        module = f"model.layers.{i}.mlp.experts"
        for path, out, fan_in in ((f"{module}.base_layer", 2 * inner, hidden),
                                  (module, hidden, inner)):
            yield f"{path}.lora_A.weight", (rank * count, fan_in)
            yield f"{path}.lora_B.weight", (out, rank * count)


def bias_shapes(row):
    """Yields the biases of the model that the option `bias` makes trainable."""
    which, adapted = lora_options(row).get("bias", "none"), {
        path for path, _, _ in adapted_linears(row)}
    for name, _, shape in family_of(row).tensors():
        path, _, last = name.rpartition(".")
        if last == "bias" and path in adapted and which != "none":
            yield f"{path}.base_layer.bias", shape
        elif last == "bias" and which == "all":
            yield name, shape


def adapter_shapes(row):
    """Yields the names that PEFT saves, without base_model.model."""
    family, options = family_of(row), lora_options(row)
    yield from bias_shapes(row)
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
    """Draws an adapter's tensors. Avoids values that hide errors: with zeros in
    B, for example, the gradient of A would be zero."""
    tensors = {}
    for name, shape in adapter_shapes(row):
        if name.endswith("magnitude_vector"):
            values = draw(seed, name, shape, 0.1, 1.0)
        elif name.endswith(("lora_B.weight", "lora_B.bias", "embedding_A")):
            values = draw(seed, name, shape, 0.05)
        elif name.endswith(".bias"):
            values = draw(seed, name, shape, 0.1)
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
    """Returns whether PEFT adapts Conv1D modules, whose weights are [in, out].
    bitsandbytes replaces them with linear modules."""
    return row["family"] == "gpt2" and FORMATS[row["format"]].is_plain()


def named(options):
    """Returns PEFT's options with our names."""
    return {f"lora_{name}" if name in OURS else name: value
            for name, value in options.items()}


def has_start(row):
    """Returns whether there is an adapter to start from."""
    return row["adapter"] not in ("full", "pissa")
