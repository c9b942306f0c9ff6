// SPDX-License-Identifier: MIT

// Violates the labelled constraints of ops of generation.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{(C1) expects [slots, entries, C] in f32, bf16, f16 or i8, but got 'tensor<16x16xf32>'}}
model.cache @k : tensor<16x16xf32>

// -----

// expected-error @+1 {{(C1) expects [slots, entries, C] in f32, bf16, f16 or i8, but got 'tensor<?x16x16xf32>'}}
model.cache @k : tensor<?x16x16xf32>

// -----

// expected-error @+1 {{(C1) expects [slots, entries, C] in f32, bf16, f16 or i8, but got 'tensor<3x16x16xi32>'}}
model.cache @k : tensor<3x16x16xi32>

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c1_columns(%x: tensor<1x8x8xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C1) expects x [B, T, C] for a cache [S, E, C], but got 'tensor<1x8x8xf32>' and 'tensor<3x16x16xf32>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x8xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c1_rank(%x: tensor<8x16xf32>, %slots: tensor<8xi32>, %positions: tensor<8xi32>, %segments: tensor<8xi32>) {
  // expected-error @+1 {{(C1) expects x [B, T, C] for a cache [S, E, C], but got 'tensor<8x16xf32>' and}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<8x16xf32>, tensor<8xi32>, tensor<8xi32>, tensor<8xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c1_cache(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C1) expects x [B, T, C] for a cache [S, E, C], but got 'tensor<1x8x16xf32>' and 'tensor<48x16xf32>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<48x16xf32>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c2_slots(%x: tensor<1x8x16xf32>, %slots: tensor<8x1xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects slots, positions and segments of type [B, T] i32, but got 'tensor<8x1xi32>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<8x1xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c2_positions(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xf32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects slots, positions and segments of type [B, T] i32, but got 'tensor<1x8xf32>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xf32>, tensor<1x8xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c2_segments(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x4xi32>) {
  // expected-error @+1 {{(C2) expects slots, positions and segments of type [B, T] i32, but got 'tensor<1x4xi32>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x4xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c3_type(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C3) expects a cache of type 'tensor<3x16x16xbf16>', but got @k}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xbf16>
  return
}

// -----

model.cache @k : tensor<3x16x16xf32>
func.func @rows_c3_name(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C3) expects a cache of type 'tensor<3x16x16xf32>', but got @other}}
  %0 = model.cache_rows @other, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

model.parameter @w : tensor<3x16x16xf32> {file = "m.safetensors"}
func.func @rows_c3_parameter(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C3) expects a cache of type 'tensor<3x16x16xf32>', but got @w}}
  %0 = model.cache_rows @w, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xf32>
  return
}

// -----

func.func @attention_c1(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C1) expects heads to be a multiple of kv_heads, but got 4 and 3, of 8}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 3, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c1_none(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C1) expects heads to be a multiple of kv_heads, but got 4 and 0, of 8}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 0, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c2_q(%q: tensor<1x8x24xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects widths of 4 and 2 heads of 8 and a result of q's type}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x24xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x24xf32>
  return
}

// -----

func.func @attention_c2_rank(%q: tensor<32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects widths of 4 and 2 heads of 8 and a result of q's type}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<32xf32>
  return
}

// -----

func.func @attention_c2_keys(%q: tensor<1x8x32xf32>, %k: tensor<3x16x32xf32>, %v: tensor<3x16x32xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects widths of 4 and 2 heads of 8 and a result of q's type}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x32xf32>, tensor<3x16x32xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c2_cache(%q: tensor<1x8x32xf32>, %k: tensor<48x16xf32>, %v: tensor<48x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects widths of 4 and 2 heads of 8 and a result of q's type}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<48x16xf32>, tensor<48x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c2_result(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects widths of 4 and 2 heads of 8 and a result of q's type}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xbf16>
  return
}

// -----

