// SPDX-License-Identifier: MIT

// The loss becomes a preference loss, or for none another loss of tokens. For dpo and kto the model exists twice:
// once unchanged and without dropout, once with adapters. For kto an input
// marks the desirable answers. For orpo a second head has the tokens before the
// answers.

// RUN: qlora-opt %s --attach-loss='beta=0.25' | FileCheck %s
// RUN: qlora-opt %s --attach-loss --attach-adapters --specialize-shapes='batch=4 lengths=8 compute-type=bfloat16' --build-train-step | FileCheck %s --check-prefix=STEP
// RUN: qlora-opt %s --attach-loss=objective=orpo | FileCheck %s --check-prefix=ORPO
// RUN: qlora-opt %s --attach-loss='objective=kto beta=0.25 desirable-weight=2' | FileCheck %s --check-prefix=KTO
// RUN: qlora-opt %s --attach-loss='objective=kto mismatched=false' | FileCheck %s --check-prefix=APO
// RUN: qlora-opt %s --attach-loss='objective=kto' --attach-adapters --specialize-shapes='batch=4 lengths=8 compute-type=bfloat16' --build-train-step | FileCheck %s --check-prefix=KTO-STEP
// RUN: qlora-opt %s --attach-loss=kinds=hinge | FileCheck %s --check-prefix=HINGE
// RUN: qlora-opt %s --attach-loss='kinds=ipo,sft weights=1,0.5 beta=0.25' | FileCheck %s --check-prefix=IPO
// RUN: qlora-opt %s --attach-loss='objective=cpo kinds=simpo gamma=0.25' | FileCheck %s --check-prefix=CPO
// RUN: qlora-opt %s --attach-loss='objective=none kinds=dft' --attach-adapters --specialize-shapes='batch=4 lengths=8 compute-type=bfloat16' --build-train-step | FileCheck %s --check-prefix=DFT
// RUN: qlora-opt %s --attach-loss='objective=none label-smoothing=0.25' | FileCheck %s --check-prefix=SMOOTH
// RUN: not qlora-opt %s --attach-loss=objective=ipo 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not qlora-opt %s --attach-loss=kinds=aot 2>&1 | FileCheck %s --check-prefix=UNKNOWN-KIND

// UNKNOWN: expects none, dpo, cpo, kto or orpo as objective, but got 'ipo'
// UNKNOWN-KIND: (C3) has no loss 'aot'

model.parameter @e.weight : tensor<16x8xf32> {file = "m"}
model.parameter @q.weight : tensor<8x8xf32> {file = "m"}

// CHECK-LABEL: func.func @forward(
// CHECK-SAME: -> (tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
// CHECK: model.embedding {{.*}} {phase = #model.phase<reference>}
// CHECK-NOT: model.dropout
// CHECK: model.linear {{.*}} {layer = 0 : i64, module = "q", phase = #model.phase<reference>}
// CHECK: %[[REFERENCE:[a-z_0-9]+]], %{{.*}} = model.head_loss {{.*}} {phase = #model.phase<reference>} : {{.*}} -> (tensor<?xf32>, tensor<?xf32>, tensor<?x?xi32>)
// CHECK: model.dropout
// CHECK: %[[LOSS:[a-z_0-9]+]], %[[LABELS:[a-z_0-9]+]], %[[CORRECT:[a-z_0-9]+]] = model.head_loss {{.*}} -> (tensor<?xf32>, tensor<?xf32>, tensor<?x?xi32>)
// CHECK: %slopes, %[[SUM:[a-z_0-9]+]], %[[COUNT:[a-z_0-9]+]], {{.*}} = model.dpo_loss %[[LOSS]], %[[LABELS]], %[[REFERENCE]] {beta = 2.500000e-01 : f64}
// CHECK: return %[[SUM]], %[[COUNT]], {{.*}}, %[[CORRECT]] :

// Each sequence's gradient is computed with its token loss, and scaled later by
// the slope of the preference loss.
// STEP-LABEL: train.step accumulate batch 4 length 8
// STEP: model.linear {{.*}} {layer = 0 : i64, module = "q", phase = #model.phase<reference>}
// STEP-NOT: lora
// STEP: model.head_loss {{.*}} {phase = #model.phase<reference>}
// STEP: model.weight @base_model.model.q.lora_A.weight
// STEP: %[[LOSS:[a-z_0-9]+]], %[[LABELS:[a-z_0-9]+]], %{{.*}}, %[[GRADIENT:[a-z_0-9]+]] = train.head_loss_grad {{.*}} -> (tensor<4xf32>, tensor<4xf32>, tensor<4x8xi32>, tensor<4x8x8xbf16>)
// STEP: %slopes, {{.*}} = model.dpo_loss %[[LOSS]], %[[LABELS]],
// STEP-DAG: train.result "loss_sum", %{{.*}} {accumulate
// STEP-DAG: train.result "right_pairs", %{{.*}} {accumulate
// STEP: model.rows(%[[GRADIENT]], %slopes) attributes {columns = 8 : i64, label = "scale_lines", maps = [#model.map<full>, #model.map<scalar, 8>]

