#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Finite differences for the derivative rule of every model op.

    gradients.py --tools build/bin

For each op a small forward graph is compiled with all its weights trainable
(modules_to_save) and the gradient of one micro-batch is dumped. For each
parameter the loss is then evaluated at W + h D and W - h D for a random
direction D: (loss+ - loss-) / 2h must equal <gradient, D>.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors_io  # noqa: E402
from gradient_losses import (  # noqa: E402
    B, H, HEAD, LOSSES, MASK, ONE, T, V, X, routers)

# Name of the op -> parameters in addition to embedding and head, and MLIR that
# computes %y from %x (both [B, T, H]).
CASES = {
    "embedding, head_loss": ({}, "%y = model.add %x, %x : XX"),
    # The layout of matrix A of an embedding's adapter.
    "embedding [out, in]": ({"w": (H, V)}, """
      %w = model.weight @w.weight : tensor<16x24xf32>
      %e2 = model.embedding %ids, %w layout out_in
          : (tensor<?x?xi32>, tensor<16x24xf32>) -> XX
      %y = model.add %x, %e2 : XX"""),
    "linear": ({"w": (H, H)}, """
      %w = model.weight @w.weight : tensor<16x16xf32>
      %y = model.linear %x, %w init %x {module = "w", scale = 0.7 : f64}
          : (XX, tensor<16x16xf32>, XX) -> XX"""),
    "linear [in, out]": ({"w": (H, 8), "v": (8, H)}, """
      %w = model.weight @w.weight : tensor<16x8xf32>
      %v = model.weight @v.weight : tensor<8x16xf32>
      %n = model.linear %x, %w layout in_out {module = "w"}
          : (XX, tensor<16x8xf32>) -> tensor<?x?x8xf32>
      %y = model.linear %n, %v layout in_out init %x
          {module = "v", scale = 0.7 : f64}
          : (tensor<?x?x8xf32>, tensor<8x16xf32>, XX) -> XX"""),
    "rms_norm": ({"n": (H,)}, """
      %n = model.weight @n.weight : tensor<16xf32>
      %y = model.rms_norm %x, %n {epsilon = 1.0e-5 : f64}
          : (XX, tensor<16xf32>) -> XX"""),
    "rms_norm by head": ({"n": (4,)}, """
      %n = model.weight @n.weight : tensor<4xf32>
      %y = model.rms_norm %x, %n {epsilon = 1.0e-5 : f64}
          : (XX, tensor<4xf32>) -> XX"""),
    "layer_norm": ({"n": (H,), "b": (H,)}, """
      %n = model.weight @n.weight : tensor<16xf32>
      %b = model.weight @b.weight : tensor<16xf32>
      %y = model.layer_norm %x, %n, %b {epsilon = 1.0e-5 : f64}
          : (XX, tensor<16xf32>, tensor<16xf32>) -> XX"""),
    # All activations, applied to results of other ops.
    "activation": ({"w": (H, H)}, """
      %w = model.weight @w.weight : tensor<16x16xf32>
      %g = model.activation gelu %x : XX
      %t = model.linear %g, %w {module = "w"}
          : (XX, tensor<16x16xf32>) -> XX
      %u = model.activation gelu_tanh %t : XX
      %s = model.activation silu %u : XX
      %m = model.add %s, %x : XX
      %r = model.activation relu %m : XX
      %q = model.activation relu2 %t : XX
      %a = model.add %r, %u : XX
      %y = model.add %a, %q : XX"""),
    "rope": ({}, """
      %cos, %sin = model.rope_table %positions
          {frequencies = array<f32: 1.0, 0.1, 1.0, 0.1>,
           attention_factor = 1.0 : f64}
          : (tensor<?x?xi32>) -> (tensor<?x?x4xf32>, tensor<?x?x4xf32>)
      %y = model.rope %x, %cos, %sin
          : (XX, tensor<?x?x4xf32>, tensor<?x?x4xf32>) -> XX"""),
    # RoPE rotates 2 of the 4 columns of a head. Some segments are longer than
    # the original length.
    "rope of a part": ({}, """
      %cos, %sin = model.rope_table %positions, %lengths
          {frequencies = array<f32: 1.0, 1.0>,
           long_frequencies = array<f32: 0.3, 0.3>, original_length = 3 : i64,
           attention_factor = 1.2 : f64}
          : (tensor<?x?xi32>, tensor<?x?xi32>)
          -> (tensor<?x?x4xf32>, tensor<?x?x4xf32>)
      %y = model.rope %x, %cos, %sin {rotated = 2 : i64}
          : (XX, tensor<?x?x4xf32>, tensor<?x?x4xf32>) -> XX"""),
    "rms_norm above one": ({"n": (H,)}, """
      %n = model.weight @n.weight : tensor<16xf32>
      %y = model.rms_norm %x, %n {epsilon = 1.0e-5 : f64, offset = 1.0 : f64}
          : (XX, tensor<16xf32>) -> XX"""),
    "glu": ({"w": (H, H)}, """
      %w = model.weight @w.weight : tensor<16x16xf32>
      %g = model.linear %x, %w {module = "w"}
          : (XX, tensor<16x16xf32>) -> XX
      %s = model.glu silu %g, %x : XX
      %y = model.glu gelu_tanh %s, %g : XX"""),
    "scale": ({}, """
      %y = model.scale %x {factor = 1.7 : f64} : XX"""),
    "add_bias": ({"b": (H,)}, """
      %b = model.weight @b.weight : tensor<16xf32>
      %y = model.add_bias %x, %b : (XX, tensor<16xf32>) -> XX"""),
    # The norm has no gradient, because it depends only on frozen weights.
    "magnitude": ({"m": (H,)}, """
      %f0 = model.weight @frozen.weight : tensor<16x16xf32>
      %n = model.adapted_norm %f0, %f0, %f0 {scale = 0.3 : f64}
          : (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>)
            -> tensor<16xf32>
      %m = model.weight @m.weight : tensor<16xf32>
      %y = model.magnitude %x, %m, %n
          : (XX, tensor<16xf32>, tensor<16xf32>) -> XX"""),
    "gate_rows": ({"g": (1, H), "w": (H, H)}, """
      %g = model.weight @g.weight : tensor<1x16xf32>
      %w = model.weight @w.weight : tensor<16x16xf32>
      %n = model.linear %x, %g {module = "g"}
          : (XX, tensor<1x16xf32>) -> tensor<?x?x1xf32>
      %m = model.linear %x, %w {module = "w"}
          : (XX, tensor<16x16xf32>) -> XX
      %y = model.gate_rows %m, %n : (XX, tensor<?x?x1xf32>) -> XX"""),
    # A third of the tokens have trainable rows. The factors of scale_rows
    # depend on x.
    "match_tokens, scale_rows": ({"d": (8, H)}, """
      %list = model.token_list
          {tokens = array<i64: 23, 0, 3, 6, 9, 12, 15, 18>} : tensor<8xf32>
      %is, %rest = model.match_tokens %ids, %list
          : (tensor<?x?xi32>, tensor<8xf32>)
            -> (tensor<?x?x8xf32>, tensor<?x?xf32>)
      %d = model.weight @d.weight : tensor<8x16xf32>
      %a = model.scale_rows %x, %rest : (XX, tensor<?x?xf32>) -> XX
      %b = model.linear %is, %d layout in_out init %a
          : (tensor<?x?x8xf32>, tensor<8x16xf32>, XX) -> XX
      %c, %s = model.rows(%x)
          attributes {columns = 16 : i64, maps = [#model.map<full>]}
          : (XX) -> (XX, tensor<?x?xf32>) {
      ^bb0(%p: tensor<16xf32>):
        %sum = model.row_sum %p : tensor<16xf32>
        model.row_yield %p, %sum : tensor<16xf32>, f32
      }
      %y = model.scale_rows %b, %s : (XX, tensor<?x?xf32>) -> XX"""),
    "dropout": ({}, """
      %y = model.dropout %x {probability = 0.3 : f64, id = 5 : i64} : XX"""),
    "noise": ({}, """
      %y = model.noise %x {magnitude = 0.3 : f64, id = 6 : i64} : XX"""),
    "attention": ({"k": (8, H), "v": (8, H)}, """
      %wk = model.weight @k.weight : tensor<8x16xf32>
      %wv = model.weight @v.weight : tensor<8x16xf32>
      %k = model.linear %x, %wk {module = "k"}
          : (XX, tensor<8x16xf32>) -> tensor<?x?x8xf32>
      %v = model.linear %x, %wv {module = "v"}
          : (XX, tensor<8x16xf32>) -> tensor<?x?x8xf32>
      %y, %lse = model.attention %x, %k, %v, %segments
          {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64,
           window = 4 : i64, scale = 0.5 : f64}
          : (XX, tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?xi32>)
            -> (XX, tensor<?x4x?xf32>)"""),
    "attention with a cap": ({"k": (8, H), "v": (8, H)}, """
      %wk = model.weight @k.weight : tensor<8x16xf32>
      %wv = model.weight @v.weight : tensor<8x16xf32>
      %k = model.linear %x, %wk {module = "k"}
          : (XX, tensor<8x16xf32>) -> tensor<?x?x8xf32>
      %v = model.linear %x, %wv {module = "v"}
          : (XX, tensor<8x16xf32>) -> tensor<?x?x8xf32>
      %y, %lse = model.attention %x, %k, %v, %segments
          {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64,
           window = 0 : i64, scale = 0.5 : f64, cap = 1.5 : f64}
          : (XX, tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?xi32>)
            -> (XX, tensor<?x4x?xf32>)"""),
    # @u has the weights of the experts along the rows, @d along the columns
    # (groups_last).
    "experts": ({"r": (4, H), "u": (32, H), "d": (H, 32)}, """
      %r = model.weight @r.weight : tensor<4x16xf32>
      %u = model.weight @u.weight : tensor<32x16xf32>
      %d = model.weight @d.weight : tensor<16x32xf32>
      %l = model.linear %x, %r {module = "r"}
          : (XX, tensor<4x16xf32>) -> tensor<?x?x4xf32>
      %p, %c = model.route %l
          : (tensor<?x?x4xf32>) -> (tensor<?x?x2xf32>, tensor<?x?x2xi32>)
      %order, %places, %experts, %offsets = model.sort_by_expert %c
          : (tensor<?x?x2xi32>)
            -> (tensor<?x?x2xi32>, tensor<?x?x2xi32>,
                tensor<?x?x2xi32>, tensor<5xi32>)
      %g = model.gather_rows %x, %order, %places
          : (XX, tensor<?x?x2xi32>, tensor<?x?x2xi32>)
            -> tensor<?x?x2x16xf32>
      %m = model.grouped_linear %g, %u, %offsets {module = "e.u"}
          : (tensor<?x?x2x16xf32>, tensor<32x16xf32>, tensor<5xi32>)
            -> tensor<?x?x2x8xf32>
      %o = model.grouped_linear %m, %d, %offsets init %g
          {module = "e.d", scale = 0.7 : f64, groups_last}
          : (tensor<?x?x2x8xf32>, tensor<16x32xf32>, tensor<5xi32>,
             tensor<?x?x2x16xf32>) -> tensor<?x?x2x16xf32>
      %y = model.combine_rows %o, %order, %places weights %p
          : (tensor<?x?x2x16xf32>, tensor<?x?x2xi32>, tensor<?x?x2xi32>,
             tensor<?x?x2xf32>) -> XX"""),
    "experts, turned": ({"r": (3, H), "u": (48, 8), "d": (8, 48)}, """
      %r = model.weight @r.weight : tensor<3x16xf32>
      %u = model.weight @u.weight : tensor<48x8xf32>
      %d = model.weight @d.weight : tensor<8x48xf32>
      %l = model.linear %x, %r {module = "r"}
          : (XX, tensor<3x16xf32>) -> tensor<?x?x3xf32>
      %p, %c = model.route %l {over_all}
          : (tensor<?x?x3xf32>) -> (tensor<?x?x2xf32>, tensor<?x?x2xi32>)
      %order, %places, %experts, %offsets = model.sort_by_expert %c
          : (tensor<?x?x2xi32>)
            -> (tensor<?x?x2xi32>, tensor<?x?x2xi32>,
                tensor<?x?x2xi32>, tensor<4xi32>)
      %g = model.gather_rows %x, %order, %places weights %p
          : (XX, tensor<?x?x2xi32>, tensor<?x?x2xi32>, tensor<?x?x2xf32>)
            -> tensor<?x?x2x16xf32>
      %m = model.grouped_linear %g, %u, %offsets layout in_out
          {module = "e.u"}
          : (tensor<?x?x2x16xf32>, tensor<48x8xf32>, tensor<4xi32>)
            -> tensor<?x?x2x8xf32>
      %o = model.grouped_linear %m, %d, %offsets layout in_out
          {module = "e.d", groups_last}
          : (tensor<?x?x2x8xf32>, tensor<8x48xf32>, tensor<4xi32>)
            -> tensor<?x?x2x16xf32>
      %y = model.combine_rows %o, %order, %places
          : (tensor<?x?x2x16xf32>, tensor<?x?x2xi32>, tensor<?x?x2xi32>)
            -> XX"""),
    # Experts have biases. gate and up are interleaved and clamped.
    "experts of gpt-oss": ({"r": (3, H), "u": (48, 8), "b": (3, 8),
                            "d": (12, H)}, """
      %r = model.weight @r.weight : tensor<3x16xf32>
      %u = model.weight @u.weight : tensor<48x8xf32>
      %b = model.weight @b.weight : tensor<3x8xf32>
      %d = model.weight @d.weight : tensor<12x16xf32>
      %l = model.linear %x, %r {module = "r"}
          : (XX, tensor<3x16xf32>) -> tensor<?x?x3xf32>
      %p, %c = model.route %l
          : (tensor<?x?x3xf32>) -> (tensor<?x?x2xf32>, tensor<?x?x2xi32>)
      %order, %places, %experts, %offsets = model.sort_by_expert %c
          : (tensor<?x?x2xi32>)
            -> (tensor<?x?x2xi32>, tensor<?x?x2xi32>,
                tensor<?x?x2xi32>, tensor<4xi32>)
      %g = model.gather_rows %x, %order, %places
          : (XX, tensor<?x?x2xi32>, tensor<?x?x2xi32>)
            -> tensor<?x?x2x16xf32>
      %i = model.embedding %experts, %b
          : (tensor<?x?x2xi32>, tensor<3x8xf32>) -> tensor<?x?x2x8xf32>
      %m = model.grouped_linear %g, %u, %offsets layout in_out init %i
          {module = "e.u"}
          : (tensor<?x?x2x16xf32>, tensor<48x8xf32>, tensor<4xi32>,
             tensor<?x?x2x8xf32>) -> tensor<?x?x2x8xf32>
      %t = model.transpose_rows %m {inner = 2 : i64}
          : (tensor<?x?x2x8xf32>) -> tensor<?x?x2x8xf32>
      %gate, %up = model.split %t
          : (tensor<?x?x2x8xf32>)
            -> (tensor<?x?x2x4xf32>, tensor<?x?x2x4xf32>)
      %s = model.glu silu %gate, %up
          {limit = 0.7 : f64, slope = 1.702 : f64, offset = 1.0 : f64}
          : tensor<?x?x2x4xf32>
      %o = model.grouped_linear %s, %d, %offsets layout in_out
          {module = "e.d"}
          : (tensor<?x?x2x4xf32>, tensor<12x16xf32>, tensor<4xi32>)
            -> tensor<?x?x2x16xf32>
      %y = model.combine_rows %o, %order, %places weights %p
          : (tensor<?x?x2x16xf32>, tensor<?x?x2xi32>, tensor<?x?x2xi32>,
             tensor<?x?x2xf32>) -> XX"""),
    # Padding does not count in the routers' loss.
    "router_loss of two layers": ({"r": (4, H), "s": (4, H)}, routers("3.0")),
    "split, concat": ({}, """
      %a, %b = model.split %x : (XX) -> (tensor<?x?x4xf32>, tensor<?x?x12xf32>)
      %c = model.add %b, %b : tensor<?x?x12xf32>
      %y = model.concat %c, %a
          : (tensor<?x?x12xf32>, tensor<?x?x4xf32>) -> XX"""),
    "rows": ({}, """
      %y = model.rows(%x, %x)
          attributes {columns = 16 : i64,
                      maps = [#model.map<full>, #model.map<full>]}
          : (XX, XX) -> XX {
      ^bb0(%p: tensor<16xf32>, %q: tensor<16xf32>):
        %one = arith.constant 1.0 : f32
        %ones = model.row_splat %one : tensor<16xf32>
        %ex = math.exp %p : tensor<16xf32>
        %s = arith.addf %ex, %ones : tensor<16xf32>
        %r = math.sqrt %s : tensor<16xf32>
        %d = arith.divf %q, %r : tensor<16xf32>
        %i = math.sin %d : tensor<16xf32>
        %j = math.cos %q : tensor<16xf32>
        %m = arith.subf %i, %j : tensor<16xf32>
        %n = arith.negf %m : tensor<16xf32>
        model.row_yield %n : tensor<16xf32>
      }"""),
    "rows, smooth functions": ({"w": (H, H)}, """
      %w = model.weight @w.weight : tensor<16x16xf32>
      %g = model.linear %x, %w {module = "w"} : (XX, tensor<16x16xf32>) -> XX
      %y = model.rows(%x, %g)
          attributes {columns = 16 : i64,
                      maps = [#model.map<full>, #model.map<full>]}
          : (XX, XX) -> XX {
      ^bb0(%p: tensor<16xf32>, %q: tensor<16xf32>):
        %t = math.tanh %p : tensor<16xf32>
        %soft = math.erf %q : tensor<16xf32>
        %grown = math.exp %t : tensor<16xf32>
        %s = arith.mulf %soft, %soft : tensor<16xf32>
        %a = arith.addf %grown, %s : tensor<16xf32>
        %l = math.log %a : tensor<16xf32>
        %m = arith.mulf %l, %soft : tensor<16xf32>
        model.row_yield %m : tensor<16xf32>
      }"""),
    "rows, largest": ({}, """
      %y = model.rows(%x)
          attributes {columns = 16 : i64, maps = [#model.map<full>]}
          : (XX) -> XX {
      ^bb0(%p: tensor<16xf32>):
        %size = math.absf %p : tensor<16xf32>
        %most = model.row_max %size : tensor<16xf32>
        %all = model.row_splat %most : tensor<16xf32>
        %m = arith.mulf %p, %all : tensor<16xf32>
        model.row_yield %m : tensor<16xf32>
      }"""),
    # The chosen functions are continuous, but their slopes jump.
    "rows, choices": ({"w": (H, H)}, """
      %w = model.weight @w.weight : tensor<16x16xf32>
      %g = model.linear %x, %w {module = "w"} : (XX, tensor<16x16xf32>) -> XX
      %y = model.rows(%x, %g)
          attributes {columns = 16 : i64,
                      maps = [#model.map<full>, #model.map<full>]}
          : (XX, XX) -> XX {
      ^bb0(%p: tensor<16xf32>, %q: tensor<16xf32>):
        %c = arith.constant 0.25 : f32
        %limit = model.row_splat %c : tensor<16xf32>
        %a = arith.maximumf %p, %q : tensor<16xf32>
        %b = arith.minimumf %p, %limit : tensor<16xf32>
        %is = arith.cmpf ogt, %q, %limit : tensor<16xf32>
        %r = arith.mulf %q, %q : tensor<16xf32>
        %u = arith.mulf %q, %limit : tensor<16xf32>
        %d = arith.select %is, %r, %u : tensor<16xi1>, tensor<16xf32>
        %m = arith.mulf %a, %b : tensor<16xf32>
        %s = arith.addf %d, %m : tensor<16xf32>
        model.row_yield %s : tensor<16xf32>
      }"""),
}

