// RUN: qlora-opt %s --print-kernels=target=cuda -o /dev/null | FileCheck %s
// RUN: not qlora-opt %s --print-kernels=target=tpu 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: expects cpu or cuda as target, but got 'tpu'

// A block computes a wide row. Each thread handles columns at a fixed stride,
// and the block's sum is available to all threads.

// CHECK: #include "runtime/Kernels/Cuda/Device/Lanes.cuh"
// CHECK-LABEL: // softmax: rows of 2048 columns, a block of 256 threads each.
// CHECK-NEXT: extern "C" __global__ void __launch_bounds__(256, 4)
// CHECK-NEXT: softmax_kernel(const __grid_constant__ qlora_cuda_args args) {
// CHECK-NEXT:   const float *const in0 = static_cast<const float *>(args.buffers[0]);
// CHECK-NEXT:   float *const out0 = static_cast<float *>(args.buffers[1]);
// CHECK-NEXT:   const uint32_t row = blockIdx.x;
// CHECK-NEXT:   const float *const in0_row = in0 + int64_t(row) * 2048;
// CHECK-NEXT:   __shared__ float exp0_row[2048];
// CHECK-NEXT:   float sum0_part = 0.0f;
// CHECK-NEXT:   for (int c = threadIdx.x; c < 2048; c += 256) {
// CHECK-NEXT:     const float x0 = in0_row[c];
// CHECK-NEXT:     const float exp0 = qlora_exp(x0);
// CHECK-NEXT:     exp0_row[c] = exp0;
// CHECK-NEXT:     sum0_part += exp0;
// CHECK-NEXT:   }
// CHECK-NEXT:   const float sum0 = qlora_block_sum(sum0_part);
// CHECK-NEXT:   float *const out0_row = out0 + int64_t(row) * 2048;
// CHECK-NEXT:   for (int c = threadIdx.x; c < 2048; c += 256) {
// CHECK-NEXT:     const float exp0 = exp0_row[c];
// CHECK-NEXT:     out0_row[c] = exp0 / sum0;
// CHECK-NEXT:   }
// CHECK-NEXT: }
program.kernel @softmax attributes {columns = 2048 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 2048, 2048>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<2048xf32>):
  %e = math.exp %x : tensor<2048xf32>
  %sum = model.row_sum %e : tensor<2048xf32>
  %sums = model.row_splat %sum : tensor<2048xf32>
  %y = arith.divf %e, %sums : tensor<2048xf32>
  model.row_yield %y : tensor<2048xf32>
}

// A warp computes a narrow row in the warp's own range of the block's array. A
// barrier of the warp completes the range before the next loop, which reads
// elements that other threads wrote. Values for all rows are read first. Warps
// beyond the last row do nothing.