func.func @attention_c3_slots(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C3) expects slots, positions and segments of type [B, T] i32, but got 'tensor<8xi32>'}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c3_positions(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x4xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C3) expects slots, positions and segments of type [B, T] i32, but got 'tensor<1x4xi32>'}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x4xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c3_segments(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xf32>) {
  // expected-error @+1 {{(C3) expects slots, positions and segments of type [B, T] i32, but got 'tensor<1x8xf32>'}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xf32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c4(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C4) expects values of the keys' type, but got 'tensor<3x8x16xf32>' and 'tensor<3x16x16xf32>'}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c5_window(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C5) expects a window of at least 0 and a finite cap of at least 0}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = -1, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c5_cap(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C5) expects a window of at least 0 and a finite cap of at least 0}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64, cap = -1.0 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c5_infinite(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C5) expects a window of at least 0 and a finite cap of at least 0}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64, cap = 0x7FF0000000000000 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c6(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>, %sinks: tensor<2xf32>) {
  // expected-error @+1 {{(C6) expects sinks of type f32 [4], but got 'tensor<2xf32>'}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments sinks %sinks {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<2xf32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c6_type(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>, %sinks: tensor<4xbf16>) {
  // expected-error @+1 {{(C6) expects sinks of type f32 [4], but got 'tensor<4xbf16>'}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments sinks %sinks {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<4xbf16>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c7(%q: tensor<1x8x32xf32>, %k: tensor<3x16x16xf32>, %v: tensor<3x16x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C7) expects entries for a window of 10 and the new tokens, but got 16}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 10, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xf32>, tensor<3x16x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @attention_c7_tokens(%q: tensor<1x8x32xf32>, %k: tensor<3x6x16xf32>, %v: tensor<3x6x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C7) expects entries for a window of 0 and the new tokens, but got 6}}
  %0 = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x6x16xf32>, tensor<3x6x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  return
}

// -----

func.func @pick_c1_rank(%x: tensor<8x16xf32>, %last: tensor<8xi32>) {
  // expected-error @+1 {{(C1) expects tokens i32 [B] and a result [B, 1, C] for x [B, T, C], but got 'tensor<8xi32>' and 'tensor<8x1x16xf32>' for 'tensor<8x16xf32>'}}
  %0 = model.pick_tokens %x, %last : (tensor<8x16xf32>, tensor<8xi32>) -> tensor<8x1x16xf32>
  return
}

// -----

func.func @pick_c1_tokens(%x: tensor<2x8x16xf32>, %last: tensor<2x8xi32>) {
  // expected-error @+1 {{(C1) expects tokens i32 [B] and a result [B, 1, C] for x [B, T, C], but got 'tensor<2x8xi32>' and 'tensor<2x1x16xf32>' for 'tensor<2x8x16xf32>'}}
  %0 = model.pick_tokens %x, %last : (tensor<2x8x16xf32>, tensor<2x8xi32>) -> tensor<2x1x16xf32>
  return
}

// -----

func.func @pick_c1_batch(%x: tensor<2x8x16xf32>, %last: tensor<3xi32>) {
  // expected-error @+1 {{(C1) expects tokens i32 [B] and a result [B, 1, C] for x [B, T, C], but got 'tensor<3xi32>' and 'tensor<2x1x16xf32>' for 'tensor<2x8x16xf32>'}}
  %0 = model.pick_tokens %x, %last : (tensor<2x8x16xf32>, tensor<3xi32>) -> tensor<2x1x16xf32>
  return
}

// -----

func.func @pick_c1_type(%x: tensor<2x8x16xf32>, %last: tensor<2xf32>) {
  // expected-error @+1 {{(C1) expects tokens i32 [B] and a result [B, 1, C] for x [B, T, C], but got 'tensor<2xf32>' and 'tensor<2x1x16xf32>' for 'tensor<2x8x16xf32>'}}
  %0 = model.pick_tokens %x, %last : (tensor<2x8x16xf32>, tensor<2xf32>) -> tensor<2x1x16xf32>
  return
}

// -----

