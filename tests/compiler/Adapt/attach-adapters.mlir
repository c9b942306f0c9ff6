// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=8 targets=["q_proj"]' | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=8 rslora=true rank-pattern={{"v_proj":16}}' | FileCheck %s --check-prefix=ALL
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 dropout=0.1 targets=["q_proj","k_proj"]' | FileCheck %s --check-prefix=DROP
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 dropout=0.1 targets=["q_proj","down"]' | FileCheck %s --check-prefix=TWO
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj","v_proj"] exclude=["0.v_proj"]' | FileCheck %s --check-prefix=EXCLUDE
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' -e 's/%%ids, %%e : \(.*\)$/%%ids, %%e {padding = 3 : i64} : \1/' %S/../Inputs/layer.mlir | qlora-opt - --attach-adapters='r=4 alpha=8 dropout=0.1 targets=["q_proj","embed_tokens"]' | FileCheck %s --check-prefix=EMBED
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=8 bias=true targets=["q_proj"]' | FileCheck %s --check-prefix=BIAS
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=8 dora=true targets=["q_proj"]' | FileCheck %s --check-prefix=DORA
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 alpha=8 dora=true dropout=0.1 targets=["q_proj"]' | FileCheck %s --check-prefix=DORADROP
// RUN: qlora-opt %S/../Inputs/layer.mlir --quantize-base --attach-adapters='r=4 alpha=8 init-a=factor init-b=factor targets=["q_proj"]' | FileCheck %s --check-prefix=FACTOR
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='targets=["query"]' 2>&1 | FileCheck %s --check-prefix=NONE

// The module attribute lists the weights that the runtime decomposes for
// initial values, and the method.
// FACTOR: module attributes {model.adapter_factors = {base_model.model.l.0.q_proj.lora_A.weight = {scale = 2.000000e+00 : f64, turned = false, weight = "wq"}}
// FACTOR-DAG: model.parameter @base_model.model.l.0.q_proj.lora_A.weight : tensor<4x64xf32> {init = "factor", trainable}
// FACTOR-DAG: model.parameter @base_model.model.l.0.q_proj.lora_B.weight : tensor<64x4xf32> {init = "factor", trainable}

// CHECK-NOT: model.adapter_dropout
// CHECK: %[[Y0:.*]] = model.linear %[[X:.*]], %{{.*}} {module = "l.0.q_proj"}
// CHECK: %[[A:.*]] = model.weight @base_model.model.l.0.q_proj.lora_A.weight
// CHECK: %[[XA:.*]] = model.linear %[[X]], %[[A]] :
// CHECK: %[[B:.*]] = model.weight @base_model.model.l.0.q_proj.lora_B.weight
// The scale is alpha / r = 8 / 4.
// CHECK: %[[YB:.*]] = model.linear %[[XA]], %[[B]] {scale = 2.000000e+00 : f64}
// CHECK: %[[Y:.*]] = model.add %[[Y0]], %[[YB]]
// CHECK: model.rope %[[Y]],
// CHECK-DAG: model.parameter @base_model.model.l.0.q_proj.lora_A.weight : tensor<4x64xf32> {init = "kaiming", trainable}
// CHECK-DAG: model.parameter @base_model.model.l.0.q_proj.lora_B.weight : tensor<64x4xf32> {init = "zero", trainable}
// CHECK-NOT: k_proj.lora_A

// alpha / sqrt(r): 8 / sqrt(4) = 4, and 8 / sqrt(16) = 2 for v_proj.
// ALL: model.linear {{.*}} {scale = 4.000000e+00 : f64}
// ALL-DAG: model.parameter @base_model.model.l.0.v_proj.lora_A.weight : tensor<16x64xf32>
// ALL-DAG: model.parameter @base_model.model.l.0.down.lora_B.weight : tensor<64x4xf32>

// Sibling modules share one mask, and the module attribute names them.
// DROP: module attributes {{.*}}model.adapter_dropout = {
// DROP-SAME: base_model.model.l.0.k_proj.lora_A.weight = {op = 1 : i64, probability = 1.000000e-01 : f64},
// DROP-SAME: base_model.model.l.0.q_proj.lora_A.weight = {op = 1 : i64, probability = 1.000000e-01 : f64}}
// DROP: %[[D:.*]] = model.dropout
// DROP: model.linear %[[D]],
// DROP-NOT: model.dropout
// DROP: model.linear %[[D]],

