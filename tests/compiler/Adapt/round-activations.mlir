// SPDX-License-Identifier: MIT

// Matmuls of modules with integer weights round their input. Matmuls with
// weights in other formats, LoRA's matmuls and gradients do not.

// RUN: qlora-opt %s --round-activations | FileCheck %s
// RUN: qlora-opt %s --round-activations=threshold=0 | FileCheck %s --check-prefix=NONE
// RUN: qlora-opt %s --round-activations --plan-dequant=form=once | FileCheck %s --check-prefix=PLAN
// RUN: qlora-opt %s --round-activations --plan-dequant=form=per-use | FileCheck %s --check-prefix=PLAN
// RUN: sed 's/llm_int8/fp8/' %s | not qlora-opt - --round-activations 2>&1 | FileCheck %s --check-prefix=FORMAT
// RUN: sed 's,^//8-experts ,,' %s | not qlora-opt - --round-activations 2>&1 | FileCheck %s --check-prefix=EXPERTS

// FORMAT: error: --llm-int8-activations int8 needs LLM.int8 weights, but no linear has them; add --load-in-8bit, or remove the option
// EXPERTS: error: --llm-int8-activations int8: 'experts.up_proj' has LLM.int8 weights, but only linears support int8 activations; use --llm-int8-activations dequantized

// CHECK-LABEL: train.step accumulate
// CHECK: model.linear %{{.*}} {int8_threshold = 6.000000e+00 : f64, module = "q"}
// CHECK: model.linear %{{.*}} {module = "f"}
// CHECK: model.linear %{{.*}} {layer = 0 : i64}
// CHECK: model.linear %{{.*}} layout in_out {phase = #model.phase<backward>}
// NONE: int8_threshold = 0.000000e+00

// The forward multiplies with the stored weight, so plan-dequant decodes only
// for the backward.
// PLAN: model.parameter @q : tensor<64x64x!model.quantized<llm_int8, 64, false>>
// PLAN: %[[Q:.*]] = model.weight @q
// PLAN: model.linear %{{.*}}, %[[Q]] {int8_threshold
// PLAN: model.linear {{.*}}layout in_out

model.parameter @q : tensor<64x64x!model.quantized<llm_int8, 64, false>> {file = "a", stored_quantized}
model.parameter @f : tensor<64x64x!model.quantized<fp8, 64, false>> {file = "a", stored_quantized}
model.parameter @a : tensor<64x64xf32> {init = "zero", trainable}

train.step accumulate batch 1 length 4 ["ids"] {
^bb0(%ids: tensor<1x4xi32>):
  %q = model.weight @q : tensor<64x64x!model.quantized<llm_int8, 64, false>>
  %f = model.weight @f : tensor<64x64x!model.quantized<fp8, 64, false>>
  %a = model.weight @a : tensor<64x64xf32>
  %x = model.embedding %ids, %a : (tensor<1x4xi32>, tensor<64x64xf32>) -> tensor<1x4x64xf32>
  %y = model.linear %x, %q {module = "q"} : (tensor<1x4x64xf32>, tensor<64x64x!model.quantized<llm_int8, 64, false>>) -> tensor<1x4x64xf32>
  %z = model.linear %y, %f {module = "f"} : (tensor<1x4x64xf32>, tensor<64x64x!model.quantized<fp8, 64, false>>) -> tensor<1x4x64xf32>
  %xa = model.linear %z, %a {layer = 0 : i64} : (tensor<1x4x64xf32>, tensor<64x64xf32>) -> tensor<1x4x64xf32>
  %dx = model.linear %xa, %q layout in_out {phase = #model.phase<backward>} : (tensor<1x4x64xf32>, tensor<64x64x!model.quantized<llm_int8, 64, false>>) -> tensor<1x4x64xf32>
  %da = train.linear_weight_grad %xa, %dx {phase = #model.phase<backward>, scale = 1.0 : f64} : (tensor<1x4x64xf32>, tensor<1x4x64xf32>) -> tensor<64x64xf32>
  train.accumulate @a, %da {phase = #model.phase<backward>} : tensor<64x64xf32>
}

//8-experts func.func @experts(%x: tensor<4x64xf32>, %w: tensor<64x64x!model.quantized<llm_int8, 64, false>>, %o: tensor<3xi32>) -> tensor<4x32xf32> {
//8-experts   %y = model.grouped_linear %x, %w, %o {module = "experts.up_proj"} : (tensor<4x64xf32>, tensor<64x64x!model.quantized<llm_int8, 64, false>>, tensor<3xi32>) -> tensor<4x32xf32>
//8-experts   return %y : tensor<4x32xf32>
//8-experts }
