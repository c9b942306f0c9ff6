// SPDX-License-Identifier: MIT

// Chooses the first implementation that accepts the launch, with its maximum
// workspace. Every rejection is reported with a reason.

// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --quantize-base --attach-adapters='r=4' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients --lower-to-program --select-kernels | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --quantize-base --attach-adapters='r=4' --fuse-lora --build-train-step --fuse-accumulate --fuse-rows --bucket-gradients --lower-to-program --select-kernels=target=cuda | FileCheck %s --check-prefix=CUDA
// RUN: qlora-opt %s --select-kernels --remark-policy=all --remarks-filter=select-kernels 2>&1 | FileCheck %s --check-prefix=SMALL
// RUN: qlora-opt %s --select-kernels=target=cuda --remark-policy=all --remarks-filter=select-kernels 2>&1 | FileCheck %s --check-prefix=CUDNN
// RUN: qlora-opt %s --select-kernels=target=cuda | FileCheck %s --check-prefix=TUNED
// RUN: qlora-opt %s --select-kernels="target=cuda workspaces=large" | FileCheck %s --check-prefix=LARGE
// RUN: qlora-opt %s --select-kernels="target=cuda workspaces=small" | FileCheck %s --check-prefix=ROOMLESS
// RUN: qlora-opt %s --select-kernels="target=cuda workspaces=small" --remark-policy=all --remarks-filter=select-kernels 2>&1 | FileCheck %s --check-prefix=REFUSED
// RUN: not qlora-opt %s --select-kernels=target=abacus 2>&1 | FileCheck %s --check-prefix=TARGET

// CHECK: program.arena workspace bytes 0 alignment 64
// CHECK: %[[W:.*]] = program.buffer workspace bytes
// CHECK: program.launch @panel_matmul.onednn(%{{.*}} read {{[a-z0-9]+}}, %{{.*}} read {{[a-z0-9]+}}, %{{.*}} write {{[a-z0-9]+}}, %[[W]] write {{[a-z0-9]+}})
// CHECK: program.launch @attention.blocked
// CHECK: program.launch @head_loss_grad.chunked
// CHECK: program.kernel @panel_matmul.onednn

// CUDA: program.arena workspace bytes 0 alignment 256
// CUDA-NOT: program.launch @{{.*}}.{{onednn|reference|cpu|blocked|chunked}}(
// CUDA: program.launch @panel_matmul.decoded(
// CUDA: program.launch @attention.cuda(
// CUDA: program.launch @head_loss_grad.cuda(
// CUDA: program.launch @clip_norm.cuda(

// CUDNN: remark: [Missed] refused | Category:select-kernels | Remark="attention.cudnn: q must be bf16, got f32
// CUDNN: remark: [Missed] refused | Category:select-kernels | Remark="attention.cudnn: length must be a multiple of 128, got 4

// TARGET: error: 'program.launch' op no kernel of 'matmul' for target 'abacus' accepts it

program.kernel @matmul attributes {op = "matmul"} {
}
program.kernel @accumulate attributes {op = "accumulate"} {
}
program.kernel @attention attributes {op = "attention"} {
}
program.kernel @attention_grad attributes {op = "attention_grad"} {
}
program.kernel @generated attributes {columns = 8, maps = [], dtypes = array<i64: 0>, strides = array<i64: 8>, groups = array<i64: 1>} {
  %0 = model.row_random {id = 0} : tensor<8xf32>
  model.row_yield %0 : tensor<8xf32>
}

