// RUN: qlora-opt %s --print-kernels -o /dev/null | FileCheck %s

// A reduction, a value computed from its result, and the loop that stores. Each
// row of the result has two kernel rows of 40 columns, then 20 other columns.

// CHECK-LABEL: // rms_norm: rows of 40 columns.
// CHECK: extern "C" void rms_norm_kernel(
// CHECK: const uint16_t *const in0 = static_cast<const uint16_t *>(args->buffers[0]);
// CHECK: const float *const in1 =
// CHECK: uint16_t *const out0 =
// CHECK: for (int64_t row = row_begin; row < row_end; ++row) {
// CHECK:   in0_row = in0 + row * 40;
// CHECK:   float sum0_lanes[16] = {};
// CHECK:   for (int64_t block = 0; block < 32; block += 16)
// CHECK:     for (int64_t lane = 0; lane < 16; ++lane) {
// CHECK:       const int64_t c = block + lane;
// CHECK:       const float x0 = qlora_load_bf16(in0_row, c);
// CHECK:       sum0_lanes[lane] += x0 * x0;
// CHECK:   for (int64_t lane = 0; lane < 8; ++lane) {
// CHECK:     const int64_t c = 32 + lane;
// CHECK:   const float sum0 = qlora_sum_lanes(sum0_lanes);
// CHECK:   const float mul0 = sum0 * 0.025f;
// CHECK:   const float rsqrt0 = qlora_rsqrt(mul0);
// CHECK:   out0_row = out0 + row / 2 * 100 + row % 2 * 40;
// CHECK:   for (int64_t c = 0; c < 40; ++c) {
// CHECK:     const float x1 = in1[c];
// CHECK:     qlora_store_bf16(out0_row, c, (x0 * rsqrt0) * x1);
program.kernel @rms_norm attributes {columns = 40 : i64,
    maps = [#model.map<full>, #model.map<column>],
    dtypes = array<i64: 1, 0, 1>, strides = array<i64: 40, 40, 100>,
    groups = array<i64: 1, 1, 2>} {
^bb0(%x: tensor<40xf32>, %w: tensor<40xf32>):
  %n = arith.constant 0.025 : f32
  %x2 = arith.mulf %x, %x : tensor<40xf32>
  %sum = model.row_sum %x2 : tensor<40xf32>
  %mean = arith.mulf %sum, %n : f32
  %scale = math.rsqrt %mean : f32
  %scales = model.row_splat %scale : tensor<40xf32>
  %y = arith.mulf %x, %scales : tensor<40xf32>
  %z = arith.mulf %y, %w : tensor<40xf32>
  model.row_yield %z : tensor<40xf32>
}

// Softmax reads the exponential again after its sum, so an array stores it.
// An unused operand is not declared. Reductions that do not depend on each
// other share a loop.

// CHECK-LABEL: // softmax: rows of 16 columns.
// CHECK-NOT: in1
// CHECK: alignas(64) float exp0_row[16];
// CHECK: float sum0_lanes[16] = {};
// CHECK: float sum1_lanes[16] = {};
// CHECK: const float exp0 = qlora_exp(x0);
// CHECK: exp0_row[c] = exp0;
// CHECK: sum0_lanes[lane] += exp0;
// CHECK: sum1_lanes[lane] += x0;
// CHECK: const float exp0 = exp0_row[c];
// CHECK: out0_row[c] = exp0 / sum0;
// CHECK: out1_row[c] = sum1;
program.kernel @softmax attributes {columns = 16 : i64,
    maps = [#model.map<full>, #model.map<full>],
    dtypes = array<i64: 0, 0, 0, 0>, strides = array<i64: 16, 16, 16, 16>,
    groups = array<i64: 1, 1, 1, 1>} {
^bb0(%x: tensor<16xf32>, %unused: tensor<16xf32>):
  %e = math.exp %x : tensor<16xf32>
  %sum = model.row_sum %e : tensor<16xf32>
  %sums = model.row_splat %sum : tensor<16xf32>
  %total = model.row_sum %x : tensor<16xf32>
  %totals = model.row_splat %total : tensor<16xf32>
  %y = arith.divf %e, %sums : tensor<16xf32>
  model.row_yield %y, %totals : tensor<16xf32>, tensor<16xf32>
}

// Elementwise functions, and a value that is rounded to the type in which it is
// stored.

// CHECK-LABEL: // functions: rows of 16 columns.
// CHECK: qlora_round_bf16(qlora_log(qlora_erf(qlora_tanh(x0))));
// CHECK: out0_row[c] = qlora_round_f16(round0);
program.kernel @functions attributes {columns = 16 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 16, 16>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<16xf32>):
  %t = math.tanh %x : tensor<16xf32>
  %e = math.erf %t : tensor<16xf32>
  %l = math.log %e : tensor<16xf32>
  %b = model.row_round %l to bf16 : tensor<16xf32>
  %h = model.row_round %b to f16 : tensor<16xf32>
  model.row_yield %h : tensor<16xf32>
}

// A rotation reads both halves of a row in one loop. Operands have one value
// per row, per group of rows, or for all rows. The last is read only once.

// CHECK-LABEL: // rotate: rows of 8 columns.
// CHECK: const float x2 = in2[0];
// CHECK: const float learning_rate = args->step->learning_rate;
// CHECK: const float mul0 = x2 * learning_rate;
// CHECK: for (int64_t row = row_begin
// CHECK: const float x1 = float(qlora_load_i32(in1, row / 4));
// CHECK: for (int64_t c = 0; c < 4; ++c) {
// CHECK: const float x0_low = in0_row[c];
// CHECK: const float x0_high = in0_row[c + 4];
// CHECK: out0_row[c] =
// CHECK: out0_row[c + 4] =
program.kernel @rotate attributes {columns = 8 : i64,
    maps = [#model.map<full>, #model.map<scalar, 4>, #model.map<global>],
    dtypes = array<i64: 0, 3, 0, 0>, strides = array<i64: 8, 1, 1, 8>,
    groups = array<i64: 1, 1, 1, 1>} {
^bb0(%x: tensor<8xf32>, %position: f32, %all: f32):
  %rate = model.row_step "learning_rate"
  %factor = arith.mulf %all, %rate : f32
  %both = arith.mulf %factor, %position : f32
  %factors = model.row_splat %both : tensor<8xf32>
  %turned = model.row_rotate %x : tensor<8xf32>
  %sum = arith.addf %x, %turned : tensor<8xf32>
  %y = arith.mulf %sum, %factors : tensor<8xf32>
  model.row_yield %y : tensor<8xf32>
}

// In a row of 8 columns, the first 6 rotate in pairs of columns c and c + 3;
// the last two are unchanged.

// CHECK-LABEL: // part: rows of 8 columns.
// CHECK: for (int64_t c = 0; c < 4; ++c) {
// CHECK: const float x0_low = in0_row[c + (c < 3 ? 0 : 3)];
// CHECK: const float x0_high = in0_row[c + (c < 3 ? 3 : 4)];
// CHECK: out0_row[c + (c < 3 ? 0 : 3)] = x0_low + (c < 3 ? -x0_high : 0.0f);
// CHECK: out0_row[c + (c < 3 ? 3 : 4)] = x0_high + (c < 3 ? x0_low : 0.0f);
program.kernel @part attributes {columns = 8 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 8, 8>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<8xf32>):
  %turned = model.row_rotate %x {width = 6 : i64} : tensor<8xf32>
  %y = arith.addf %x, %turned : tensor<8xf32>
  model.row_yield %y : tensor<8xf32>
}

// Random numbers and a select. A table of numbers is a file-scope constant.

// CHECK-LABEL: // mask+table: rows of 2 columns.
// CHECK: static const float mask_x2btable_kernel_table0[2] = {0.5f, -1.0f};
// CHECK: extern "C" void mask_x2btable_kernel(
// CHECK: const uint64_t seed = args->step->seed;
// CHECK: const uint64_t micro_batch = args->step->micro_batch;
// CHECK: const float random0 = qlora_uniform(seed, micro_batch, 9,
// CHECK-NEXT: qlora_whole_row(uint32_t(row), line_tokens, line_parts, line_part),
// CHECK-NEXT: c);
// CHECK: = mask_x2btable_kernel_table0[c];
// CHECK: random0 >= 0.5f
program.kernel @"mask+table" attributes {columns = 2 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 2>,
    strides = array<i64: 2, 2>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<2xf32>):
  %half = arith.constant 0.5 : f32
  %halves = model.row_splat %half : tensor<2xf32>
  %random = model.row_random {id = 9 : i64} : tensor<2xf32>
  %keep = arith.cmpf oge, %random, %halves : tensor<2xf32>
  %table = model.row_constant [0.5, -1.0] : tensor<2xf32>
  %y = arith.select %keep, %x, %table : tensor<2xi1>, tensor<2xf32>
  model.row_yield %y : tensor<2xf32>
}