// DFT: train.step accumulate
// DFT: train.head_loss_grad {{.*}} {own_probability, phase = #model.phase<backward>}
// DFT: train.step evaluate
// DFT: model.head_loss {{.*}} {own_probability}

// SMOOTH: model.head_loss {{.*}} {label_smoothing = 2.500000e-01 : f64} : {{.*}} -> (tensor<1xf32>, tensor<1xf32>,

// HINGE: model.dpo_loss {{.*}} {beta = 1.000000e-01 : f64, kinds = ["hinge"]}

// IPO: model.dpo_loss {{.*}} {beta = 2.500000e-01 : f64, kinds = ["ipo", "sft"], weights = array<f64: 1.000000e+00, 5.000000e-01>}

// CPO-NOT: reference
// CPO: model.dpo_loss %{{[a-z_0-9]+}}, %{{[a-z_0-9]+}} {beta = 1.000000e-01 : f64, gamma = 2.500000e-01 : f64, kinds = ["simpo"]}

// ORPO-LABEL: func.func @forward(
// ORPO-SAME: %[[PROMPTS:[a-z_0-9]+]]: tensor<?x?xi32> {model.input = "prompts"})
// ORPO-NOT: reference
// ORPO: %[[LOSS:[a-z_0-9]+]], %[[LABELS:[a-z_0-9]+]], %{{.*}} = model.head_loss
// ORPO: %[[BEFORE:[a-z_0-9]+]], %[[TOKENS:[a-z_0-9]+]], %{{.*}} = model.head_loss %{{.*}}, %{{.*}}, %[[PROMPTS]]
// ORPO: %log_odds, %chosen_loss, %odds_loss = model.orpo_loss %[[LOSS]], %[[LABELS]], %[[BEFORE]], %[[TOKENS]] {beta = 1.000000e-01 : f64}
// ORPO: return %loss_sum, {{.*}}%log_odds, %chosen_loss, %odds_loss, %correct

// KTO-LABEL: func.func @forward(
// KTO-SAME: %[[DESIRABLE:[a-z_0-9]+]]: tensor<?xf32> {model.input = "desirable"})
// KTO: %[[REFERENCE:[a-z_0-9]+]], %{{.*}} = model.head_loss {{.*}} {phase = #model.phase<reference>}
// KTO: %[[LOSS:[a-z_0-9]+]], %[[LABELS:[a-z_0-9]+]], %{{.*}} = model.head_loss
// KTO: %slopes, {{.*}} = model.kto_loss %[[LOSS]], %[[LABELS]], %[[REFERENCE]], %[[DESIRABLE]]
// KTO-SAME: {beta = 2.500000e-01 : f64, desirable_weight = 2.000000e+00 : f64, mismatched, undesirable_weight = 1.000000e+00 : f64}

// APO: model.kto_loss {{.*}} {beta = 1.000000e-01 : f64, desirable_weight = 1.000000e+00 : f64, undesirable_weight = 1.000000e+00 : f64}

// KTO-STEP-LABEL: train.step accumulate batch 4 length 8 ["ids", "targets", "desirable"]
// KTO-STEP: %{{.*}}: tensor<4xf32>
// KTO-STEP: %slopes, {{.*}} = model.kto_loss
// KTO-STEP-DAG: train.result "chosen_count", %{{.*}} {accumulate
// KTO-STEP-DAG: train.result "divergence", %{{.*}} {accumulate
// KTO-STEP: model.rows(%{{.*}}, %slopes) attributes {columns = 8 : i64, label = "scale_lines"
func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"}, %targets: tensor<?x?xi32> {model.input = "targets"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @e.weight : tensor<16x8xf32>
  %x = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<16x8xf32>) -> tensor<?x?x8xf32>
  %d = model.dropout %x {probability = 0.1 : f64, id = 1 : i64} : tensor<?x?x8xf32>
  %q = model.weight @q.weight {layer = 0 : i64} : tensor<8x8xf32>
  %y = model.linear %d, %q {layer = 0 : i64, module = "q"} : (tensor<?x?x8xf32>, tensor<8x8xf32>) -> tensor<?x?x8xf32>
  %loss, %count, %correct = model.head_loss %y, %e, %targets : (tensor<?x?x8xf32>, tensor<16x8xf32>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