// CHECK-LABEL: // turned: rows of 96 columns, a warp each, 8 a block.
// CHECK: __launch_bounds__(256, 4)
// CHECK: const float x1 = in1[0];
// CHECK-NEXT: const float learning_rate = args.step->learning_rate;
// CHECK-NEXT: const float mul0 = x1 * learning_rate;
// CHECK-NEXT: const uint32_t row = blockIdx.x * 8 + threadIdx.x / 32;
// CHECK-NEXT: if (row >= args.rows)
// CHECK-NEXT:   return;
// CHECK: __shared__ float exp0_rows[8][96];
// CHECK-NEXT: float *const exp0_row = exp0_rows[threadIdx.x / 32];
// CHECK-NEXT: float sum0_part = 0.0f;
// CHECK-NEXT: for (int c = threadIdx.x % 32; c < 96; c += 32) {
// CHECK: const float sum0 = qlora_warp_sum(sum0_part);
// CHECK-NEXT: __syncwarp();
// CHECK: for (int c = threadIdx.x % 32; c < 48; c += 32) {
// CHECK-NEXT: const float exp0_high = exp0_row[c + 48];
// CHECK: const float exp0_low = exp0_row[c];
// CHECK: qlora_store_bf16(out0_row, c,
// CHECK-NEXT: qlora_store_bf16(out0_row, c + 48,
program.kernel @turned attributes {columns = 96 : i64,
    maps = [#model.map<full>, #model.map<global>],
    dtypes = array<i64: 1, 0, 1>, strides = array<i64: 96, 1, 96>,
    groups = array<i64: 1, 1, 1>} {
^bb0(%x: tensor<96xf32>, %s: f32):
  %rate = model.row_step "learning_rate"
  %scaled = arith.mulf %s, %rate : f32
  %e = math.exp %x : tensor<96xf32>
  %sum = model.row_sum %e : tensor<96xf32>
  %factor = arith.addf %sum, %scaled : f32
  %factors = model.row_splat %factor : tensor<96xf32>
  %turned = model.row_rotate %e : tensor<96xf32>
  %y = arith.mulf %turned, %factors : tensor<96xf32>
  model.row_yield %y : tensor<96xf32>
}

// If shared memory cannot hold a row, its values are computed twice.

// CHECK-LABEL: // wide_softmax: rows of 12288 columns, a block of 512 threads each.
// CHECK-NOT: __shared__
// CHECK: sum0_part += qlora_exp(x0);
// CHECK: out0_row[c] = qlora_exp(x0) / sum0;
program.kernel @wide_softmax attributes {columns = 12288 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 12288, 12288>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<12288xf32>):
  %e = math.exp %x : tensor<12288xf32>
  %sum = model.row_sum %e : tensor<12288xf32>
  %sums = model.row_splat %sum : tensor<12288xf32>
  %y = arith.divf %e, %sums : tensor<12288xf32>
  model.row_yield %y : tensor<12288xf32>
}

// Two arrays of 8192 columns would need 64 KiB of shared memory: one is stored,
// one is recomputed.

// CHECK-LABEL: // one_of_two: rows of 8192 columns
// CHECK: __shared__ float exp0_row[8192];
// CHECK-NOT: __shared__
// CHECK: sum0_part += exp0 * qlora_cos(x0);
// CHECK: out0_row[c] = (exp0 / sum0) + qlora_cos(x0);
program.kernel @one_of_two attributes {columns = 8192 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 8192, 8192>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<8192xf32>):
  %e = math.exp %x : tensor<8192xf32>
  %s = math.cos %x : tensor<8192xf32>
  %product = arith.mulf %e, %s : tensor<8192xf32>
  %sum = model.row_sum %product : tensor<8192xf32>
  %sums = model.row_splat %sum : tensor<8192xf32>
  %scaled = arith.divf %e, %sums : tensor<8192xf32>
  %y = arith.addf %scaled, %s : tensor<8192xf32>
  model.row_yield %y : tensor<8192xf32>
}

// CHECK-LABEL: static __device__ const float numbers_kernel_table0[4] = {1.0f,
program.kernel @numbers attributes {columns = 4 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
    strides = array<i64: 4, 4>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<4xf32>):
  %numbers = model.row_constant [1.0, 2.0, 3.0, 4.0] : tensor<4xf32>
  %y = arith.addf %x, %numbers : tensor<4xf32>
  model.row_yield %y : tensor<4xf32>
}

// Aligned rows are loaded and stored in vectors of at most 16 bytes. With 8
// elements per thread, a warp handles 8 x 32 columns at a time. For 96 columns,
// over half of its threads would be idle, so vectors have 4 elements there. A
// value per row is no vector. Adding a negated value becomes a subtraction.

