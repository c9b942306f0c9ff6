// RUN: qlora-opt %s --print-kernels --split-input-file --verify-diagnostics

program.kernel @unknown attributes {columns = 2 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 2, 2>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<2xf32>):
  // expected-error@+1 {{'math.tan' op cannot be printed in a kernel}}
  %y = math.tan %x : tensor<2xf32>
  model.row_yield %y : tensor<2xf32>
}

// -----

program.kernel @field attributes {columns = 2 : i64, maps = [],
    dtypes = array<i64: 0>, strides = array<i64: 2>, groups = array<i64: 1>} {
  // expected-error@+1 {{(C1) does not know the field 'momentum'}}
  %m = model.row_step "momentum"
  %y = model.row_splat %m : tensor<2xf32>
  model.row_yield %y : tensor<2xf32>
}

// -----

// expected-error@+1 {{operand 1 has dtype 3, which a row cannot write}}
program.kernel @integer attributes {columns = 2 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 3, 3>,
    strides = array<i64: 2, 2>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<2xf32>):
  model.row_yield %x : tensor<2xf32>
}

// -----

// expected-error@+1 {{operand 0 has rows of 4 elements, but stride 3}}
program.kernel @stride attributes {columns = 2 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 3, 2>, groups = array<i64: 2, 1>} {
^bb0(%x: tensor<2xf32>):
  model.row_yield %x : tensor<2xf32>
}

// -----

// expected-error@+1 {{operand 0 has stride 6, no multiple of the 4 elements that its rows are aligned to}}
program.kernel @aligned attributes {aligned = 4, columns = 4 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 6, 4>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<4xf32>):
  model.row_yield %x : tensor<4xf32>
}

// -----

// expected-error@+1 {{expects columns, maps, dtypes, strides and groups}}
program.kernel @bare attributes {columns = 2 : i64} {
^bb0(%x: tensor<2xf32>):
  model.row_yield %x : tensor<2xf32>
}

// -----

program.kernel @odd attributes {columns = 3 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 3, 3>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<3xf32>):
  // expected-error@+1 {{(C1) expects an even number of elements}}
  %y = model.row_rotate %x : tensor<3xf32>
  model.row_yield %y : tensor<3xf32>
}

// -----

program.kernel @two_widths attributes {columns = 8 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 8, 8>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<8xf32>):
  %y = model.row_rotate %x {width = 6 : i64} : tensor<8xf32>
  // expected-error@+1 {{cannot be printed in a kernel that also turns 6 columns}}
  %z = model.row_rotate %y : tensor<8xf32>
  model.row_yield %z : tensor<8xf32>
}
