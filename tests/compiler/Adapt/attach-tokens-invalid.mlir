// SPDX-License-Identifier: MIT

// Errors of attach-tokens.

// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir > %t.mlir
// RUN: not qlora-opt %t.mlir --attach-tokens='tokens=5,128' 2>&1 | FileCheck %s --check-prefix=VOCABULARY
// RUN: not qlora-opt %t.mlir --attach-tokens='tokens=-1' 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not qlora-opt %t.mlir --attach-tokens='tokens=5,6,5' 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: sed -e 's/%%ids, %%e :/%%ids, %%e {padding = 6 : i64} :/' %t.mlir | not qlora-opt - --attach-tokens='tokens=5,6' 2>&1 | FileCheck %s --check-prefix=PADDING
// RUN: not qlora-opt %t.mlir --attach-tokens='tokens=5 modules-to-save=["embed_tokens"]' 2>&1 | FileCheck %s --check-prefix=SAVED
// RUN: not qlora-opt %t.mlir --attach-adapters='r=4 targets=["q_proj","embed_tokens"]' --attach-tokens='tokens=5' 2>&1 | FileCheck %s --check-prefix=ADAPTER
// RUN: sed -e 's/model.input="ids"/model.input="other"/' %t.mlir | not qlora-opt - --attach-tokens='tokens=5' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/^ %%loss/ %%y = model.linear %%h2, %%e {module = "l.0.o_proj"} : (tensor<?x?x64xf32>, tensor<128x64xbf16>) -> tensor<?x?x128xf32>\n&/' %t.mlir | not qlora-opt - --attach-tokens='tokens=5' 2>&1 | FileCheck %s --check-prefix=SHARED

// VOCABULARY: error: trainable_token_indices: expects token ids from 0 to 127, but got 128
// NEGATIVE: error: trainable_token_indices: expects token ids from 0 to 127, but got -1
// TWICE: error: trainable_token_indices: 5 is listed twice; remove one
// PADDING: error: trainable_token_indices: 6 is the padding token, whose embedding gets no gradient; remove it
// SAVED: error: trainable_token_indices: 'embed_tokens' is in modules_to_save, which trains all of its rows; remove it there, or remove this option
// ADAPTER: error: trainable_token_indices: 'embed_tokens' is in lora_target_modules; remove it there, or remove this option
// NONE: error: trainable_token_indices: expects one embedding of the input 'ids', but there are 0
// SHARED: error: trainable_token_indices: this op shares the embedding's weight, but only an LM head may share it; import the model again