// SMALL: remark: [Missed] refused | Category:select-kernels | Remark="matmul.streamed: transpose_b must be 1, got 0
// SMALL-LABEL: program.entry evaluate
program.entry evaluate batch 1 length 4 {
  %a = program.buffer activation bytes 128 : f32
  %b = program.buffer activation bytes 128 : f32
  %c = program.buffer activation bytes 64 : f32
  // A matmul of 4x8 and 8x4. Constants are m n k lda ldb ldc ta tb alpha beta.
  // The workspace replaces the absent operand.
  // SMALL: program.launch @matmul.onednn(%{{.*}} read f32, %{{.*}} read f32, %{{.*}} write f32, %{{.*}} write u8) constants
  program.launch @matmul(%a read f32, %b read f32, %c write f32) absent [3] constants [4, 4, 8, 8, 4, 4, 0, 0, 4607182418800017408, 0] rows 0 label "y"
  // With few rows and a transposed b, b is streamed.
  // SMALL: program.launch @matmul.streamed(%{{.*}} read f32, %{{.*}} read f32, %{{.*}} write f32, %{{.*}} write u8) constants
  program.launch @matmul(%a read f32, %b read f32, %c write f32) absent [3] constants [4, 4, 8, 8, 8, 4, 0, 1, 4607182418800017408, 0] rows 0 label "few rows"
  // SMALL: program.launch @accumulate.cpu(
  program.launch @accumulate(%a read f32, %b read_write f32) constants [4, 8, 8, 8] rows 0 label "sum"
  // One head of 8 in bf16: cuDNN, with its workspace.
  // CUDNN: %[[W:.*]] = program.buffer workspace bytes 4096
  // CUDNN: program.launch @attention.cudnn(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[W]] {{[a-z_]+ [a-z0-9]+}})
  program.launch @attention(%a read bf16, %a read bf16, %a read bf16, %b write bf16, %c write f32) absent [3, 6, 7] constants [1, 128, 1, 1, 8, 8, 8, 8, 8, 0, 4607182418800017408, 0, 1] rows 0 label "narrow"
  // In f32, the project's own kernel is selected.
  // CUDNN: program.launch @attention.cuda(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}})
  program.launch @attention(%a read f32, %a read f32, %a read f32, %b write f32, %c write f32) absent [3, 6, 7] constants [1, 4, 1, 1, 8, 8, 8, 8, 8, 0, 4607182418800017408, 0, 1] rows 0 label "wide"
  // The project's own kernel also handles lengths that cuDNN does not accept.
  // CUDNN: program.launch @attention.cuda(
  program.launch @attention(%a read bf16, %a read bf16, %a read bf16, %b write bf16, %c write f32) absent [3, 6, 7] constants [1, 4, 1, 1, 8, 8, 8, 8, 8, 0, 4607182418800017408, 0, 1] rows 0 label "short"
  // cuDNN's gradient stores the scores in the workspace. It does so for enough
  // key heads at a time to fill a GPU (here all 4 key heads of 2 sequences), or
  // for one key head if workspaces must be small.
  // TUNED: program.launch @attention_grad.cudnn({{.*}}, 4]
  // ROOMLESS: program.launch @attention_grad.cudnn({{.*}}, 1]
  program.launch @attention_grad(%a read bf16, %a read bf16, %a read bf16, %a read bf16, %c read f32, %a read bf16, %b write bf16, %b write bf16, %b write bf16) absent [3, 10] constants [2, 2048, 2, 2, 8, 16, 16, 16, 16, 16, 16, 16, 16, 0, 4607182418800017408, 0, 16] rows 0 label "gradient"
  // With small workspaces, even one head's scores are too large: 8192^2
  // elements of 2 bytes, sums of dK and dV, delta, and 128 KiB.
  // TUNED: program.launch @attention_grad.cudnn(
  // ROOMLESS: program.launch @attention_grad.cuda(
  // REFUSED: remark: [Missed] refused | Category:select-kernels | Remark="attention_grad.cudnn: needs a workspace of 134643712 bytes, but workspaces must be small
  program.launch @attention_grad(%a read bf16, %a read bf16, %a read bf16, %a read bf16, %c read f32, %a read bf16, %b write bf16, %b write bf16, %b write bf16) absent [3, 10] constants [1, 8192, 1, 1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 0, 4607182418800017408, 0, 16] rows 0 label "long gradient"
  // A generated kernel has only one implementation.
  // SMALL: program.launch @generated(
  program.launch @generated(%a write f32) constants [] rows 4 label "generated"
}

// CUDA's LM head chooses a chunk size: 256 rows by default, although their
// logits exceed 128 MiB, or up to 1,024 rows if workspaces may be large.
// TUNED: program.launch @head_loss.cuda({{.*}} constants [300, 8, 200000, 8, 0, 256, 1, 0]
// LARGE: program.launch @head_loss.cuda({{.*}} constants [300, 8, 200000, 8, 0, 300, 1, 0]
// ROOMLESS: program.launch @head_loss.cuda({{.*}} constants [300, 8, 200000, 8, 0, 64, 1, 0]
program.kernel @head_loss attributes {op = "head_loss"} {
}
program.entry evaluate batch 1 length 300 {
  %hidden = program.buffer activation bytes 9600 : f32
  %w = program.buffer activation bytes 6400000 : f32
  %targets = program.buffer activation bytes 1200 : i32
  %loss = program.buffer activation bytes 4 : f32
  %count = program.buffer activation bytes 4 : f32
  %correct = program.buffer activation bytes 1200 : i32
  program.launch @head_loss(%hidden read f32, %w read f32, %targets read i32, %loss write f32, %count write f32, %correct write i32) absent [6, 7, 8] constants [300, 8, 200000, 8, 0, 64, 1, 0] rows 0 label "head"
}

// Kernel declarations that the chosen implementations replace are removed.
// SMALL-NOT: program.kernel @matmul attributes
// SMALL: program.kernel @matmul.onednn attributes {implementation = "onednn", op = "matmul"}
