# SPDX-License-Identifier: MIT

"""Checks the values that tests/e2e/covering_formats.py assigns to its codes:
bnb_values.py and stored_formats.py, which implement the formats' definitions,
decode the same. Used by covering.py."""

import itertools
import os
import tempfile

import torch
from safetensors.torch import load_file

from bnb_values import decode_stored
from covering_adapters import family_of
from covering_formats import FORMATS
from covering_models import write_model
from covering_rows import name_of
from stored_formats import TILE, decode_fp8, decode_integers


def decode_bnb4(tensors, module):
    return decode_stored(tensors, f"{module}.weight")


def decode_scaled(tensors, module):
    """Finds out from the scales' shape whether the tensor, each row or each
    tile has a scale."""
    codes = tensors[f"{module}.weight"]
    scales = tensors[f"{module}.weight_scale"]
    rows, columns = (
        codes.shape if scales.numel() == 1 else (1, codes.shape[1])
        if scales.shape == (len(codes), 1) else (TILE, TILE))
    return decode_fp8({"weight": codes, "scale": scales}, rows, columns,
                      "scale")


def decode_words(tensors, module):
    parts = {part: tensors[f"{module}.{part}"] for part in
             ("qweight", "qzeros", "scales")}
    return decode_integers(parts, awq=f"{module}.g_idx" not in tensors)


# Detects the format from a tensor that no other format has.
DECODERS = {".weight.absmax": decode_bnb4, ".weight_scale": decode_scaled,
            ".qweight": decode_words}


def check_decoding(row, seed):
    """Checks that DECODERS decode a stored model to the weights that
    covering_formats.py gives the decoded model."""
    with tempfile.TemporaryDirectory() as work:
        for name, decoded in (("stored", False), ("decoded", True)):
            write_model(os.path.join(work, name), family_of(row),
                        FORMATS[row["format"]], seed, decoded)
        tensors, plain = (load_file(os.path.join(
            work, name, "model.safetensors")) for name in ("stored",
                                                           "decoded"))
    for name, (end, decode) in itertools.product(tensors, DECODERS.items()):
        if name.endswith(end):
            module = name[:-len(end)]
            expected = plain[f"{module}.weight"]
            if not torch.equal(decode(tensors, module), expected.T
                               if row["family"] == "gpt2" else expected):
                raise SystemExit(f"{module} of {name_of(row)} stands for other "
                                 "numbers")
