// SPDX-License-Identifier: MIT

// RUN: qlora-opt %S/../Inputs/layer.mlir --add-noise='alpha=4' | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --add-noise | FileCheck %s --check-prefix=OFF
// RUN: sed -e 's/@embed\b/@embed_tokens.weight/' %S/../Inputs/layer.mlir | qlora-opt - --add-noise='alpha=4' --attach-adapters='r=4 targets=["embed_tokens"]' | FileCheck %s --check-prefix=LORA
// RUN: sed -e 's/%%ids, %%e : \(.*\)$/%%ids, %%e : \1\n %%hs = model.scale %%h0 {factor = 8.0 : f64, rounded} : tensor<?x?x64xf32>/' -e 's/rms_norm %%h0/rms_norm %%hs/' -e 's/add %%h0/add %%hs/' %S/../Inputs/layer.mlir | qlora-opt - --add-noise='alpha=4' | FileCheck %s --check-prefix=SCALED
// RUN: qlora-opt %S/../Inputs/layer.mlir --add-noise='alpha=4' --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4' --build-train-step | FileCheck %s --check-prefix=STEP
// RUN: sed -e 's/model.input="ids"/model.input="positions"/' -e 's/%%pos: \(.*\)="positions"/%%pos: \1="ids"/' %S/../Inputs/layer.mlir | not qlora-opt - --add-noise='alpha=4' 2>&1 | FileCheck %s --check-prefix=NONE

// The magnitude is 4 / sqrt(64). The residual stream also gets the noise; the
// LM head's table does not.
// CHECK: %[[X0:.*]] = model.embedding %{{.*}}, %[[E:.*]] :
// CHECK-NEXT: %[[X:.*]] = model.noise %[[X0]] {id = 33554432 : i64, magnitude = 5.000000e-01 : f64}
// CHECK: model.rms_norm %[[X]],
// CHECK: model.add %[[X]],
// CHECK: model.head_loss %{{.*}}, %[[E]],

// OFF-NOT: model.noise

// The adapter's output is part of the embedding.
// LORA: %[[SUM:.*]] = model.add %{{.*}}, %{{.*}} : tensor<?x?x64xf32>
// LORA-NEXT: model.noise %[[SUM]]

// The model's own scale of the embedding is applied before the noise.
// SCALED: %[[S:.*]] = model.scale %{{.*}} {factor = 8.000000e+00 : f64, rounded}
// SCALED-NEXT: model.noise %[[S]]

// STEP-LABEL: train.step accumulate
// STEP: model.noise
// STEP-LABEL: train.step evaluate
// STEP-NOT: model.noise

// NONE: error: neftune_noise_alpha: the model has no embedding of the input 'ids'; remove the option
