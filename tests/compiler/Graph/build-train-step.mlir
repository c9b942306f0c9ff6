// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step | FileCheck %s
// RUN: not qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --build-train-step 2>&1 | FileCheck %s --check-prefix=NOTHING

// CHECK: train.step accumulate batch 2 length 32
// The loss and its gradient are one op; the forward one is gone.
// CHECK-NOT: model.head_loss
// CHECK: %[[LOSS:.*]], %[[COUNT:.*]], %{{.*}}, %[[DH:.*]] = train.head_loss_grad
// CHECK: train.result "loss_sum", %[[LOSS]] {accumulate
// Gradients are accumulated as soon as they are complete.
// CHECK: train.accumulate @base_model.model.l.0.o_proj.lora_B.weight
// CHECK: train.accumulate @base_model.model.l.0.o_proj.lora_A.weight
// CHECK: train.attention_grad
// CHECK: train.accumulate @base_model.model.l.0.q_proj.lora_A.weight
// Nothing flows into the frozen embedding: no dX of the first layer.
// CHECK-NOT: model.linear {{.*}} -> tensor<2x32x64xf32>
// CHECK: train.step evaluate batch 2 length 32
// CHECK: model.head_loss
// CHECK: train.step update batch 0 length 0
// CHECK: train.clip_norm
// CHECK: train.adamw
// CHECK: train.clear gradient

// NOTHING: nothing to train: no parameter is trainable
