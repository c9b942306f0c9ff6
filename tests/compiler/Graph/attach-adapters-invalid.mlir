// SPDX-License-Identifier: MIT

// What attach-adapters refuses.

// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='targets=[' 2>&1 | FileCheck %s --check-prefix=TARGETS
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=0' 2>&1 | FileCheck %s --check-prefix=RANK
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='dropout=1.0' 2>&1 | FileCheck %s --check-prefix=DROPOUT
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='rank-pattern={{"q_proj":0}}' 2>&1 | FileCheck %s --check-prefix=PATTERN
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='modules-to-save={{"lm_head":1}}' 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='modules-to-save=[1]' 2>&1 | FileCheck %s --check-prefix=NAMES
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='exclude=7' 2>&1 | FileCheck %s --check-prefix=EXCLUDE
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='layers=[0]' 2>&1 | FileCheck %s --check-prefix=LAYERS
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='targets=["q_proj"] exclude=["l.0.q_proj"]' 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | not qlora-opt - --attach-adapters='dora=true targets=["q_proj","embed_tokens"]' 2>&1 | FileCheck %s --check-prefix=EMBEDDING
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=48 init-a=factor init-b=factor targets=["k_proj"]' 2>&1 | FileCheck %s --check-prefix=VALUES
// RUN: qlora-opt %S/../Inputs/layer.mlir --quantize-base | sed -e 's/\(@wq .*\)file_type.*}/\1stored_quantized}/' | not qlora-opt - --attach-adapters='r=4 init-a=factor init-b=factor targets=["q_proj"]' 2>&1 | FileCheck %s --check-prefix=STORED

// VALUES: error: init_lora_weights: 'l.0.k_proj' has 32 singular values, and a rank of 48 asks for more; lower lora_r
// STORED: error: init_lora_weights: 'wq' is quantised or stacked, and what starts at factors of a weight needs the weight itself
// TARGETS: error: lora_target_modules:
// RANK: error: lora_r: expects at least 1, but got 0
// DROPOUT: error: lora_dropout: expects 0 <= p < 1, but got 1
// PATTERN: error: lora_rank_pattern: expects a whole number of at least 1 for 'q_proj', but got 0
// LIST: error: modules_to_save: expects a list, but got {"lm_head":1}
// NAMES: error: modules_to_save: expects names
// EXCLUDE: error: exclude_modules: expects a list of module names
// LAYERS: error: layers_to_transform goes with lora_target_modules as a list of names
// NOTHING: error: lora_target_modules: ["q_proj"] matches no linear
// EMBEDDING: error: lora_target_modules: 'embed_tokens' is an embedding, for which neither use_dora nor lora_bias nor init_lora_weights pissa, olora or loftq is supported; leave it out
