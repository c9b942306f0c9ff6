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


def load_base(case):
    """The case's model in float32; 4-bit weights as what they stand for."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the matrices are small
    folder = settings(case)["model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    stored = os.path.join(folder, "..", "nf4.safetensors")
    if os.path.exists(stored):
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in load_file(stored).items():
                if name.endswith(".dequantized"):
                    parameters[name[:-len(".dequantized")]].copy_(value)
    return model
