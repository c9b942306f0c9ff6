// Only swiglu is in a layer, so that its gradient can be recognized.
// RUN: sed 's/model.glu silu %g, %g/& {layer = 5 : i64}/' %S/../Inputs/layer.mlir | qlora-opt - --specialize-shapes="batch=2 lengths=32" --attach-adapters='r=4 targets=["q_proj","o_proj"]' --fuse-lora --build-train-step | FileCheck %s
// RUN: qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=16,32" --attach-adapters='r=4 dora=true targets=["q_proj"]' --build-train-step | FileCheck %s --check-prefix=START
// RUN: not qlora-opt %S/../Inputs/layer.mlir --specialize-shapes="batch=2 lengths=32" --build-train-step 2>&1 | FileCheck %s --check-prefix=NOTHING

// CHECK: train.step accumulate batch 2 length 32
// CHECK-NEXT: ^bb0(%{{.*}}: tensor<2x32xi32>, %[[TARGETS:.*]]: tensor<2x32xi32>, %{{.*}}: tensor<2x32xi32>, %[[SEGMENTS:.*]]: tensor<2x32xi32>):
// CHECK: %[[E:.*]] = model.weight @embed
// CHECK: %[[COS:.*]], %[[SIN:.*]] = model.rope_table
// CHECK: %[[N:.*]] = model.weight @n1
// CHECK: %[[X:.*]] = model.rms_norm %{{.*}}, %[[N]]
// CHECK: %[[QA:.*]] = model.weight @base_model.model.l.0.q_proj.lora_A.weight
// CHECK: %[[QXA:.*]] = model.linear %[[X]], %[[QA]]
// CHECK: %[[QB:.*]] = model.weight @base_model.model.l.0.q_proj.lora_B.weight
// CHECK: %[[V:.*]] = model.linear {{.*}} {module = "l.0.v_proj"}
// CHECK: %[[QR:.*]] = model.rope %{{.*}}, %[[COS]], %[[SIN]]
// CHECK: %[[KR:.*]] = model.rope %{{.*}}, %[[COS]], %[[SIN]]
// CHECK: %[[O:.*]], %[[LSE:.*]] = model.attention %[[QR]], %[[KR]], %[[V]], %[[SEGMENTS]]
// CHECK: %[[WO:.*]] = model.weight @wo
// CHECK: %[[OA:.*]] = model.weight @base_model.model.l.0.o_proj.lora_A.weight
// CHECK: %[[OXA:.*]] = model.linear %[[O]], %[[OA]]
// CHECK: %[[OB:.*]] = model.weight @base_model.model.l.0.o_proj.lora_B.weight
// CHECK: %[[H1:.*]] = model.add
// CHECK: %[[WG:.*]] = model.weight @wg
// CHECK: %[[G:.*]] = model.linear %{{.*}}, %[[WG]]
// CHECK: %[[WD:.*]] = model.weight @wd
// CHECK: %[[H2:.*]] = model.add %[[H1]], %{{.*}}

// The gradient, op by op. The loss and its gradient are one op; the forward
// loss op is removed.
// CHECK-NEXT: %[[LOSS:.*]], %[[COUNT:.*]], %[[CORRECT:.*]], %[[DH2:.*]] = train.head_loss_grad %[[H2]], %[[E]], %[[TARGETS]] {phase = #model.phase<backward>}
// CHECK-NEXT: train.result "loss_sum", %[[LOSS]] {accumulate, phase = #model.phase<backward>}
// CHECK-NEXT: train.result "label_count", %[[COUNT]] {accumulate, phase = #model.phase<backward>}
// CHECK-NEXT: train.result "correct", %[[CORRECT]] {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DS:.*]] = model.linear %[[DH2]], %[[WD]] layout in_out {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DGS:.*]]:2 = model.rows(%[[G]], %[[G]], %[[DS]]) attributes {columns = 96 : i64, label = "glu_grad", layer = 5 : i64, maps = [#model.map<full>, #model.map<full>, #model.map<full>], phase = #model.phase<backward>}
// CHECK: %[[DG:.*]] = model.add %[[DGS]]#0, %[[DGS]]#1 {layer = 5 : i64, phase = #model.phase<backward>}
// CHECK-NEXT: %[[DX1:.*]] = model.linear %[[DG]], %[[WG]] layout in_out {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DN1:.*]] = model.rows(%[[H1]], %[[N]], %[[DX1]]) attributes {columns = 64 : i64, label = "rms_norm_grad"
// CHECK: %[[DH1:.*]] = model.add %[[DH2]], %[[DN1]] {phase = #model.phase<backward>}
// Gradients are accumulated as soon as they are complete.
// CHECK-NEXT: %[[DOB:.*]] = train.linear_weight_grad %[[DH1]], %[[OXA]] {phase = #model.phase<backward>, scale = 2.000000e+00 : f64}
// CHECK-NEXT: %[[DOXA:.*]] = model.linear %[[DH1]], %[[OB]] layout in_out {phase = #model.phase<backward>, scale = 2.000000e+00 : f64}
// CHECK-NEXT: train.accumulate @base_model.model.l.0.o_proj.lora_B.weight, %[[DOB]] {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DOA:.*]] = train.linear_weight_grad %[[DOXA]], %[[O]] {phase = #model.phase<backward>, scale = 1.000000e+00 : f64}
// CHECK-NEXT: %[[DO1:.*]] = model.linear %[[DOXA]], %[[OA]] layout in_out {phase = #model.phase<backward>}
// CHECK-NEXT: train.accumulate @base_model.model.l.0.o_proj.lora_A.weight, %[[DOA]] {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DO0:.*]] = model.linear %[[DH1]], %[[WO]] layout in_out {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DO:.*]] = model.add %[[DO1]], %[[DO0]] {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DQR:.*]], %{{.*}}, %{{.*}} = train.attention_grad %[[QR]], %[[KR]], %[[V]], %[[SEGMENTS]], %[[O]], %[[LSE]], %[[DO]] {head_dim = 8 : i64, heads = 8 : i64, kv_heads = 4 : i64, phase = #model.phase<backward>, scale = 3.500000e-01 : f64, window = 0 : i64}
// CHECK-NEXT: %[[DQ:.*]] = model.rows(%[[COS]], %[[SIN]], %[[DQR]]) attributes {columns = 8 : i64, label = "rope_grad"
// CHECK: %[[DQB:.*]] = train.linear_weight_grad %[[DQ]], %[[QXA]] {phase = #model.phase<backward>, scale = 2.000000e+00 : f64}
// CHECK-NEXT: %[[DQXA:.*]] = model.linear %[[DQ]], %[[QB]] layout in_out {phase = #model.phase<backward>, scale = 2.000000e+00 : f64}
// CHECK-NEXT: train.accumulate @base_model.model.l.0.q_proj.lora_B.weight, %[[DQB]] {phase = #model.phase<backward>}
// CHECK-NEXT: %[[DQA:.*]] = train.linear_weight_grad %[[DQXA]], %[[X]] {phase = #model.phase<backward>, scale = 1.000000e+00 : f64}
// No gradient flows into the frozen embedding: the first layer has no dX, and k
// and v have no gradient.
// CHECK-NEXT: train.accumulate @base_model.model.l.0.q_proj.lora_A.weight, %[[DQA]] {phase = #model.phase<backward>}
// CHECK-NEXT: }