CASES |= {name: ({}, "%y = model.add %x, %x : XX") for name in LOSSES}


def write_model(folder, extra, body, loss, random):
    shapes = {"embed": (V, H), "head": (V, H), "out": (H, H),
              "frozen": (H, H), **extra}
    tensors = {f"{name}.weight":
               random.standard_normal(shape).astype(np.float32) * 0.5
               for name, shape in shapes.items()}
    safetensors_io.save(os.path.join(folder, "model.safetensors"), tensors)
    lines = "\n".join(
        f'model.parameter @{name}.weight : tensor<'
        f'{"x".join(map(str, shape))}xf32> {{file = "model.safetensors"}}'
        for name, shape in shapes.items())
    results = {"%loss": ONE, "%count": ONE, "%correct": MASK}
    if "%router" in body:
        results["%router"] = ONE
    names, types = ", ".join(results), ", ".join(results.values())
    text = f"""module attributes {{model.folder = "{folder}",
    model.config = {{vocab_size = {V} : i64}}}} {{
{lines}
func.func @forward(%ids: {MASK} {{model.input = "ids"}},
    %targets: {MASK} {{model.input = "targets"}},
    %positions: {MASK} {{model.input = "positions"}},
    %segments: {MASK} {{model.input = "segments"}},
    %lengths: {MASK} {{model.input = "lengths"}})
    -> ({types}) {{
  %e = model.weight @embed.weight : tensor<{V}x{H}xf32>
  %x = model.embedding %ids, %e : ({MASK}, tensor<{V}x{H}xf32>) -> XX
  {body}
  %wo = model.weight @out.weight : tensor<{H}x{H}xf32>
  %z = model.linear %y, %wo {{module = "out"}}
      : (XX, tensor<{H}x{H}xf32>) -> XX
  %wf = model.weight @frozen.weight : tensor<{H}x{H}xf32>
  %f = model.linear %z, %wf {{module = "frozen"}}
      : (XX, tensor<{H}x{H}xf32>) -> XX
  %h = model.weight @head.weight : tensor<{V}x{H}xf32>
  {loss}
  return {names} : {types}
}}
}}
""".replace("XX", X)
    with open(os.path.join(folder, "m.mlir"), "w") as file:
        file.write(text)
    return tensors


