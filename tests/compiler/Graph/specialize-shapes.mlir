// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32,48 compute-type=bfloat16" | FileCheck %s
// RUN: not qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=1" 2>&1 | FileCheck %s --check-prefix=SHORT
// RUN: not qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=8 compute-type=f8" 2>&1 | FileCheck %s --check-prefix=TYPE

// One function per length. Activations become bf16; the log-sum-exp and the
// loss stay f32, weights and ids keep their types.
// CHECK-LABEL: func.func @forward_32(
// CHECK-SAME: tensor<2x32xi32>
// CHECK-SAME: model.batch = 2 : i64, model.length = 32 : i64
// CHECK: model.embedding {{.*}} (tensor<2x32xi32>, tensor<128x64xbf16>) -> tensor<2x32x64xbf16>
// CHECK: model.attention {{.*}} -> (tensor<2x32x64xbf16>, tensor<2x32x8xf32>)
// CHECK: model.head_loss {{.*}} -> (tensor<1xf32>, tensor<1xf32>, tensor<2x32xi32>)
// CHECK-LABEL: func.func @forward_48(
// CHECK: tensor<2x48x64xbf16>
// CHECK-NOT: func.func @forward(

// SHORT: expects a length of at least 2, since a token predicts the next, but got 1
// TYPE: expects float32 or bfloat16 as compute type, but got 'f8'