// CHECK-NEXT: train.step evaluate batch 2 length 32
// CHECK-NOT: phase =
// CHECK: %[[LOSS:.*]], %[[COUNT:.*]], %[[CORRECT:.*]] = model.head_loss
// CHECK-NEXT: train.result "loss_sum", %[[LOSS]] : tensor<1xf32>
// CHECK-NEXT: train.result "label_count", %[[COUNT]] : tensor<1xf32>
// CHECK-NEXT: train.result "correct", %[[CORRECT]] : tensor<2x32xi32>
// CHECK-NEXT: }

// CHECK-NEXT: train.step update batch 0 length 0
// CHECK-NEXT: %[[ALL:.*]] = train.flat gradient {statistics}
// CHECK-NEXT: %[[NORM:.*]], %[[SCALE:.*]] = train.clip_norm %[[ALL]]
// CHECK-NEXT: train.result "grad_norm", %[[NORM]]
// CHECK-NEXT: %[[P:.*]] = train.flat trainable
// CHECK-NEXT: %[[M:.*]] = train.flat state : tensor<1x1024xf32>
// CHECK-NEXT: %[[S:.*]] = train.flat state {row = 4096 : i64} : tensor<1x1024xf32>
// CHECK-NEXT: %[[GRADIENT:.*]] = train.flat gradient : tensor<1x1024xf32>
// CHECK-NEXT: %[[NEW_P:.*]], %[[NEW:.*]]:2 = train.adamw %[[P]], %[[M]], %[[S]], %[[GRADIENT]], %[[SCALE]]
// CHECK-NEXT: train.store_flat trainable, %[[NEW_P]]
// CHECK-NEXT: train.store_flat state, %[[NEW]]#0 : tensor<1x1024xf32>
// CHECK-NEXT: train.store_flat state, %[[NEW]]#1 {row = 4096 : i64}
// CHECK-NEXT: train.clear gradient

// NOTHING: nothing to train: no parameter is trainable

// A parameter's initial value is computed once for all lengths, and no gradient
// flows through it.
// START-COUNT-1: train.step initialize batch 0 length 0 []
// START: %[[NORM:.*]] = model.adapted_norm
// START-NEXT: train.initialize @base_model.model.l.0.q_proj.lora_magnitude_vector, %[[NORM]] : tensor<64xf32>
// START: train.step accumulate
// START-NOT: adapted_norm_grad
// START: train.accumulate @base_model.model.l.0.q_proj.lora_magnitude_vector,
// START-NOT: train.step initialize

// This optimizer updates one tensor at a time: each part of a stacked parameter
// has separate rows and states.
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=64 targets=["q_proj","k_proj"]' --mark-trainable='optimizer=adamw_bnb_8bit' --fuse-lora --specialize-shapes="batch=2 lengths=32" --build-train-step | FileCheck %s --check-prefix=TENSORS
// TENSORS: train.step update
// TENSORS: train.adamw
// TENSORS: %[[P:.*]] = train.flat trainable @base_model.model.l.0.q_proj.lora_A.weight.group {row = 64 : i64} : tensor<64x64xf32>
// TENSORS: train.flat state {row = [[CODES:[0-9]+]] : i64} : tensor<64x64xui8>
// TENSORS: train.flat state {{.*}} : tensor<16xf32>
// TENSORS: %[[NEW:.*]], %{{.*}}:4 = train.update "adamw_8bit" %[[P]],
// TENSORS-NEXT: train.store_flat trainable @base_model.model.l.0.q_proj.lora_A.weight.group, %[[NEW]] {row = 64 : i64}
// TENSORS-NEXT: train.store_flat state, %{{.*}} {row = [[CODES]] : i64} : tensor<64x64xui8>
// RUN: qlora-opt %S/../Inputs/layer.mlir --attach-adapters='r=4 targets=["q_proj"]' | sed 's/, trainable}/, optimizer = "none", trainable}/' | not qlora-opt - --specialize-shapes="batch=2 lengths=32" --build-train-step 2>&1 | FileCheck %s --check-prefix=OPTIMIZER
// OPTIMIZER: error: no optimizer is called 'none'
