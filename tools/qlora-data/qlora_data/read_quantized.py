# SPDX-License-Identifier: MIT

"""Reads quantized models for read_back.py, with the library of each format."""

import hashlib
import importlib.metadata
import inspect
import json
import os

# Packages that transformers needs for a quant_method.
PACKAGES = {"bitsandbytes": ["bitsandbytes", "accelerate"],
            "compressed-tensors": ["compressed_tensors"],
            "mxfp4": ["accelerate"]}


def method_of(folder):
    """Returns the quant_method of config.json, or None."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file).get("quantization_config", {}).get(
            "quant_method")


def packages_for(folder):
    return PACKAGES.get(method_of(folder), [])


def is_unknown(folder):
    """Returns whether this transformers is too old for the format."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
    method = method_of(folder)
    return method is not None and not any(
        name.startswith(method) for name in AUTO_QUANTIZER_MAPPING)


def reader_name(folder):
    """Returns the library's name and version, to follow transformers'."""
    name = packages_for(folder)[:1]
    if not name or name == ["accelerate"]:
        return ""
    return f", {name[0]} {importlib.metadata.version(name[0])}"


def decode_linear(linear, state):
    """Returns a linear with the values that bitsandbytes decodes."""
    import torch
    from bitsandbytes import functional
    # Decodes all rows as one: the AVX-512 kernel of bitsandbytes 0.50 takes
    # wrong scales if blocks cross rows.
    row = functional.QuantState(
        absmax=state.absmax, shape=torch.Size((1, state.shape.numel())),
        code=state.code, blocksize=state.blocksize,
        quant_type=state.quant_type, dtype=torch.float32, offset=state.offset,
        state2=state.state2)
    values = functional.dequantize_4bit(linear.weight.data, row)
    dense = torch.nn.Linear(*reversed(state.shape), bias=False)
    dense.weight = torch.nn.Parameter(values.reshape(state.shape))
    dense.bias = linear.bias
    return dense


def compute_in_float32(model):
    """Replaces bitsandbytes' linears, which round to other types."""
    import torch
    found = False
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            state = getattr(getattr(child, "weight", None), "quant_state",
                            None)
            if state is not None:
                setattr(module, name, decode_linear(child, state))
                found = True
    if found:
        # Other tensors keep the types of the files. The model's own float()
        # refuses quantized models.
        torch.nn.Module.float(model)


def decoded_rows(folder, load):
    """Loads the model again, with weights that compressed-tensors decodes."""
    from transformers import CompressedTensorsConfig
    known = inspect.signature(CompressedTensorsConfig).parameters
    how = ({"dequantize": True} if "dequantize" in known
           else {"run_compressed": False})
    model = load(folder, quantization_config=CompressedTensorsConfig(**how))
    yield from model.state_dict().items()


def decoded_experts(model):
    """Yields experts [n, in, out], decoded by transformers, as [n, out, in]."""
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 3:
            yield name, tensor.transpose(1, 2)


def decoded(model, folder, load):
    method = method_of(folder)
    if method == "bitsandbytes":
        yield from model.state_dict().items()
    elif method == "compressed-tensors":
        yield from decoded_rows(folder, load)
    else:
        yield from decoded_experts(model)


def compare_decoded(model, folder, digests, load):
    """Compares decoded weights with `digests`: {name: SHA-256 of float32}.
    Returns the number of equal weights, and the names of others."""
    different = dict(digests)
    for name, tensor in decoded(model, folder, load):
        # Files of a base model lack the first names of the path.
        while name not in digests and "." in name:
            name = name.split(".", 1)[1]
        if name not in digests:
            continue
        values = tensor.detach().float().cpu().contiguous().numpy()
        if hashlib.sha256(values.tobytes()).hexdigest() == digests[name]:
            del different[name]
    return (len(digests) - len(different),
            [f"{name}, decoded" for name in different])