// CHECK-LABEL: // lanes: rows of 512 columns, a warp each, 8 a block.
// CHECK: const float x1 = qlora_load_bf16(in1, int64_t(row));
// CHECK: QLORA_ROLL
// CHECK-NEXT: for (int c = threadIdx.x % 32 * 8; c < 512; c += 256) {
// CHECK-NEXT:   const qlora_lanes<8> x0s = qlora_load_bf16<8>(in0_row, c);
// CHECK-NEXT:   qlora_lanes<8> out0s;
// CHECK-NEXT:   QLORA_UNROLL
// CHECK-NEXT:   for (int lane = 0; lane < 8; ++lane) {
// CHECK-NEXT:     out0s[lane] = x1 - qlora_exp(x0s[lane]);
// CHECK-NEXT:   }
// CHECK-NEXT:   qlora_store_bf16(out0_row, c, out0s);
// CHECK-NEXT: }
program.kernel @lanes attributes {aligned = 8, columns = 512 : i64,
    maps = [#model.map<full>, #model.map<scalar>],
    dtypes = array<i64: 1, 1, 1>, strides = array<i64: 512, 1, 512>,
    groups = array<i64: 1, 1, 1>} {
^bb0(%x: tensor<512xf32>, %s: f32):
  %e = math.exp %x : tensor<512xf32>
  %n = arith.negf %e : tensor<512xf32>
  %n1 = arith.negf %n : tensor<512xf32>
  %n2 = arith.negf %n1 : tensor<512xf32>
  %sums = model.row_splat %s : tensor<512xf32>
  %y = arith.addf %sums, %n2 : tensor<512xf32>
  model.row_yield %y : tensor<512xf32>
}

// CHECK-LABEL: // few_lanes: rows of 96 columns, a warp each, 8 a block.
// CHECK: for (int c = threadIdx.x % 32 * 4; c < 96; c += 128) {
program.kernel @few_lanes attributes {aligned = 8, columns = 96 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 1, 1>,
    strides = array<i64: 96, 96>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<96xf32>):
  %y = arith.negf %x : tensor<96xf32>
  model.row_yield %y : tensor<96xf32>
}

// The largest element of a row, integers loaded in vectors, and a value per
// row, which only one thread stores.

