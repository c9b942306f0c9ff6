// SPDX-License-Identifier: MIT

// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | qlora-opt - --attach-tokens='tokens=5,127,0' | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-tokens | FileCheck %s --check-prefix=OFF
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' -e 's/^ %%loss/ %%eh = model.weight @wo2 : tensor<128x64xbf16>\n %%loss/' -e 's/head_loss %%h2, %%e,/head_loss %%h2, %%eh,/' -e 's/^model.parameter @n1/model.parameter @wo2 : tensor<128x64xbf16> {file = "model.safetensors"}\n&/' %S/../Inputs/layer.mlir | qlora-opt - --attach-tokens='tokens=5' | FileCheck %s --check-prefix=UNTIED
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | qlora-opt - --attach-loss='objective=dpo' --add-noise='alpha=4' --attach-adapters='r=4 targets=["q_proj"]' --attach-tokens='tokens=5' | FileCheck %s --check-prefix=DPO
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | qlora-opt - --attach-adapters='r=4 targets=["q_proj"]' --attach-tokens='tokens=5,127' --mark-trainable --fuse-lora --specialize-shapes="batch=2 lengths=32 compute-type=bfloat16" --build-train-step | FileCheck %s --check-prefix=STEP

// An LM head that shares the table also uses the trained rows. The table itself
// is unchanged.
// CHECK: model.parameter @embed_tokens.weight : tensor<128x64xbf16> {file = "model.safetensors"}
// CHECK: %[[E:.*]] = model.weight @embed_tokens.weight
// CHECK: %[[X0:.*]] = model.embedding %[[IDS:.*]], %[[E]] :
// CHECK: %[[LIST:.*]] = model.token_list {tokens = array<i64: 5, 127, 0>} : tensor<3xf32>
// CHECK: %[[IS:.*]], %[[REST:.*]] = model.match_tokens %[[IDS]], %[[LIST]] : (tensor<?x?xi32>, tensor<3xf32>) -> (tensor<?x?x3xf32>, tensor<?x?xf32>)
// CHECK: %[[D:.*]] = model.weight @base_model.model.embed_tokens.token_adapter.trainable_tokens_delta : tensor<3x64xf32>
// CHECK: %[[X1:.*]] = model.scale_rows %[[X0]], %[[REST]]
// CHECK: %[[X:.*]] = model.linear %[[IS]], %[[D]] layout in_out init %[[X1]]
// CHECK: model.rms_norm %[[X]],
// CHECK: %[[Z:.*]] = model.linear %[[H:.*]], %[[D]] : (tensor<?x?x64xf32>, tensor<3x64xf32>) -> tensor<?x?x3xf32>
// CHECK-NEXT: model.head_loss %[[H]], %[[E]], %{{.*}} columns %[[Z]], %[[LIST]] :
// CHECK: model.parameter @base_model.model.embed_tokens.token_adapter.trainable_tokens_delta : tensor<3x64xf32> {init = "rows", trainable}

// OFF-NOT: token

// UNTIED: model.match_tokens
// UNTIED: model.head_loss %{{.*}}, %{{.*}}, %{{.*}} : (

// The reference is the model before training, so it has no trained rows. In the
// trained model, noise comes after the trained rows.
// DPO: model.embedding {{.*}}phase = #model.phase<reference>
// DPO-NOT: model.match_tokens
// DPO: model.head_loss %{{.*}}, %{{.*}}, %{{.*}} {phase = #model.phase<reference>} : (
// DPO: %[[X0:.*]] = model.embedding
// DPO: %[[X1:.*]] = model.scale_rows %[[X0]],
// DPO: %[[X:.*]] = model.linear %{{.*}} layout in_out init %[[X1]]
// DPO: model.noise %[[X]]
// DPO: model.head_loss %{{.*}} columns

// One value per row stays f32, and so does the list of token ids.
// STEP-LABEL: train.step accumulate
// STEP: model.match_tokens %{{.*}} : (tensor<2x32xi32>, tensor<2xf32>) -> (tensor<2x32x2xbf16>, tensor<2x32xf32>)
// STEP: %{{.*}}, %[[DZ:.*]] = train.head_loss_grad %[[H:[^,]*]], %{{.*}} : (tensor<2x32x64xbf16>, tensor<128x64xbf16>, tensor<2x32xi32>, tensor<2x32x2xbf16>, tensor<2xf32>) -> ({{.*}}, tensor<2x32x64xbf16>, tensor<2x32x2xbf16>)
// STEP: train.linear_weight_grad %[[DZ]], %[[H]] {{.*}} -> tensor<2x64xf32>
// STEP: train.accumulate @base_model.model.embed_tokens.token_adapter.trainable_tokens_delta
