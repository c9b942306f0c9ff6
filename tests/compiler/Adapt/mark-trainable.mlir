// RUN: sed -e 's/@n1\b/@norm.weight/' -e 's/@wd\b/@down.bias/' %S/../Inputs/layer.mlir | qlora-opt - --mark-trainable='all=true' | FileCheck %s
// RUN: sed -e 's/@wo\b/@l.0.o_proj.weight/' %S/../Inputs/layer.mlir | qlora-opt - --mark-trainable='modules=["o_proj"]' | FileCheck %s --check-prefix=SAVED
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj","k_proj"] bias=true' --mark-trainable='lora-plus-ratio=16' --fuse-lora | FileCheck %s --check-prefix=PLUS
// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --mark-trainable='all=true' --build-train-step | FileCheck %s --check-prefix=TIED
// RUN: sed -e 's/@n1\b/@norm.weight/' -e 's/@wg\b/@gate.bias/' %S/../Inputs/layer.mlir | qlora-opt - --specialize-shapes="batch=2 lengths=32" --mark-trainable='all=true' --build-train-step --fuse-rows --bucket-gradients='gradient-buckets=2 min-bytes=0' | FileCheck %s --check-prefix=GROUPS
// RUN: sed -e 's/@n1\b/@l.0.q_proj.bias/' -e 's/@wd\b/@down.bias/' -e 's/%x1 = .*/%x1 = model.add %h1, %h1 : tensor<?x?x64xf32>/' %S/../Inputs/layer.mlir | qlora-opt - --attach-adapters='r=4 targets=["q_proj","k_proj"]' --fuse-lora --mark-trainable='bias=lora_only' | FileCheck %s --check-prefix=ONLY
// RUN: sed -e 's/@n1\b/@l.0.q_proj.bias/' -e 's/@wd\b/@down.bias/' -e 's/%x1 = .*/%x1 = model.add %h1, %h1 : tensor<?x?x64xf32>/' %S/../Inputs/layer.mlir | qlora-opt - --attach-adapters='r=4 targets=["q_proj","k_proj"]' --mark-trainable='bias=all' | FileCheck %s --check-prefix=BIASES
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4' --mark-trainable='bias=lora_only' 2>&1 | FileCheck %s --check-prefix=BIASLESS
// RUN: not qlora-opt %S/../Inputs/layer.mlir --mark-trainable='modules=["nothing"]' 2>&1 | FileCheck %s --check-prefix=MODULE
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | not qlora-opt - --mark-trainable='modules=["embed_tokens"]' 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' -e '/head_loss/s/$/ loc("lm_head")/' %S/../Inputs/layer.mlir | not qlora-opt - --mark-trainable='modules=["lm_head"]' 2>&1 | FileCheck %s --check-prefix=HEAD
// RUN: qlora-opt %S/../Inputs/layer.mlir --quantize-base | not qlora-opt - --mark-trainable='all=true' 2>&1 | FileCheck %s --check-prefix=QUANTISED
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | qlora-opt - --attach-adapters='r=4 targets=["q_proj","embed_tokens"]' | not qlora-opt - --mark-trainable='lora-plus-ratio=16' 2>&1 | FileCheck %s --check-prefix=EMBEDDING
// RUN: sed -e 's/@n1\b/@norm.weight/' -e 's/@wd\b/@l.1.down.weight/' -e 's/@wg\b/@l.1x.weight/' %S/../Inputs/layer.mlir | qlora-opt - --mark-trainable='all=true unfrozen=["norm","^l.1.","no.name"]' 2>&1 | FileCheck %s --check-prefix=UNFROZEN
// RUN: not qlora-opt %S/../Inputs/layer.mlir --mark-trainable='all=true unfrozen=["no.name"]' 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: not qlora-opt %S/../Inputs/layer.mlir --mark-trainable='all=true unfrozen=["embed[:32]"]' 2>&1 | FileCheck %s --check-prefix=ROWS

// Norms, which have one dimension, and biases are not decayed.
// CHECK: model.parameter @embed : tensor<128x64xf32> {file = "model.safetensors", file_type = bf16, trainable}
// CHECK: model.parameter @norm.weight : tensor<64xf32> {file = "model.safetensors", file_type = bf16, trainable, undecayed}
// CHECK: model.parameter @down.bias : tensor<64x96xf32> {{.*}}trainable, undecayed}
// CHECK: model.weight @norm.weight : tensor<64xf32>

// SAVED-NOT: trainable
// SAVED: model.parameter @l.0.o_proj.weight : tensor<64x64xf32> {file = "model.safetensors", file_type = bf16, trainable}
// SAVED-NOT: trainable

