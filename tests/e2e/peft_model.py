# SPDX-License-Identifier: MIT

"""Golden cases in transformers + PEFT: shared by the live comparisons.

torch is imported where it is used, so that a script can first report that it
is missing().
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile

from golden_case import settings

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "Inputs"))


def missing():
    """Returns the required packages that this Python lacks."""
    return [name for name in ("torch", "transformers", "peft")
            if importlib.util.find_spec(name) is None]


def decoded(tensors):
    """Returns a state dict with stored weights decoded to f32."""
    from bnb_values import decode_stored
    from stored_formats import decode_fp8, decode_integers
    values = {}
    for name, value in tensors.items():
        module, _, part = name.rpartition(".")
        parts = {other[len(module) + 1:]: tensor for other, tensor
                 in tensors.items() if other.rpartition(".")[0] == module}
        if f"{name}.absmax" in tensors:
            values[name] = decode_stored(tensors, name)
        elif part == "qweight":  # AWQ files have no g_idx
            values[f"{module}.weight"] = decode_integers(
                parts, awq="g_idx" not in parts)
        elif part == "weight" and "weight_scale_inv" in parts:
            values[name] = decode_fp8(parts)
        elif ".weight." not in name and part not in (
                "qzeros", "scales", "g_idx", "weight_scale_inv"):
            values[name] = value.float()
    return values


@contextlib.contextmanager
def plain_folder(folder):
    """Returns the model folder, or a copy in which stored weights are
    decoded."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    stored = config.pop("quantization_config", {"quant_method": "mxfp4"})
    if stored["quant_method"] == "mxfp4":  # transformers decodes MXFP4
        yield folder
        return
    from safetensors.torch import load_file, save_file
    with tempfile.TemporaryDirectory() as copy:
        with open(os.path.join(copy, "config.json"), "w") as file:
            json.dump(config, file)
        save_file(decoded(load_file(os.path.join(folder,
                                                 "model.safetensors"))),
                  os.path.join(copy, "model.safetensors"), {"format": "pt"})
        yield copy


def auto_class(case):
    """Returns the transformers class of a case's base model."""
    import transformers
    with open(os.path.join(case, "case.json")) as file:
        return getattr(transformers, json.load(file).get(
            "auto", "AutoModelForCausalLM"))


def load_base(case):
    """Returns the case's model in float32, with decoded quantized weights."""
    import torch
    from safetensors.torch import load_file
    from transformers import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the matrices are small
    folder, more = settings(case)["model_name_or_path"], {}
    with open(os.path.join(folder, "config.json")) as file:
        if "mxfp4" in str(json.load(file).get("quantization_config")):
            from transformers import Mxfp4Config
            more["quantization_config"] = Mxfp4Config(dequantize=True)
    with plain_folder(folder) as plain:
        model = auto_class(case).from_pretrained(
            plain, torch_dtype=torch.float32, attn_implementation="eager",
            **more).float()
    for bits, name in ((4, "nf4.safetensors"), (8, "int8.safetensors")):
        stored = os.path.join(folder, "..", name)
        if settings(case).get(f"load_in_{bits}bit") and os.path.exists(stored):
            set_values(model, load_file(stored))
    return model.eval()


def set_values(model, tensors):
    """Sets parameters to the decoded values of quantized ones."""
    end = ".dequantized"
    for name, value in tensors.items():
        if name.endswith(end):
            parameter = model.get_parameter(name[:-len(end)])
            module = model.get_submodule(name[:-len(end)].rpartition(".")[0])
            turned = type(module).__name__ == "Conv1D"
            parameter.data.copy_(value.T if turned else value)


def first_row(path):
    """Returns the token ids [1, T] of the first row of a train file; for
    packed rows, of the first segment."""
    from safetensors.torch import load_file
    batches = load_file(path)
    ids = batches["input_ids"][0, :1].long()
    if "segment_ids" in batches:
        segments = batches["segment_ids"][0, 0]
        ids = ids[:, :int((segments == segments[0]).sum())]
    return ids
