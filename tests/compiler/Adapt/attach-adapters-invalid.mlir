// SPDX-License-Identifier: MIT

// Errors of attach-adapters.

// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='targets=[' 2>&1 | FileCheck %s --check-prefix=TARGETS
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=0' 2>&1 | FileCheck %s --check-prefix=RANK
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='dropout=1.0' 2>&1 | FileCheck %s --check-prefix=DROPOUT
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='rank-pattern={{"q_proj":0}}' 2>&1 | FileCheck %s --check-prefix=PATTERN
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='modules-to-save={{"lm_head":1}}' 2>&1 | FileCheck %s --check-prefix=LIST
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='modules-to-save=[1]' 2>&1 | FileCheck %s --check-prefix=NAMES
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='exclude=7' 2>&1 | FileCheck %s --check-prefix=EXCLUDE
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='layers=[0]' 2>&1 | FileCheck %s --check-prefix=LAYERS
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='targets=["q_proj"] exclude=["l.0.q_proj"]' 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='targets=["q_porj","k_proj"]' 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// The LM head's name is its op's location.
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' -e '/head_loss/s/$/ loc("lm_head")/' %S/../Inputs/layer.mlir > %t.tied.mlir
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='targets=["q_proj","lm_head"]' 2>&1 | FileCheck %s --check-prefix=HEAD
// RUN: sed -e 's/model.head_loss %%h2, %%e,/model.head_loss %%h2, %%lm,/' -e '/head_loss/i %%lm = model.weight @lm_head.weight : tensor<128x64xbf16>' -e '/parameter @n1/i model.parameter @lm_head.weight : tensor<128x64xbf16> {file = "model.safetensors"}' %t.tied.mlir > %t.untied.mlir
// RUN: not qlora-opt %t.untied.mlir --attach-adapters='targets={".*(q_proj|lm_head)"}' 2>&1 | FileCheck %s --check-prefix=UNTIED
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='targets=["q_proj","k_proj"] modules-to-save=["q_proj"]' 2>&1 | FileCheck %s --check-prefix=SAVED
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='exclude=["nope"]' 2>&1 | FileCheck %s --check-prefix=EXCLUSION
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='exclude={".*vision.*"}' 2>&1 | FileCheck %s --check-prefix=EXCLUSIONS
// A model with untrained modules (a vision tower). `exclude` may name such a
// module; the LM head is excluded too.
// RUN: sed -e 's/model.folder = "[^"]*"/model.config = {untrained_modules = "vision_tower multi_modal_projector"}/' %t.tied.mlir > %t.wrapped.mlir
// RUN: qlora-opt %t.wrapped.mlir --attach-adapters='exclude={".*vision_tower.*"}' > %t.out
// RUN: qlora-opt %t.wrapped.mlir --attach-adapters='exclude=["vision_tower","lm_head"]' > %t.out
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='targets=["q_proj"] layers=[7]' 2>&1 | FileCheck %s --check-prefix=LAYER
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='targets=["q_proj"]' --attach-expert-adapters='rank-pattern={{"v_proj":2}}' 2>&1 | FileCheck %s --check-prefix=KEY
// RUN: not qlora-opt %t.tied.mlir --attach-adapters='targets=["q_proj"]' --attach-expert-adapters='alpha-pattern={{"q_proj":2,"nomatch":2}}' 2>&1 | FileCheck %s --check-prefix=ALPHA
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | not qlora-opt - --attach-adapters='dora=true targets=["q_proj","embed_tokens"]' 2>&1 | FileCheck %s --check-prefix=EMBEDDING
// RUN: not qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=48 init-a=factor init-b=factor targets=["k_proj"]' 2>&1 | FileCheck %s --check-prefix=VALUES
// RUN: qlora-opt %S/../Inputs/layer.mlir --quantize-base | sed -e 's/\(@wq .*\)file_type.*}/\1stored_quantized}/' | not qlora-opt - --attach-adapters='r=4 init-a=factor init-b=factor targets=["q_proj"]' 2>&1 | FileCheck %s --check-prefix=STORED

// VALUES: error: init_lora_weights: 'l.0.k_proj' has 32 singular values, fewer than the rank 48; lower lora_r
// STORED: error: init_lora_weights: 'wq' is stored quantized or as several tensors, but pissa, olora and loftq need the original weight
// TARGETS: error: lora_target_modules:
// RANK: error: lora_r: expects at least 1, but got 0
// DROPOUT: error: lora_dropout: expects 0 <= p < 1, but got 1
// PATTERN: error: lora_rank_pattern: expects a whole number of at least 1 for 'q_proj', but got 0
// LIST: error: modules_to_save: expects a list, but got {"lm_head":1}
// NAMES: error: modules_to_save: expects names
// EXCLUDE: error: exclude_modules: expects a list of module names
// LAYERS: error: layers_to_transform needs lora_target_modules to be a list, not a regular expression
// NOTHING: error: exclude_modules: ["l.0.q_proj"] excludes all modules of lora_target_modules. Fix: remove it
// UNKNOWN: error: lora_target_modules: 'q_porj' matches no linear or embedding; did you mean 'q_proj'?
// HEAD: error: lora_target_modules: 'lm_head' is the LM head, which does not support adapters (it shares the weight of 'embed_tokens', which does). Fix: remove it
// UNTIED: error: lora_target_modules: 'lm_head' is the LM head, which does not support adapters. Fix: remove it, or train it in full with modules_to_save
// SAVED: error: lora_target_modules: 'q_proj' is also in modules_to_save, which trains it in full. Fix: remove it from one of the two
// EXCLUSION: error: exclude_modules: 'nope' matches no module; there are: embed_tokens, q_proj, k_proj, v_proj, o_proj, gate, down
// EXCLUSIONS: error: exclude_modules: ".*vision.*" matches no module
// LAYER: error: layers_to_transform: layer 7 has no module of lora_target_modules. Fix: remove 7 from the list
// KEY: error: lora_rank_pattern: 'v_proj' matches no module with an adapter; did you mean 'q_proj'?
// ALPHA: error: lora_alpha_pattern: 'nomatch' matches no module with an adapter; there are: q_proj
// EMBEDDING: error: lora_target_modules: 'embed_tokens' is an embedding, which does not support use_dora, lora_bias or init_lora_weights pissa, olora and loftq; remove it