func.func @pick_c1_result(%x: tensor<2x8x16xf32>, %last: tensor<2xi32>) {
  // expected-error @+1 {{(C1) expects tokens i32 [B] and a result [B, 1, C] for x [B, T, C], but got 'tensor<2xi32>' and 'tensor<2x1x16xbf16>' for 'tensor<2x8x16xf32>'}}
  %0 = model.pick_tokens %x, %last : (tensor<2x8x16xf32>, tensor<2xi32>) -> tensor<2x1x16xbf16>
  return
}

// -----

func.func @adapter_c1_width(%x: tensor<1x8x16xf32>, %w: tensor<24x3x8xf32>, %a: tensor<1x8xi32>) {
  // expected-error @+1 {{(C1) expects a weight f32 [out, N, in] for x [B, T, in], but got 'tensor<24x3x8xf32>' for 'tensor<1x8x16xf32>'}}
  %0 = model.adapter_linear %x, %w, %a : (tensor<1x8x16xf32>, tensor<24x3x8xf32>, tensor<1x8xi32>) -> tensor<1x8x24xf32>
  return
}

// -----

func.func @adapter_c1_type(%x: tensor<1x8x16xf32>, %w: tensor<24x3x16xbf16>, %a: tensor<1x8xi32>) {
  // expected-error @+1 {{(C1) expects a weight f32 [out, N, in] for x [B, T, in], but got 'tensor<24x3x16xbf16>' for}}
  %0 = model.adapter_linear %x, %w, %a : (tensor<1x8x16xf32>, tensor<24x3x16xbf16>, tensor<1x8xi32>) -> tensor<1x8x24xf32>
  return
}

// -----

func.func @adapter_c2(%x: tensor<1x8x16xf32>, %w: tensor<24x3x16xf32>, %a: tensor<1x8xi32>) {
  // expected-error @+1 {{(C2) expects a result [B, T, out], but got 'tensor<1x8x23xf32>' for}}
  %0 = model.adapter_linear %x, %w, %a : (tensor<1x8x16xf32>, tensor<24x3x16xf32>, tensor<1x8xi32>) -> tensor<1x8x23xf32>
  return
}

// -----

func.func @adapter_c3(%x: tensor<1x8x16xf32>, %w: tensor<24x3x16xf32>, %a: tensor<1x8xi32>, %i: tensor<1x8x24xbf16>) {
  // expected-error @+1 {{(C3) expects init of type 'tensor<1x8x24xf32>'}}
  %0 = model.adapter_linear %x, %w, %a init %i : (tensor<1x8x16xf32>, tensor<24x3x16xf32>, tensor<1x8xi32>, tensor<1x8x24xbf16>) -> tensor<1x8x24xf32>
  return
}

// -----

func.func @adapter_c4(%x: tensor<1x8x16xf32>, %w: tensor<24x3x16xf32>, %a: tensor<8xi32>) {
  // expected-error @+1 {{(C4) expects adapters of type [B, T] i32, but got 'tensor<8xi32>'}}
  %0 = model.adapter_linear %x, %w, %a : (tensor<1x8x16xf32>, tensor<24x3x16xf32>, tensor<8xi32>) -> tensor<1x8x24xf32>
  return
}

// -----

model.cache @k : tensor<3x16x18xi8>
func.func @rows_c4_scales(%x: tensor<1x8x16xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C4) expects an i8 cache for 16 elements and the scales of heads of a multiple of 4 elements, but got 'tensor<3x16x18xi8>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x18xi8>
  return
}

// -----

model.cache @k : tensor<3x16x36xi8>
func.func @rows_c4_heads(%x: tensor<1x8x20xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>) {
  // expected-error @+1 {{(C4) expects an i8 cache for 20 elements and the scales of heads of a multiple of 4 elements, but got 'tensor<3x16x36xi8>'}}
  %0 = model.cache_rows @k, %x, %slots, %positions, %segments : (tensor<1x8x20xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x36xi8>
  return
}