def write_batch(folder, random):
    ids = random.integers(0, V, (1, B, T)).astype(np.int32)
    segments = np.ones((1, B, T), np.int32)
    segments[0, 1, :3] = 2  # two examples in the second row, then padding
    segments[0, 1, -1] = 0
    segments[0, 1, 3:-1] = 3
    labels = ids.copy()
    labels[segments == 0] = -100
    labels[0, 1, 3] = labels[0, :, 0] = -100
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), (1, B, T))
    safetensors_io.save(os.path.join(folder, "batches.safetensors"),
                        {"input_ids": ids, "labels": labels,
                         "position_ids": np.ascontiguousarray(positions),
                         "segment_ids": segments})


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def loss_of(tools, folder):
    """Runs the program. Returns the loss of the micro-batch, in f32 with all
    digits, and the dump."""
    out, dump = f"{folder}/out", f"{folder}/dump.safetensors"
    call([f"{tools}/qlora-run", f"{folder}/t.so", "--output-dir", out,
          "--overwrite-output-dir",
          "--dump", dump])
    with open(f"{out}/metrics.jsonl") as lines:
        step = next(row for row in map(json.loads, lines) if "loss" in row)
    return step["loss"], safetensors_io.load(dump)


def check(tools, name, extra, body, random):
    with tempfile.TemporaryDirectory() as folder:
        weights = write_model(folder, extra, body, LOSSES.get(name, HEAD),
                              random)
        write_batch(folder, random)
        trained = [key for key in weights if key != "frozen.weight"
                   and not (key == "head.weight" and name in LOSSES)]
        saved = [key.rsplit(".", 1)[0] for key in trained]
        call([f"{tools}/qloracc", "--target=cpu",
              f"{folder}/m.mlir", "-o", f"{folder}/t.so",
              "--per-device-train-batch-size", str(B), "--max-length", str(T),
              "--compute-dtype", "float32", "--lora-target-modules",
              '["frozen"]', "--lora-r", "2",
              "--modules-to-save", json.dumps(saved), "--max-steps", "1",
              "--learning-rate", "0", "--max-grad-norm", "0",
              "--lr-scheduler-type", "constant", "--logging-steps", "1",
              "--train-file", f"{folder}/batches.safetensors"])
        _, dump = loss_of(tools, folder)
        worst = 0.0
        for key in trained:
            gradient = next(value for entry, value in dump.items()
                            if entry.startswith("grad.")
                            and entry.endswith("." + key)).astype(np.float64)
            # Near the gradient's direction, differences are largest compared
            # with rounding.
            direction = (gradient / np.linalg.norm(gradient) + 0.5 *
                         random.standard_normal(gradient.shape)
                         / np.sqrt(gradient.size))
            losses = []
            h = 2e-2
            for sign in (1, -1):
                moved = dict(weights)
                moved[key] = (weights[key]
                              + sign * h * direction).astype(np.float32)
                safetensors_io.save(f"{folder}/model.safetensors", moved)
                losses.append(loss_of(tools, folder)[0])
            measured = (losses[0] - losses[1]) / (2 * h)
            expected = float((gradient * direction).sum())
            error = abs(measured - expected) / abs(expected)
            worst = max(worst, error)
            if not error < 1e-2:
                print(f"FAIL {name}: {key}: finite difference {measured:.6g}, "
                      f"gradient {expected:.6g}")
                return False
        print(f"ok   {name}: {len(trained)} parameters, worst {worst:.1e}",
              flush=True)
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    options = parser.parse_args()
    # Each case has its own seed, so that changes of other cases do not affect
    # it. With these seeds, no finite-difference step changes a token's experts.
    results = [check(options.tools, name, extra, body,
                     np.random.default_rng(zlib.crc32(name.encode())))
               for name, (extra, body) in CASES.items()]
    print(f"gradients: {sum(results)} passed, "
          f"{len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