// Modules with different inputs have different dropout masks.
// TWO: base_model.model.l.0.down.lora_A.weight = {op = 2 : i64,
// TWO-SAME: base_model.model.l.0.q_proj.lora_A.weight = {op = 1 : i64,

// NONE: lora_target_modules
// NONE-SAME: query

// EXCLUDE-NOT: v_proj.lora_A
// EXCLUDE: q_proj.lora_A

// The LM head shares the table but not the adapter. It has no dropout.
// EMBED: %[[E:.*]] = model.weight @embed_tokens.weight
// EMBED: %[[Y0:.*]] = model.embedding %[[IDS:.*]], %[[E]] {padding = 3 : i64}
// EMBED: %[[A:.*]] = model.weight @base_model.model.embed_tokens.lora_embedding_A : tensor<4x128xf32>
// EMBED: %[[XA:.*]] = model.embedding %[[IDS]], %[[A]] layout out_in {padding = 3 : i64}
// EMBED: %[[B:.*]] = model.weight @base_model.model.embed_tokens.lora_embedding_B : tensor<64x4xf32>
// EMBED: %[[YB:.*]] = model.linear %[[XA]], %[[B]] {scale = 2.000000e+00 : f64}
// EMBED: model.add %[[Y0]], %[[YB]]
// EMBED: model.head_loss %{{.*}}, %[[E]],
// EMBED-DAG: model.parameter @base_model.model.embed_tokens.lora_embedding_A : tensor<4x128xf32> {init = "zero", trainable}
// EMBED-DAG: model.parameter @base_model.model.embed_tokens.lora_embedding_B : tensor<64x4xf32> {init = "normal", trainable}

// The norm covers all factors of the matmul. It is the initial magnitude.
// DORA: %[[Y0:.*]] = model.linear %[[X:.*]], %[[W:.*]] {module = "l.0.q_proj"}
// DORA: %[[A:.*]] = model.weight @base_model.model.l.0.q_proj.lora_A.weight
// DORA: %[[B:.*]] = model.weight @base_model.model.l.0.q_proj.lora_B.weight
// DORA: %[[SUM:.*]] = model.add %[[Y0]],
// DORA: %[[M:.*]] = model.weight @base_model.model.l.0.q_proj.lora_magnitude_vector : tensor<64xf32>
// DORA: %[[NORM:.*]] = model.adapted_norm %[[W]], %[[A]], %[[B]] starts @base_model.model.l.0.q_proj.lora_magnitude_vector {scale = 2.000000e+00 : f64}
// DORA: %[[Y:.*]] = model.magnitude %[[SUM]], %[[M]], %[[NORM]]
// DORA: model.rope %[[Y]],
// DORA: model.parameter @base_model.model.l.0.q_proj.lora_magnitude_vector : tensor<64xf32> {init = "computed", trainable}

// With dropout, the base's matmul still reads x without the mask.
// DORADROP: %[[D:.*]] = model.dropout %[[X:.*]] {
// DORADROP: %[[Y0:.*]] = model.linear %[[X]], %[[W:.*]] {module = "l.0.q_proj"}
// DORADROP: %[[YB:.*]] = model.linear %{{.*}}, %{{.*}} {scale = 2.000000e+00 : f64}
// DORADROP: %[[WD:.*]] = model.linear %[[D]], %[[W]] {module = "l.0.q_proj"}
// DORADROP: %[[MINUS:.*]] = model.scale %[[WD]] {factor = -1.000000e+00 : f64}
// DORADROP: %[[REST:.*]] = model.add %[[Y0]], %[[MINUS]]
// DORADROP: %[[SUM:.*]] = model.add %[[WD]], %[[YB]]
// DORADROP: %[[SCALED:.*]] = model.magnitude %[[SUM]],
// DORADROP: %[[Y:.*]] = model.add %[[REST]], %[[SCALED]]
// DORADROP: model.rope %[[Y]],

// BIAS: %[[SUM:.*]] = model.add
// BIAS: %[[BIAS:.*]] = model.weight @base_model.model.l.0.q_proj.lora_B.bias : tensor<64xf32>
// BIAS: %[[SCALED:.*]] = model.scale %[[BIAS]] {factor = 2.000000e+00 : f64}
// BIAS: %[[Y:.*]] = model.add_bias %[[SUM]], %[[SCALED]]
// BIAS: model.rope %[[Y]],
// BIAS: model.parameter @base_model.model.l.0.q_proj.lora_B.bias : tensor<64xf32> {init = "zero", trainable}