// Encodes a row as integers: one loop finds the largest magnitude, the next
// stores the integers, and the magnitude is stored once per row.

// CHECK-LABEL: // encode: rows of 24 columns.
// CHECK: int8_t *const out0 = static_cast<int8_t *>(args->buffers[1]);
// CHECK: float *const out1 = static_cast<float *>(args->buffers[2]);
// CHECK: float max0_lanes[16];
// CHECK-NEXT: qlora_lowest_lanes(max0_lanes);
// CHECK: max0_lanes[lane] = qlora_maximum(max0_lanes[lane], qlora_abs(x0));
// CHECK: const float max0 = qlora_max_lanes(max0_lanes);
// CHECK-NEXT: const float quotient0 = 127.0f / max0;
// CHECK: qlora_store_i8(out0_row, c, qlora_round_even((x0 * quotient0)));
// CHECK: float *const out1_row = out1 + row;
// CHECK-NEXT: out1_row[0] = max0;
program.kernel @encode attributes {columns = 24 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 1, 6, 0>,
    strides = array<i64: 24, 24, 1>, groups = array<i64: 1, 1, 1>} {
^bb0(%x: tensor<24xf32>):
  %most = arith.constant 127.0 : f32
  %size = math.absf %x : tensor<24xf32>
  %max = model.row_max %size : tensor<24xf32>
  %factor = arith.divf %most, %max : f32
  %factors = model.row_splat %factor : tensor<24xf32>
  %scaled = arith.mulf %x, %factors : tensor<24xf32>
  %codes = math.roundeven %scaled : tensor<24xf32>
  model.row_yield %codes, %max : tensor<24xf32>, f32
}
