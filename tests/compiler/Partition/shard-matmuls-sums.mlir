// SPDX-License-Identifier: MIT

// Positions at which partial sums are reduced.

// RUN: qlora-opt %s --shard-matmuls=ranks=2 | FileCheck %s

// A value that all ranks have is added once, after the reduction of the partial
// sums. An op that rounds its rows gets the reduced sum.
// CHECK: func.func @whole_init
// CHECK: %[[P:.*]] = model.linear %{{.*}}, %{{.*}} {module = "d2"} : {{.*}} -> tensor<1x16x128xf32>
// CHECK-NEXT: %[[PS:.*]] = model.all_sum %[[P]]
// CHECK-NEXT: %[[PA:.*]] = model.add %{{.*}}, %[[PS]]
// CHECK: model.linear %[[PA]], %{{.*}} {int8_threshold = 6.0

model.parameter @table : tensor<96x128xf32> {file = "m.safetensors"}
model.parameter @head : tensor<96x128xbf16> {file = "m.safetensors"}
model.parameter @u2 : tensor<256x128xbf16> {file = "m.safetensors"}
model.parameter @d2 : tensor<128x256xbf16> {file = "m.safetensors"}
model.parameter @i8 : tensor<128x128x!model.quantized<llm_int8, 128, false>> {file = "m.safetensors", stored_quantized}

func.func @whole_init(%ids: tensor<1x16xi32> {model.input = "ids"},
                      %targets: tensor<1x16xi32> {model.input = "targets"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>)
    attributes {model.batch = 1 : i64, model.length = 16 : i64} {
  %table = model.weight @table : tensor<96x128xf32>
  %x = model.embedding %ids, %table : (tensor<1x16xi32>, tensor<96x128xf32>) -> tensor<1x16x128xf32>
  %wu = model.weight @u2 : tensor<256x128xbf16>
  %u = model.linear %x, %wu {module = "u2"} : (tensor<1x16x128xf32>, tensor<256x128xbf16>) -> tensor<1x16x256xf32>
  %g = model.activation silu %u : tensor<1x16x256xf32>
  %wd = model.weight @d2 : tensor<128x256xbf16>
  %y = model.linear %g, %wd init %x {module = "d2"} : (tensor<1x16x256xf32>, tensor<128x256xbf16>, tensor<1x16x128xf32>) -> tensor<1x16x128xf32>
  %wi = model.weight @i8 : tensor<128x128x!model.quantized<llm_int8, 128, false>>
  %z = model.linear %y, %wi {module = "i8", int8_threshold = 6.0 : f64} : (tensor<1x16x128xf32>, tensor<128x128x!model.quantized<llm_int8, 128, false>>) -> tensor<1x16x128xf32>
  %wh = model.weight @head : tensor<96x128xbf16>
  %loss, %count, %correct = model.head_loss %z, %wh, %targets : (tensor<1x16x128xf32>, tensor<96x128xbf16>, tensor<1x16xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x16xi32>
}
