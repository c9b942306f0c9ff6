// SPDX-License-Identifier: MIT

// Ops of generation can be printed and parsed again.

// RUN: qlora-opt %s | qlora-opt | FileCheck %s
// RUN: qlora-opt %s --mlir-print-op-generic | qlora-opt | FileCheck %s

// CHECK: model.cache @keys : tensor<3x16x16xbf16>
model.cache @keys : tensor<3x16x16xbf16>
// CHECK: model.cache @values : tensor<3x16x16xbf16>
model.cache @values : tensor<3x16x16xbf16>
// CHECK: model.cache @half : tensor<3x11x16xf16>
model.cache @half : tensor<3x11x16xf16>
// CHECK: model.cache @full : tensor<3x11x16xf32>
model.cache @full : tensor<3x11x16xf32>

// CHECK-LABEL: func.func @prefill
func.func @prefill(%x: tensor<1x8x16xf32>, %q: tensor<1x8x32xf32>, %sinks: tensor<4xf32>, %slots: tensor<1x8xi32>, %positions: tensor<1x8xi32>, %segments: tensor<1x8xi32>, %last: tensor<1xi32>) {
  // CHECK: %[[K:.*]] = model.cache_rows @keys, %[[X:.*]], %[[SLOTS:.*]], %[[POSITIONS:.*]], %[[SEGMENTS:[^ ]*]] {layer = 0 : i64} : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xbf16>
  %k = model.cache_rows @keys, %x, %slots, %positions, %segments {layer = 0 : i64} : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xbf16>
  // CHECK: %[[V:.*]] = model.cache_rows @values, %[[X]],
  %v = model.cache_rows @values, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x16x16xbf16>
  // CHECK: %[[Y:.*]] = model.cached_attention %{{.*}}, %[[K]], %[[V]], %[[SLOTS]], %[[POSITIONS]], %[[SEGMENTS]] {head_dim = 8 : i64, heads = 4 : i64, kv_heads = 2 : i64, scale = 5.000000e-01 : f64, window = 0 : i64} : (tensor<1x8x32xf32>, tensor<3x16x16xbf16>, tensor<3x16x16xbf16>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  %y = model.cached_attention %q, %k, %v, %slots, %positions, %segments {heads = 4, kv_heads = 2, head_dim = 8, window = 0, scale = 0.5 : f64} : (tensor<1x8x32xf32>, tensor<3x16x16xbf16>, tensor<3x16x16xbf16>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8x32xf32>
  // A cache of 11 entries is the smallest for a window of 4 and 8 new tokens.
  // CHECK: model.cached_attention {{.*}} sinks %{{.*}} {cap = 5.000000e+01 : f64, head_dim = 8 : i64, heads = 4 : i64, kv_heads = 2 : i64, scale = 5.000000e-01 : f64, window = 4 : i64}
  %full = model.cache_rows @full, %x, %slots, %positions, %segments : (tensor<1x8x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<3x11x16xf32>
  %z = model.cached_attention %y, %full, %full, %slots, %positions, %segments sinks %sinks {heads = 4, kv_heads = 2, head_dim = 8, window = 4, scale = 0.5 : f64, cap = 50.0 : f64} : (tensor<1x8x32xf32>, tensor<3x11x16xf32>, tensor<3x11x16xf32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<1x8xi32>, tensor<4xf32>) -> tensor<1x8x32xf32>
  // CHECK: model.pick_tokens %{{.*}}, %{{.*}} : (tensor<1x8x32xf32>, tensor<1xi32>) -> tensor<1x1x32xf32>
  %token = model.pick_tokens %z, %last : (tensor<1x8x32xf32>, tensor<1xi32>) -> tensor<1x1x32xf32>
  return
}

// CHECK-LABEL: func.func @decode
func.func @decode(%x: tensor<3x1x16xbf16>, %slots: tensor<3x1xi32>, %positions: tensor<3x1xi32>, %segments: tensor<3x1xi32>, %last: tensor<3xi32>) {
  // CHECK: model.cache_rows @half, {{.*}} -> tensor<3x11x16xf16>
  %half = model.cache_rows @half, %x, %slots, %positions, %segments : (tensor<3x1x16xbf16>, tensor<3x1xi32>, tensor<3x1xi32>, tensor<3x1xi32>) -> tensor<3x11x16xf16>
  // CHECK: model.pick_tokens %{{.*}}, %{{.*}} : (tensor<3x1x16xbf16>, tensor<3xi32>) -> tensor<3x1x16xbf16>
  %token = model.pick_tokens %x, %last : (tensor<3x1x16xbf16>, tensor<3xi32>) -> tensor<3x1x16xbf16>
  return
}

// CHECK-LABEL: func.func @adapters
func.func @adapters(%x: tensor<1x8x16xbf16>, %w: tensor<24x3x16xf32>, %adapters: tensor<1x8xi32>, %init: tensor<1x8x24xbf16>) {
  // CHECK: %[[Y:.*]] = model.adapter_linear %{{.*}}, %{{.*}}, %{{.*}} : (tensor<1x8x16xbf16>, tensor<24x3x16xf32>, tensor<1x8xi32>) -> tensor<1x8x24xbf16>
  %y = model.adapter_linear %x, %w, %adapters : (tensor<1x8x16xbf16>, tensor<24x3x16xf32>, tensor<1x8xi32>) -> tensor<1x8x24xbf16>
  // CHECK: model.adapter_linear %{{.*}}, %{{.*}}, %{{.*}} init %[[Y]] {layer = 2 : i64}
  %z = model.adapter_linear %x, %w, %adapters init %y {layer = 2} : (tensor<1x8x16xbf16>, tensor<24x3x16xf32>, tensor<1x8xi32>, tensor<1x8x24xbf16>) -> tensor<1x8x24xbf16>
  return
}
