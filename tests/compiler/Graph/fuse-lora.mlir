// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj","k_proj","v_proj"]' --fuse-lora | FileCheck %s

// CHECK: %[[Q0:.*]] = model.linear %[[X:.*]], %{{.*}} {module = "l.0.q_proj"}
// CHECK: %[[XA:.*]] = model.linear %[[X]], %{{.*}} : (tensor<?x?x64xf32>, tensor<12x64xf32>)
// CHECK: %[[PARTS:.*]]:3 = model.split %[[XA]]
// B adds into the base GEMM's output.
// CHECK: %[[Q:.*]] = model.linear %[[PARTS]]#0, %{{.*}} init %[[Q0]]
// CHECK: model.linear %[[PARTS]]#1, %{{.*}} init
// CHECK: model.linear %[[PARTS]]#2, %{{.*}} init
// A residual is read again, so it stays an add.
// CHECK: model.add
// The three A's are rows of one parameter: 3 * 4 = 12.
// CHECK: model.parameter @base_model.model.l.0.q_proj.lora_A.weight.group : tensor<12x64xf32>
// CHECK-SAME: part_names = ["base_model.model.l.0.q_proj.lora_A.weight", "base_model.model.l.0.k_proj.lora_A.weight", "base_model.model.l.0.v_proj.lora_A.weight"]
// CHECK-SAME: part_rows = array<i64: 4, 4, 4>
