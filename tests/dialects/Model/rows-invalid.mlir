// SPDX-License-Identifier: MIT

// Violates the labelled constraints of row ops and of row regions.

// RUN: qlora-opt %s --split-input-file --verify-diagnostics

//===----------------------------------------------------------------------===//
// Row ops
//===----------------------------------------------------------------------===//

func.func @rms_norm_c1(%x: tensor<2x4x10xf32>, %w: tensor<4xf32>) {
  // expected-error @+1 {{(C1) expects a width that is a multiple of the weight's 4, but got 10}}
  %0 = model.rms_norm %x, %w {epsilon = 1.0e-5 : f64} : (tensor<2x4x10xf32>, tensor<4xf32>) -> tensor<2x4x10xf32>
  return
}

// -----

func.func @rms_norm_c2(%x: tensor<2x4x8xf32>, %w: tensor<8xf32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x4x8xf32>'}}
  %0 = model.rms_norm %x, %w {epsilon = 1.0e-5 : f64} : (tensor<2x4x8xf32>, tensor<8xf32>) -> tensor<2x4x8xbf16>
  return
}

// -----

func.func @layer_norm_c1(%x: tensor<2x4x10xf32>, %w: tensor<4xf32>) {
  // expected-error @+1 {{(C1) expects a width that is a multiple of the weight's 4, but got 10}}
  %0 = model.layer_norm %x, %w, %w {epsilon = 1.0e-5 : f64} : (tensor<2x4x10xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x10xf32>
  return
}

// -----

func.func @layer_norm_c2(%x: tensor<2x4x8xf32>, %w: tensor<8xf32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x4x8xf32>'}}
  %0 = model.layer_norm %x, %w, %w {epsilon = 1.0e-5 : f64} : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x4x8xbf16>
  return
}

// -----

func.func @layer_norm_c3(%x: tensor<2x4x8xf32>, %w: tensor<8xf32>, %b: tensor<4xf32>) {
  // expected-error @+1 {{(C3) expects a bias of 8 elements, but got 4}}
  %0 = model.layer_norm %x, %w, %b {epsilon = 1.0e-5 : f64} : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<4xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @rope_table_c1(%p: tensor<2x4xf32>) {
  // expected-error @+1 {{(C1) expects positions and lengths of type [B, T] i32}}
  %0, %1 = model.rope_table %p {frequencies = array<f32: 1.0, 1.0>, attention_factor = 1.0 : f64} : (tensor<2x4xf32>) -> (tensor<2x4x2xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @rope_table_c2(%p: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects cos and sin of one type, and an even number of frequencies, at most their width, but got 2}}
  %0, %1 = model.rope_table %p {frequencies = array<f32: 1.0, 1.0>, attention_factor = 1.0 : f64} : (tensor<2x4xi32>) -> (tensor<2x4x2xf32>, tensor<2x4x4xf32>)
  return
}

// -----

func.func @rope_table_c2_count(%p: tensor<2x4xi32>) {
  // expected-error @+1 {{(C2) expects cos and sin of one type, and an even number of frequencies, at most their width, but got 4}}
  %0, %1 = model.rope_table %p {frequencies = array<f32: 1.0, 1.0, 1.0, 1.0>, attention_factor = 1.0 : f64} : (tensor<2x4xi32>) -> (tensor<2x4x2xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @rope_table_c3(%p: tensor<2x4xi32>) {
  // expected-error @+1 {{(C3) expects lengths and an original length together with a dynamic factor or as many long frequencies as frequencies}}
  %0, %1 = model.rope_table %p, %p {frequencies = array<f32: 1.0, 1.0>, long_frequencies = array<f32: 1.0>, attention_factor = 1.0 : f64, original_length = 2 : i64} : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4x2xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @rope_table_c3_length(%p: tensor<2x4xi32>) {
  // expected-error @+1 {{(C3) expects lengths and an original length}}
  %0, %1 = model.rope_table %p, %p {frequencies = array<f32: 1.0, 1.0>, dynamic_factor = 2.0 : f64, attention_factor = 1.0 : f64} : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4x2xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @rope_table_c3_no_lengths(%p: tensor<2x4xi32>) {
  // expected-error @+1 {{(C3) expects lengths and an original length}}
  %0, %1 = model.rope_table %p {frequencies = array<f32: 1.0, 1.0>, dynamic_factor = 2.0 : f64, attention_factor = 1.0 : f64, original_length = 2 : i64} : (tensor<2x4xi32>) -> (tensor<2x4x2xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @rope_table_c1_lengths(%p: tensor<2x4xi32>, %l: tensor<2x4xf32>) {
  // expected-error @+1 {{(C1) expects positions and lengths}}
  %0, %1 = model.rope_table %p, %l {frequencies = array<f32: 1.0, 1.0>, dynamic_factor = 2.0 : f64, attention_factor = 1.0 : f64, original_length = 2 : i64} : (tensor<2x4xi32>, tensor<2x4xf32>) -> (tensor<2x4x2xf32>, tensor<2x4x2xf32>)
  return
}

// -----

func.func @rope_c2_rotated(%x: tensor<2x4x8xf32>, %c: tensor<2x4x4xf32>) {
  // expected-error @+1 {{(C2) expects an even number of rotated columns, at most 4, but got 6}}
  %0 = model.rope %x, %c, %c {rotated = 6 : i64} : (tensor<2x4x8xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @rope_c1(%x: tensor<2x4x6xf32>, %c: tensor<2x4x4xf32>) {
  // expected-error @+1 {{(C1) expects a width that is a multiple of 4, but got 6}}
  %0 = model.rope %x, %c, %c : (tensor<2x4x6xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @rope_c2(%x: tensor<2x4x6xf32>, %c: tensor<2x4x3xf32>) {
  // expected-error @+1 {{(C2) expects cos and sin of one even width, but got 3}}
  %0 = model.rope %x, %c, %c : (tensor<2x4x6xf32>, tensor<2x4x3xf32>, tensor<2x4x3xf32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @rope_c3(%x: tensor<2x4x8xf32>, %c: tensor<2x4x4xf32>) {
  // expected-error @+1 {{(C3) expects a result of type 'tensor<2x4x8xf32>'}}
  %0 = model.rope %x, %c, %c : (tensor<2x4x8xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  return
}

// -----

// cos and sin have 3 tokens, but x has 4.
func.func @rope_r1(%x: tensor<2x4x8xf32>, %c: tensor<2x3x4xf32>) {
  // expected-error @+1 {{(R1) operand 1 is 'tensor<2x3x4xf32>', but 16 rows of 4 do not read all of it as #model.map<group, 2>}}
  %0 = model.rope %x, %c, %c : (tensor<2x4x8xf32>, tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @glu_types(%x: tensor<2x4x8xf32>, %y: tensor<2x4x9xf32>) {
  // expected-error @+1 {{requires the same type for all operands and results}}
  %0 = "model.glu"(%x, %y) <{kind = #model<activation_kind silu>}> : (tensor<2x4x8xf32>, tensor<2x4x9xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @add_bias_c1(%x: tensor<2x4x8xf32>, %b: tensor<9xf32>) {
  // expected-error @+1 {{(C1) expects a bias of 8 elements, but got 9}}
  %0 = model.add_bias %x, %b : (tensor<2x4x8xf32>, tensor<9xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @add_bias_c2(%x: tensor<2x4x8xf32>, %b: tensor<8xf32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x4x8xf32>'}}
  %0 = model.add_bias %x, %b : (tensor<2x4x8xf32>, tensor<8xf32>) -> tensor<2x3x8xf32>
  return
}

// -----

func.func @magnitude_c1(%x: tensor<2x4x8xf32>, %m: tensor<8xf32>, %n: tensor<9xf32>) {
  // expected-error @+1 {{(C1) expects 8 numbers, but got 'tensor<9xf32>'}}
  %0 = model.magnitude %x, %m, %n : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<9xf32>) -> tensor<2x4x8xf32>
  return
}

// -----

func.func @magnitude_c2(%x: tensor<2x4x8xf32>, %m: tensor<8xf32>) {
  // expected-error @+1 {{(C2) expects a result of type 'tensor<2x4x8xf32>'}}
  %0 = model.magnitude %x, %m, %m : (tensor<2x4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x4x8xbf16>
  return
}

// -----

func.func @noise_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects a finite magnitude above 0}}
  %0 = model.noise %x {magnitude = 0.0 : f64, id = 0} : tensor<2x4x8xf32>
  return
}

// -----

func.func @dropout_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects a probability between 0 and 1, but got 1.0}}
  %0 = model.dropout %x {probability = 1.0 : f64, id = 0} : tensor<2x4x8xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// rows
//===----------------------------------------------------------------------===//

func.func @rows_c1(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) expects one map and one argument per operand}}
  %0 = model.rows(%x) attributes {columns = 8, maps = []} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield %0 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_c1_type(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C1) argument 0 has type 'f32'}}
  %0 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: f32):
    %1 = model.row_splat %0 : tensor<8xf32>
    model.row_yield %1 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_c2(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C2) expects one yielded 'tensor<8xf32>' per result, or f32 after the first, and a result}}
  %0 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    %1 = model.row_sum %0 : tensor<8xf32>
    model.row_yield %1 : f32
  }
  return
}

// -----

func.func @rows_c2_nothing(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C2) expects one yielded 'tensor<8xf32>' per result, or f32 after the first, and a result}}
  model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> () {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield
  }
  return
}

// -----

func.func @rows_c3(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C3) expects at least 1 column, but got 0}}
  %0 = model.rows(%x) attributes {columns = 0, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield %0 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_c3_width(%x: tensor<2x4x9xf32>) {
  // expected-error @+1 {{(C3) expects widths that are multiples of 6, but got 9}}
  %0 = model.rows(%x) attributes {columns = 6, maps = [#model.map<full>]} : (tensor<2x4x9xf32>) -> tensor<2x4x9xf32> {
  ^bb0(%0: tensor<6xf32>):
    model.row_yield %0 : tensor<6xf32>
  }
  return
}

// -----

func.func @rows_c4(%x: tensor<2x4x8xf32>) {
  %0 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    // expected-error @+1 {{(C4) expects a row of 8 elements, but got 'tensor<4xf32>'}}
    %1 = model.row_random {id = 0} : tensor<4xf32>
    model.row_yield %0 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_c5(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(C5) expects an identifier as label, but got '8 rows'}}
  %0 = model.rows(%x) attributes {columns = 8, label = "8 rows", maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield %0 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_r1_full(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(R1) operand 0 is 'tensor<2x4x8xf32>', but 10 rows of 8 do not read all of it as #model.map<full>}}
  %0 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x5x8xf32> {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield %0 : tensor<8xf32>
  }
  return
}

// -----

// 8 rows cannot be divided into groups of 3.
func.func @rows_r1_group(%x: tensor<2xi32>) {
  // expected-error @+1 {{(R1) operand 0 is 'tensor<2xi32>', but 8 rows of 8 do not read all of it as #model.map<scalar, 3>}}
  %0 = model.rows(%x) attributes {columns = 8, maps = [#model.map<scalar, 3>]} : (tensor<2xi32>) -> tensor<2x4x8xf32> {
  ^bb0(%0: f32):
    %1 = model.row_splat %0 : tensor<8xf32>
    model.row_yield %1 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_r1_results(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(R1) expects results of one size, but got 'tensor<2x4x8xf32>' and 'tensor<2x4x16xf32>'}}
  %0:2 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x16xf32>) {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield %0, %0 : tensor<8xf32>, tensor<8xf32>
  }
  return
}

// -----

func.func @rows_r1_scalar_result(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{(R1) expects results of one size, but got 'tensor<2x4x8xf32>' and 'tensor<2x8xf32>' for one number per row}}
  %0:2 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x8xf32>) {
  ^bb0(%0: tensor<8xf32>):
    %1 = model.row_max %0 : tensor<8xf32>
    model.row_yield %0, %1 : tensor<8xf32>, f32
  }
  return
}

// -----

func.func @rows_result_type(%x: tensor<2x4x8xf32>) {
  // expected-error @+1 {{must be variadic of a ranked tensor of f32, bf16, f16 or i8 with positive dimensions, but got 'tensor<2x4x8xi32>'}}
  %0 = model.rows(%x) attributes {columns = 8, maps = [#model.map<full>]} : (tensor<2x4x8xf32>) -> tensor<2x4x8xi32> {
  ^bb0(%0: tensor<8xf32>):
    model.row_yield %0 : tensor<8xf32>
  }
  return
}

// -----

func.func @rows_r1_4bit(%w: tensor<8x64x!model.quantized<nf4, 64, true>>) {
  // expected-error @+1 {{(R1) cannot read operand 0, which is quantized}}
  %0 = model.rows(%w) attributes {columns = 64, maps = [#model.map<full>]} : (tensor<8x64x!model.quantized<nf4, 64, true>>) -> tensor<2x4x64xf32> {
  ^bb0(%0: tensor<64xf32>):
    model.row_yield %0 : tensor<64xf32>
  }
  return
}

// -----

func.func @row_round_c1(%x: tensor<8xf32>) {
  // expected-error @+1 {{(C1) expects bf16 or f16, but got 'f32'}}
  %0 = model.row_round %x to f32 : tensor<8xf32>
  return
}

// -----

func.func @row_rotate_c1(%x: tensor<7xf32>) {
  // expected-error @+1 {{(C1) expects an even number of elements, but got 0 of 'tensor<7xf32>'}}
  %0 = model.row_rotate %x : tensor<7xf32>
  return
}

// -----

func.func @row_rotate_c1_width(%x: tensor<8xf32>) {
  // expected-error @+1 {{(C1) expects an even number of elements, but got 10 of 'tensor<8xf32>'}}
  %0 = model.row_rotate %x {width = 10 : i64} : tensor<8xf32>
  return
}

// -----

func.func @row_constant_c1() {
  // expected-error @+1 {{(C1) expects as many numbers as elements, but got 2 for 'tensor<3xf32>'}}
  %0 = model.row_constant [1.0, 2.0] : tensor<3xf32>
  return
}

// -----

func.func @row_step_c1() {
  // expected-error @+1 {{(C1) does not know the field 'momentum'}}
  %0 = model.row_step "momentum"
  return
}

// -----

func.func @row_type(%x: tensor<2x4xf32>) {
  // expected-error @+1 {{must be a row, tensor<Cxf32>, but got 'tensor<2x4xf32>'}}
  %0 = model.row_sum %x : tensor<2x4xf32>
  return
}
