// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows="fuse=false" | FileCheck %s --check-prefix=SINGLE

// The residual and the norm after it are one kernel with two results, as the
// residual is read again.
// CHECK: %{{.*}}:2 = model.rows(%{{.*}}, %{{.*}}, %{{.*}}) attributes {columns = 64 : i64, label = "add__rms_norm"
// CHECK: %[[H:.*]] = arith.addf
// CHECK: model.row_sum
// CHECK: model.row_yield %[[H]], %{{.*}}
// The gradient of the norm takes the residual's gradient in.
// CHECK: label = "rms_norm_grad__add"

// SINGLE-NOT: __
// SINGLE: label = "add"
// SINGLE: label = "rms_norm"