// B has a higher learning rate, and so have biases; the A's are stacked.
// PLUS-DAG: model.parameter @{{.*}}lora_A{{.*}} : tensor<8x64xf32> {init = "kaiming", part_names = {{.*}}, trainable}
// PLUS-DAG: model.parameter @{{.*}}q_proj.lora_B.weight : tensor<64x4xf32> {init = "zero", rate_scale = 1.600000e+01 : f64, trainable}
// PLUS-DAG: model.parameter @{{.*}}q_proj.lora_B.bias : tensor<64xf32> {init = "zero", rate_scale = 1.600000e+01 : f64, trainable, undecayed}

// ONLY: model.parameter @l.0.q_proj.bias : tensor<64xf32> {{.*}}trainable, undecayed}
// ONLY: model.parameter @down.bias : tensor<64x96xbf16> {file = "model.safetensors"}
// BIASES: model.parameter @l.0.q_proj.bias : tensor<64xf32> {{.*}}trainable, undecayed}
// BIASES: model.parameter @down.bias : tensor<64x96xf32> {{.*}}trainable, undecayed}
// BIASLESS: warning: bias lora_only: no module with an adapter has a bias

// A value with two readers gets two gradients; each is accumulated immediately.
// TIED-LABEL: train.step accumulate
// TIED: train.accumulate @embed, %{{.*}} : tensor<128x64xf32>
// TIED: train.accumulate @n1, %{{.*}} : tensor<64xf32>
// TIED: train.accumulate @n1, %{{.*}} : tensor<64xf32>
// TIED: train.accumulate @embed, %{{.*}} : tensor<128x64xf32>
// TIED-LABEL: train.step update
// TIED-NOT: undecayed

// After the statistics, 26 rows of 1024 have weight decay, 7 do not. A bucket
// that has some of both is sent in two parts.
// GROUPS: train.layout = [@wd, @wo, @wv, @wk, @wq, @embed, @gate.bias, @norm.weight]
// GROUPS-SAME: train.offsets = array<i64: 1024, 7168, 11264, 13312, 15360, 19456, 27648, 33792>
// GROUPS: train.all_reduce 0 offset 0 elements 15360
// GROUPS-NEXT: train.all_reduce 0 offset 27648 elements 6144
// GROUPS: train.all_reduce 1 offset 15360 elements 12288
// GROUPS-NEXT: train.all_reduce 1 offset 33792 elements 1024
// GROUPS-LABEL: train.step update
// GROUPS: train.flat trainable : tensor<26x1024xf32>
// GROUPS: train.store_flat trainable, %{{.*}} : tensor<26x1024xf32>
// GROUPS: train.flat trainable {row = 26 : i64} : tensor<7x1024xf32>
// GROUPS: train.store_flat trainable, %{{.*}} {row = 26 : i64} : tensor<7x1024xf32>

// MODULE: error: modules_to_save: 'nothing' matches no module with a weight; there are:
// HEAD: error: modules_to_save: 'lm_head' is shared by two modules (tied weights), and PEFT would train a copy for one of them only; remove it
// SHARED: error: modules_to_save: 'embed_tokens.weight' is shared by two modules (tied weights), and PEFT would train a copy for one of them only; remove it
// QUANTISED: error: '{{.*}}' is quantized and cannot be trained in full; use an unquantized model or module
// Patterns match from the start of a name, and their dots are dots.
// UNFROZEN: warning: unfrozen_parameters: no.name matches no parameter
// UNFROZEN: model.parameter @embed : tensor<128x64xbf16> {file = "model.safetensors"}
// UNFROZEN: model.parameter @norm.weight : tensor<64xf32> {{.*}}trainable, undecayed}
// UNFROZEN: model.parameter @l.1x.weight : tensor<{{.*}}xbf16> {file = "model.safetensors"}
// UNFROZEN: model.parameter @l.1.down.weight : tensor<64x96xf32> {{.*}}trainable}
// NOTHING: error: unfrozen_parameters: no.name matches no parameter of the model
// ROWS: error: unfrozen_parameters: 'embed[:32]' chooses rows of a weight
// EMBEDDING: error: loraplus_lr_ratio: '{{.*}}lora_embedding_A' belongs to an embedding

// A tensor's optimizer depends on its size: bitsandbytes uses 8 bits from 4096
// elements on. Tensors with different updates are not stacked.
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=64 targets=["q_proj","k_proj"]' --mark-trainable='optimizer=adamw_bnb_8bit' --fuse-lora | FileCheck %s --check-prefix=BITS
// BITS: model.parameter @base_model.model.{{.*}}q_proj.lora_A.weight.group : tensor<128x64xf32> {{.*}}optimizer = "adamw_8bit"
// BITS: model.parameter @base_model.model.{{.*}}k_proj.lora_B.weight : tensor<32x64xf32> {init = "zero", trainable}
// RUN: not qlora-opt %S/../Inputs/layer.mlir --mark-trainable='all=true optimizer=sgd' 2>&1 | FileCheck %s --check-prefix=NAME
// NAME: error: --optim: unknown optimizer 'sgd'
