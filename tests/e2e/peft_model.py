# SPDX-License-Identifier: MIT

"""Golden cases in transformers + PEFT: what the live comparisons share.

torch is imported where it is used, so that a script can say first that it is
missing().
"""

import importlib.util
import os

from goldens import settings


def missing():
    """What these comparisons need and this python does not have."""
    return [name for name in ("torch", "transformers", "peft")
            if importlib.util.find_spec(name) is None]


def decoded(tensors):
    """A state dict with what bitsandbytes packed as the numbers it means."""
    from bitsandbytes.functional import QuantState, dequantize_4bit
    values = {}
    for name, value in tensors.items():
        parts = {other[len(name) + 1:]: part for other, part in tensors.items()
                 if other.startswith(name + ".")}
        if parts:
            state = QuantState.from_dict(parts, device="cpu")
            value = dequantize_4bit(value, state)
        if ".weight." not in name:
            values[name] = value.float()
    return values


def load_base(case):
    """The case's model in float32; 4-bit weights as what they stand for."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the matrices are small
    folder = settings(case)["model_name_or_path"]
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
        model = AutoModelForCausalLM.from_config(
            config, torch_dtype=torch.float32, attn_implementation="eager")
        model.load_state_dict(
            decoded(load_file(os.path.join(folder, "model.safetensors"))))
    else:
        model = AutoModelForCausalLM.from_pretrained(
            folder, torch_dtype=torch.float32, attn_implementation="eager")
    stored = os.path.join(folder, "..", "nf4.safetensors")
    if settings(case).get("load_in_4bit") and os.path.exists(stored):
        with torch.no_grad():
            for name, value in load_file(stored).items():
                if name.endswith(".weight.dequantized"):
                    module = model.get_submodule(
                        name[:-len(".weight.dequantized")])
                    turned = type(module).__name__ == "Conv1D"
                    module.weight.copy_(value.T if turned else value)
    return model
