// SPDX-License-Identifier: MIT

// Gradients of every row op, and of every arithmetic op in a row region. They
// recompute forward values, and read only the operands that they need.

// RUN: qlora-opt %s --split-input-file --build-train-step | FileCheck %s

// rms_norm: with s = rsqrt(mean(x^2) + eps) and t = x s,
//   dx = dy w s - x / 4 * s^3 * sum(dy w x),  dw = sum over rows of dy t.
// CHECK: train.step accumulate
// CHECK: %[[X:.*]] = model.embedding
// CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %[[DY:.*]] = train.head_loss_grad
// CHECK: %[[G:.*]]:2 = model.rows(%[[X]], %{{.*}}, %[[DY]]) attributes {columns = 4 : i64, label = "rms_norm_grad", maps = [#model.map<full>, #model.map<column>, #model.map<full>], phase = #model.phase<backward>} : (tensor<1x3x4xf32>, tensor<4xf32>, tensor<1x3x4xf32>) -> (tensor<1x3x4xf32>, tensor<1x3x4xf32>)
// CHECK-NEXT: ^bb0(%[[x:.*]]: tensor<4xf32>, %[[w:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK: %[[s:.*]] = math.rsqrt
// CHECK: %[[S:.*]] = model.row_splat %[[s]]
// CHECK: %[[t:.*]] = arith.mulf %[[x]], %[[S]]
// CHECK-NOT: arith.mulf %[[t]], %[[w]]
// CHECK: %[[dt:.*]] = arith.mulf %[[dy]], %[[w]]
// CHECK: %[[dw:.*]] = arith.mulf %[[dy]], %[[t]]
// CHECK: %[[dx0:.*]] = arith.mulf %[[dt]], %[[S]]
// CHECK: %[[dS:.*]] = arith.mulf %[[dt]], %[[x]]
// CHECK: %[[ds:.*]] = model.row_sum %[[dS]]
// CHECK: %[[s2:.*]] = arith.mulf %[[s]], %[[s]]
// CHECK: %[[s3:.*]] = arith.mulf %[[s]], %[[s2]]
// CHECK: %[[p:.*]] = arith.mulf %[[ds]], %[[s3]]
// CHECK: %[[half:.*]] = arith.constant -5.000000e-01 : f32
// CHECK: %[[dv:.*]] = arith.mulf %[[p]], %[[half]]
// CHECK: %[[dsum:.*]] = arith.mulf %[[dv]], %{{.*}} : f32
// CHECK: %[[d2:.*]] = model.row_splat %[[dsum]]
// CHECK: %[[a:.*]] = arith.mulf %[[d2]], %[[x]]
// CHECK: %[[dx1:.*]] = arith.addf %[[dx0]], %[[a]]
// CHECK: %[[b:.*]] = arith.mulf %[[d2]], %[[x]]
// CHECK: %[[dx:.*]] = arith.addf %[[dx1]], %[[b]]
// CHECK: model.row_yield %[[dx]], %[[dw]]
// CHECK: %[[DW:.*]] = model.column_sum %[[G]]#1 {{.*}} : (tensor<1x3x4xf32>) -> tensor<4xf32>
// CHECK: train.accumulate @w, %[[DW]]
// CHECK: train.embedding_grad %{{.*}}, %[[G]]#0
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
model.parameter @w : tensor<4xf32> {file = "a", trainable}
func.func @rms_norm(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %w = model.weight @w : tensor<4xf32>
  %y = model.rms_norm %x, %w {epsilon = 1.0e-5 : f64} : (tensor<1x3x4xf32>, tensor<4xf32>) -> tensor<1x3x4xf32>
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// rope: the gradient rotates in the opposite direction. It does not read x.
// CHECK: train.step accumulate
// CHECK: %[[COS:.*]], %[[SIN:.*]] = model.rope_table
// CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %[[DY:.*]] = train.head_loss_grad
// CHECK: %[[G:.*]] = model.rows(%[[COS]], %[[SIN]], %[[DY]]) attributes {columns = 4 : i64, label = "rope_grad", maps = [#model.map<group>, #model.map<group>, #model.map<full>], phase = #model.phase<backward>}
// CHECK-NEXT: ^bb0(%[[c:.*]]: tensor<4xf32>, %[[s:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK-NEXT: %[[a:.*]] = arith.mulf %[[dy]], %[[c]]
// CHECK-NEXT: %[[b:.*]] = arith.mulf %[[dy]], %[[s]]
// CHECK-NEXT: %[[r:.*]] = model.row_rotate %[[b]]
// CHECK-NEXT: %[[n:.*]] = arith.negf %[[r]]
// CHECK-NEXT: %[[dx:.*]] = arith.addf %[[a]], %[[n]]
// CHECK-NEXT: model.row_yield %[[dx]]
// CHECK: train.embedding_grad %{{.*}}, %[[G]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @rope(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %cos, %sin = model.rope_table %ids {frequencies = array<f32: 1.0, 0.5, 1.0, 0.5>, attention_factor = 1.0 : f64} : (tensor<1x3xi32>) -> (tensor<1x3x4xf32>, tensor<1x3x4xf32>)
  %y = model.rope %x, %cos, %sin : (tensor<1x3x4xf32>, tensor<1x3x4xf32>, tensor<1x3x4xf32>) -> tensor<1x3x4xf32>
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// glu of silu: with s = sigmoid(g), dg = dy u (s + g s (1 - s)), du = dy g s.
// CHECK: train.step accumulate
// CHECK: %[[X:.*]] = model.embedding
// CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %[[DY:.*]] = train.head_loss_grad
// CHECK: %[[G:.*]]:2 = model.rows(%[[X]], %[[X]], %[[DY]]) attributes {columns = 4 : i64, label = "glu_grad"
// CHECK-NEXT: ^bb0(%[[g:.*]]: tensor<4xf32>, %[[u:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK-NEXT: %[[s:.*]] = model.row_sigmoid %[[g]]
// CHECK-NEXT: %[[t:.*]] = arith.mulf %[[g]], %[[s]]
// CHECK-NEXT: %[[dt:.*]] = arith.mulf %[[dy]], %[[u]]
// CHECK-NEXT: %[[du:.*]] = arith.mulf %[[dy]], %[[t]]
// CHECK-NEXT: %[[dg0:.*]] = arith.mulf %[[dt]], %[[s]]
// CHECK-NEXT: %[[ds:.*]] = arith.mulf %[[dt]], %[[g]]
// CHECK-NEXT: %[[q:.*]] = arith.mulf %[[ds]], %[[s]]
// CHECK-NEXT: %[[qs:.*]] = arith.mulf %[[q]], %[[s]]
// CHECK-NEXT: %[[r:.*]] = arith.subf %[[q]], %[[qs]]
// CHECK-NEXT: %[[dg:.*]] = arith.addf %[[dg0]], %[[r]]
// CHECK-NEXT: model.row_yield %[[dg]], %[[du]]
// x is both operands of glu, so the gradient of x is a sum.
// CHECK: %[[SUM:.*]] = model.add %[[G]]#0, %[[G]]#1 {phase = #model.phase<backward>}
// CHECK: train.embedding_grad %{{.*}}, %[[SUM]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @glu(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.glu silu %x, %x : tensor<1x3x4xf32>
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// add_bias and add pass the gradient on unchanged; the bias gets its sum over
// all rows.
// CHECK: train.step accumulate
// CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %[[DY:.*]] = train.head_loss_grad
// CHECK-NOT: model.rows
// CHECK: %[[DB:.*]] = model.column_sum %[[DY]]
// CHECK: train.accumulate @b, %[[DB]]
// CHECK: train.embedding_grad %{{.*}}, %[[DY]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
model.parameter @b : tensor<4xf32> {file = "a", trainable}
func.func @add_bias(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %b = model.weight @b : tensor<4xf32>
  %z = model.embedding %ids, %h : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %s = model.add %x, %z : tensor<1x3x4xf32>
  %y = model.add_bias %s, %b : (tensor<1x3x4xf32>, tensor<4xf32>) -> tensor<1x3x4xf32>
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// dropout: the mask is generated again from its id; x is not read.
// CHECK: train.step accumulate
// CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %[[DY:.*]] = train.head_loss_grad
// CHECK: model.rows(%[[DY]]) attributes {columns = 4 : i64, label = "dropout_grad", maps = [#model.map<full>], phase = #model.phase<backward>}
// CHECK-NEXT: ^bb0(%[[dy:.*]]: tensor<4xf32>):
// CHECK: %[[u:.*]] = model.row_random {id = 9 : i64}
// CHECK: %[[keep:.*]] = arith.cmpf oge, %[[u]]
// CHECK: %[[mask:.*]] = arith.select %[[keep]]
// CHECK-NEXT: %[[dx:.*]] = arith.mulf %[[dy]], %[[mask]]
// CHECK-NEXT: model.row_yield %[[dx]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @dropout(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.dropout %x {probability = 0.5 : f64, id = 9} : tensor<1x3x4xf32>
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// y = exp(x) / sqrt(x). Gradients of operands, from the gradient d of a result:
//   y = a / b:    d / b for a, -(d / b) * y for b
//   y = sqrt(x):  d / (2 * sqrt(x))
//   y = exp(x):   d * exp(x)
// CHECK: train.step accumulate
// CHECK: label = "rows_grad"
// CHECK-NEXT: ^bb0(%[[x:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK-NEXT: %[[e:.*]] = math.exp %[[x]]
// CHECK-NEXT: %[[q:.*]] = math.sqrt %[[x]]
// CHECK-NEXT: %[[y:.*]] = arith.divf %[[e]], %[[q]]
// CHECK-NEXT: %[[de:.*]] = arith.divf %[[dy]], %[[q]]
// CHECK-NEXT: %[[m:.*]] = arith.mulf %[[de]], %[[y]]
// CHECK-NEXT: %[[dq:.*]] = arith.negf %[[m]]
// CHECK-NEXT: %[[r:.*]] = arith.divf %[[dq]], %[[q]]
// CHECK-NEXT: %[[half:.*]] = arith.constant 5.000000e-01 : f32
// CHECK-NEXT: %[[halves:.*]] = model.row_splat %[[half]]
// CHECK-NEXT: %[[a:.*]] = arith.mulf %[[r]], %[[halves]]
// CHECK-NEXT: %[[b:.*]] = arith.mulf %[[de]], %[[e]]
// CHECK-NEXT: %[[dx:.*]] = arith.addf %[[a]], %[[b]]
// CHECK-NEXT: model.row_yield %[[dx]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @division(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.rows(%x) attributes {columns = 4, maps = [#model.map<full>]} : (tensor<1x3x4xf32>) -> tensor<1x3x4xf32> {
  ^bb0(%0: tensor<4xf32>):
    %1 = math.exp %0 : tensor<4xf32>
    %2 = math.sqrt %0 : tensor<4xf32>
    %3 = arith.divf %1, %2 : tensor<4xf32>
    model.row_yield %3 : tensor<4xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// Sine, cosine, difference, negation: y = sin(x) - (-cos(x)).
// CHECK: train.step accumulate
// CHECK: label = "rows_grad"
// CHECK-NEXT: ^bb0(%[[x:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK-NEXT: %[[n:.*]] = arith.negf %[[dy]]
// CHECK-NEXT: %[[dc:.*]] = arith.negf %[[n]]
// CHECK-NEXT: %[[s:.*]] = math.sin %[[x]]
// CHECK-NEXT: %[[m:.*]] = arith.mulf %[[dc]], %[[s]]
// CHECK-NEXT: %[[a:.*]] = arith.negf %[[m]]
// CHECK-NEXT: %[[c:.*]] = math.cos %[[x]]
// CHECK-NEXT: %[[b:.*]] = arith.mulf %[[dy]], %[[c]]
// CHECK-NEXT: %[[dx:.*]] = arith.addf %[[a]], %[[b]]
// CHECK-NEXT: model.row_yield %[[dx]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @sine(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.rows(%x) attributes {columns = 4, maps = [#model.map<full>]} : (tensor<1x3x4xf32>) -> tensor<1x3x4xf32> {
  ^bb0(%0: tensor<4xf32>):
    %1 = math.sin %0 : tensor<4xf32>
    %2 = math.cos %0 : tensor<4xf32>
    %3 = arith.negf %2 : tensor<4xf32>
    %4 = arith.subf %1, %3 : tensor<4xf32>
    model.row_yield %4 : tensor<4xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// A select: the operand that is not selected gets zero, even if dy is not
// finite.
// CHECK: train.step accumulate
// CHECK: label = "rows_grad"
// CHECK-NEXT: ^bb0(%[[x:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK: %[[test:.*]] = arith.cmpf ogt, %[[x]]
// CHECK-NEXT: %[[number:.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[zero:.*]] = model.row_splat %[[number]]
// CHECK-NEXT: %[[dx:.*]] = arith.select %[[test]], %[[dy]], %[[zero]]
// CHECK-NEXT: model.row_yield %[[dx]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @choice(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.rows(%x) attributes {columns = 4, maps = [#model.map<full>]} : (tensor<1x3x4xf32>) -> tensor<1x3x4xf32> {
  ^bb0(%0: tensor<4xf32>):
    %1 = model.row_constant [1.0, 1.0, 1.0, 1.0] : tensor<4xf32>
    %2 = arith.cmpf ogt, %0, %1 : tensor<4xf32>
    %3 = arith.select %2, %0, %1 : tensor<4xi1>, tensor<4xf32>
    model.row_yield %3 : tensor<4xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// The gradient of a result that is an operand is passed through unchanged; an
// operand that no result depends on gets zero.
// CHECK: train.step accumulate
// CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %[[DY:.*]] = train.head_loss_grad
// CHECK: %[[ZERO:.*]] = model.rows() attributes {columns = 4 : i64, label = "rows_grad", maps = [], phase = #model.phase<backward>}
// CHECK: %[[SUM:.*]] = model.add %[[DY]], %[[ZERO]]
// CHECK: train.embedding_grad %{{.*}}, %[[SUM]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @identity(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.rows(%x, %x) attributes {columns = 4, maps = [#model.map<full>, #model.map<full>]} : (tensor<1x3x4xf32>, tensor<1x3x4xf32>) -> tensor<1x3x4xf32> {
  ^bb0(%0: tensor<4xf32>, %1: tensor<4xf32>):
    model.row_yield %0 : tensor<4xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// Maximum of a row: all elements equal to the maximum get equal parts of its
// gradient. The gradient of |x| has the sign of x. Rounding to integers passes
// no gradient.
// CHECK: train.step accumulate
// CHECK: label = "rows_grad"
// CHECK-NEXT: ^bb0(%[[x:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK-NEXT: %[[size:.*]] = math.absf %[[x]]
// CHECK-NEXT: %[[max:.*]] = model.row_max %[[size]]
// CHECK-NEXT: %[[d:.*]] = model.row_sum %[[dy]]
// CHECK: %[[L:.*]] = model.row_splat %[[max]]
// CHECK-NEXT: %[[is:.*]] = arith.cmpf oeq, %[[size]], %[[L]]
// CHECK-NEXT: %[[each:.*]] = arith.select %[[is]]
// CHECK-NEXT: %[[count:.*]] = model.row_sum %[[each]]
// CHECK-NEXT: %[[share:.*]] = arith.divf %[[d]], %[[count]] : f32
// CHECK-NEXT: %[[S:.*]] = model.row_splat %[[share]]
// CHECK-NEXT: %[[dsize:.*]] = arith.select %[[is]], %[[S]], %{{.*}}
// CHECK: %[[minus:.*]] = arith.negf %[[dsize]]
// CHECK-NEXT: %[[low:.*]] = arith.cmpf olt, %[[x]], %[[zero:.*]] : tensor<4xf32>
// CHECK-NEXT: %[[below:.*]] = arith.select %[[low]], %[[minus]], %[[zero]]
// CHECK-NEXT: %[[high:.*]] = arith.cmpf ogt, %[[x]], %[[zero]]
// CHECK-NEXT: %[[dx:.*]] = arith.select %[[high]], %[[dsize]], %[[below]]
// CHECK-NEXT: model.row_yield %[[dx]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @largest(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.rows(%x) attributes {columns = 4, maps = [#model.map<full>]} : (tensor<1x3x4xf32>) -> tensor<1x3x4xf32> {
  ^bb0(%0: tensor<4xf32>):
    %1 = math.absf %0 : tensor<4xf32>
    %2 = model.row_max %1 : tensor<4xf32>
    %3 = model.row_splat %2 : tensor<4xf32>
    %4 = math.roundeven %0 : tensor<4xf32>
    %5 = arith.addf %3, %4 : tensor<4xf32>
    model.row_yield %5 : tensor<4xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}

// -----

// Maximum of two values: the larger gets the complete gradient; equal values
// get half each. Rounding to a floating-point type passes the gradient through.
// CHECK: train.step accumulate
// CHECK: label = "rows_grad"
// CHECK-NEXT: ^bb0(%[[x:.*]]: tensor<4xf32>, %[[dy:.*]]: tensor<4xf32>):
// CHECK-NEXT: %[[r:.*]] = model.row_round %[[x]] to bf16
// CHECK-NEXT: %[[y:.*]] = arith.maximumf %[[r]], %[[x]]
// CHECK: %[[half:.*]] = arith.mulf %[[dy]], %{{.*}}
// CHECK: %[[zero:.*]] = model.row_splat
// CHECK-NEXT: %[[same:.*]] = arith.cmpf oeq, %[[r]], %[[x]]
// CHECK-NEXT: %[[share:.*]] = arith.select %[[same]], %[[half]], %[[dy]]
// CHECK-NEXT: %[[is:.*]] = arith.cmpf oeq, %[[r]], %[[y]]
// CHECK-NEXT: %[[dr:.*]] = arith.select %[[is]], %[[share]], %[[zero]]
// CHECK: %[[other:.*]] = arith.cmpf oeq, %[[x]], %[[y]]
// CHECK-NEXT: %[[dx0:.*]] = arith.select %[[other]]
// CHECK-NEXT: %[[dx:.*]] = arith.addf %[[dx0]], %[[dr]]
// CHECK-NEXT: model.row_yield %[[dx]]
model.parameter @embed : tensor<16x4xf32> {file = "a", trainable}
model.parameter @head : tensor<16x4xf32> {file = "a"}
func.func @larger(%ids: tensor<1x3xi32> {model.input = "ids"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>) attributes {model.batch = 1, model.length = 3} {
  %e = model.weight @embed : tensor<16x4xf32>
  %h = model.weight @head : tensor<16x4xf32>
  %x = model.embedding %ids, %e : (tensor<1x3xi32>, tensor<16x4xf32>) -> tensor<1x3x4xf32>
  %y = model.rows(%x) attributes {columns = 4, maps = [#model.map<full>]} : (tensor<1x3x4xf32>) -> tensor<1x3x4xf32> {
  ^bb0(%0: tensor<4xf32>):
    %1 = model.row_round %0 to bf16 : tensor<4xf32>
    %2 = arith.maximumf %1, %0 : tensor<4xf32>
    model.row_yield %2 : tensor<4xf32>
  }
  %loss, %count, %correct = model.head_loss %y, %h, %ids : (tensor<1x3x4xf32>, tensor<16x4xf32>, tensor<1x3xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<1x3xi32>
}