// CHECK-LABEL: // narrow: rows of 512 columns, a warp each, 8 a block.
// CHECK: float max0_part = qlora_lowest();
// CHECK: const qlora_lanes<8> x0s = qlora_load_i8<8>(in0_row, c);
// CHECK: max0_part = qlora_maximum(max0_part, x0s[lane]);
// CHECK: const float max0 = qlora_warp_max(max0_part);
// CHECK: qlora_store_bf16(out0_row, c, out0s);
// CHECK: float *const out1_row = out1 + int64_t(row);
// CHECK-NEXT: if (threadIdx.x % 32 == 0)
// CHECK-NEXT:   out1_row[0] = max0;
program.kernel @narrow attributes {columns = 512 : i64, aligned = 8,
    maps = [#model.map<full>], dtypes = array<i64: 6, 1, 0>,
    strides = array<i64: 512, 512, 1>, groups = array<i64: 1, 1, 1>} {
^bb0(%x: tensor<512xf32>):
  %max = model.row_max %x : tensor<512xf32>
  %maxima = model.row_splat %max : tensor<512xf32>
  %y = arith.mulf %x, %maxima : tensor<512xf32>
  model.row_yield %y, %max : tensor<512xf32>, f32
}

// CHECK-LABEL: // wide: rows of 2048 columns, a block of 256 threads each.
// CHECK: const float max0 = qlora_block_max(max0_part);
// CHECK: if (threadIdx.x == 0)
// CHECK-NEXT:   out1_row[0] = max0;
program.kernel @wide attributes {columns = 2048 : i64, aligned = 8,
    maps = [#model.map<full>], dtypes = array<i64: 6, 1, 0>,
    strides = array<i64: 2048, 2048, 1>, groups = array<i64: 1, 1, 1>} {
^bb0(%x: tensor<2048xf32>):
  %max = model.row_max %x : tensor<2048xf32>
  %maxima = model.row_splat %max : tensor<2048xf32>
  %y = arith.mulf %x, %maxima : tensor<2048xf32>
  model.row_yield %y, %max : tensor<2048xf32>, f32
}

// A thread draws the random words of its 8 elements before the body. Words are
// compared as integers: `random >= 0.25` becomes `word >= 2^30`. The second
// pass recomputes the words and the sigmoid, so neither needs an array. 256
// threads handle all 2048 columns at once, without a loop.

// CHECK-LABEL: // drawn: rows of 2048 columns, a block of 256 threads each.
// CHECK-NOT: __shared__
// CHECK: float sum0_part = 0.0f;
// CHECK-NEXT: {
// CHECK-NEXT:   const int c = threadIdx.x * 8;
// CHECK-NEXT:   const qlora_draws<8> random0s = qlora_draw<8>(seed, micro_batch, 9,
// CHECK-NEXT:     qlora_whole_row(uint32_t(row), line_tokens, line_parts, line_part), c);
// CHECK-NEXT:   const qlora_lanes<8> x0s = qlora_load_bf16<8>(in0_row, c);
// CHECK-NEXT:   QLORA_UNROLL
// CHECK-NEXT:   for (int lane = 0; lane < 8; ++lane) {
// CHECK:     random0s.word[lane] >= 1073741824u
// CHECK:   }
// CHECK-NEXT: }
// CHECK-NEXT: const float sum0 = qlora_block_sum(sum0_part);
// CHECK: qlora_draw<8>(seed, micro_batch, 9,
// CHECK-NEXT: qlora_whole_row(uint32_t(row), line_tokens, line_parts, line_part), c);
// CHECK: qlora_sigmoid(x0s[lane])
// CHECK: qlora_unit(random0s.word[lane])
program.kernel @drawn attributes {columns = 2048 : i64, aligned = 8,
    maps = [#model.map<full>], dtypes = array<i64: 1, 1>,
    strides = array<i64: 2048, 2048>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<2048xf32>):
  %random = model.row_random {id = 9 : i64} : tensor<2048xf32>
  %p = arith.constant 0.25 : f32
  %ps = model.row_splat %p : tensor<2048xf32>
  %keep = arith.cmpf oge, %random, %ps : tensor<2048xf32>
  %zero = arith.constant 0.0 : f32
  %zeros = model.row_splat %zero : tensor<2048xf32>
  %sigmoid = model.row_sigmoid %x : tensor<2048xf32>
  %kept = arith.select %keep, %sigmoid, %zeros : tensor<2048xi1>, tensor<2048xf32>
  %sum = model.row_sum %kept : tensor<2048xf32>
  %sums = model.row_splat %sum : tensor<2048xf32>
  %y = arith.mulf %sigmoid, %sums : tensor<2048xf32>
  %z = arith.addf %y, %random : tensor<2048xf32>
  model.row_yield %z : tensor<2048xf32>
}

// Without vectors, each random number is drawn where it is used.

// CHECK-LABEL: // drawn_singly: rows of 3 columns
// CHECK: const float random0 = qlora_uniform(seed, micro_batch, 9,
// CHECK-NEXT: qlora_whole_row(uint32_t(row), line_tokens, line_parts, line_part), c);
// CHECK: (random0 >= 0.25f)
program.kernel @drawn_singly attributes {columns = 3 : i64,
    maps = [#model.map<full>], dtypes = array<i64: 1, 1>,
    strides = array<i64: 3, 3>, groups = array<i64: 1, 1>} {
^bb0(%x: tensor<3xf32>):
  %random = model.row_random {id = 9 : i64} : tensor<3xf32>
  %p = arith.constant 0.25 : f32
  %ps = model.row_splat %p : tensor<3xf32>
  %keep = arith.cmpf oge, %random, %ps : tensor<3xf32>
  %zero = arith.constant 0.0 : f32
  %zeros = model.row_splat %zero : tensor<3xf32>
  %y = arith.select %keep, %x, %zeros : tensor<3xi1>, tensor<3xf32>
  model.row_yield %y : tensor<3xf32>
}
