// RUN: sed -e 's/@n1\b/@norm.weight/' -e 's/@wd\b/@down.bias/' %S/../Inputs/layer.mlir | qlora-opt - --train-weights='all=true' | FileCheck %s
// RUN: sed -e 's/@wo\b/@l.0.o_proj.weight/' %S/../Inputs/layer.mlir | qlora-opt - --train-weights='modules=["o_proj"]' | FileCheck %s --check-prefix=SAVED
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj","k_proj"] bias=true' --fuse-lora --train-weights='lora-plus-ratio=16' | FileCheck %s --check-prefix=PLUS
// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --train-weights='all=true' --build-train-step | FileCheck %s --check-prefix=TIED
// RUN: sed -e 's/@n1\b/@norm.weight/' %S/../Inputs/layer.mlir | qlora-opt - --specialize-shapes="batch=2 lengths=32" --train-weights='all=true' --build-train-step --fuse-rows --bucket-gradients='max-buckets=2 min-bytes=0' | FileCheck %s --check-prefix=GROUPS
// RUN: not qlora-opt %S/../Inputs/layer.mlir --train-weights='modules=["nothing"]' 2>&1 | FileCheck %s --check-prefix=MODULE
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | not qlora-opt - --train-weights='modules=["embed_tokens"]' 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: qlora-opt %S/../Inputs/layer.mlir --quantize-base | not qlora-opt - --train-weights='all=true' 2>&1 | FileCheck %s --check-prefix=QUANTISED
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | qlora-opt - --attach-adapters='r=4 targets=["q_proj","embed_tokens"]' | not qlora-opt - --train-weights='lora-plus-ratio=16' 2>&1 | FileCheck %s --check-prefix=EMBEDDING

// Norms, which have one dimension, and biases are not decayed.
// CHECK: model.parameter @embed : tensor<128x64xf32> {file = "model.safetensors", file_type = bf16, trainable}
// CHECK: model.parameter @norm.weight : tensor<64xf32> {file = "model.safetensors", file_type = bf16, trainable, undecayed}
// CHECK: model.parameter @down.bias : tensor<64x96xf32> {{.*}}trainable, undecayed}
// CHECK: model.weight @norm.weight : tensor<64xf32>

// SAVED: model.parameter @wg : tensor<96x64xbf16> {file = "model.safetensors"}
// SAVED-COUNT-1: trainable

// B learns faster, and so do biases; the A's are stacked.
// PLUS-DAG: model.parameter @{{.*}}lora_A{{.*}} : tensor<8x64xf32> {init = "kaiming", part_names = {{.*}}, trainable}
// PLUS-DAG: model.parameter @{{.*}}q_proj.lora_B.weight : tensor<64x4xf32> {init = "zero", rate_scale = 1.600000e+01 : f64, trainable}
// PLUS-DAG: model.parameter @{{.*}}q_proj.lora_B.bias : tensor<64xf32> {init = "zero", rate_scale = 1.600000e+01 : f64, trainable, undecayed}

// What two ops read gets two gradients, each at once.
// TIED-LABEL: train.step accumulate
// TIED: train.accumulate @embed, %{{.*}} : tensor<128x64xf32>
// TIED: train.accumulate @n1, %{{.*}} : tensor<64xf32>
// TIED: train.accumulate @n1, %{{.*}} : tensor<64xf32>
// TIED: train.accumulate @embed, %{{.*}} : tensor<128x64xf32>
// TIED-LABEL: train.step update
// TIED-NOT: undecayed

// 128 * 64 + 4 * 64 * 64 ... elements are decayed: 30 rows of 1024, and the
// norm has one. A bucket is sent in two parts where it has some of both.
// GROUPS: train.offsets = array<i64: {{.*}}, 31744>
// GROUPS: train.all_reduce 1 offset {{[0-9]+}} elements {{[0-9]+}}
// GROUPS-NEXT: train.all_reduce 1 offset 31744 elements 1024
// GROUPS-LABEL: train.step update
// GROUPS: train.flat trainable : tensor<30x1024xf32>
// GROUPS: train.store_flat trainable, %{{.*}} : tensor<30x1024xf32>
// GROUPS: train.flat trainable {row = 30 : i64} : tensor<1x1024xf32>
// GROUPS: train.store_flat trainable, %{{.*}} {row = 30 : i64} : tensor<1x1024xf32>

// MODULE: error: modules_to_save: 'nothing' matches no module with a weight
// SHARED: error: modules_to_save: 'embed_tokens.weight' is shared by two modules (tied weights), and PEFT would train a copy for one of them only; leave it out
// QUANTISED: error: '{{.*}}' is quantised and cannot be trained in full; take a model or a module that is not quantised
// EMBEDDING: error: loraplus_lr_ratio: '{{.*}}lora_embedding_A' is of an embedding
