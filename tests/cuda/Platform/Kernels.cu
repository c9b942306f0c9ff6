// SPDX-License-Identifier: MIT

// Kernels for the tests of the software platform: some are correct, some have
// one mistake each.

#include "runtime/Kernels/Cuda/Device/Lanes.cuh"
#include "runtime/Kernels/Cuda/Device/TensorCore.cuh"

#define KERNEL extern "C" __global__ void __launch_bounds__(256)

static __device__ float *floats(const qlora_cuda_args &args, int operand) {
  return static_cast<float *>(args.buffers[operand]);
}
static __device__ int64_t place() {
  return int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// Sets out[i] = constant 0.
KERNEL fill(const __grid_constant__ qlora_cuda_args args) {
  if (place() < args.rows)
    floats(args, 0)[place()] = float(args.constants[0]);
}

/// Sets out[i] = in[i] + 1.
KERNEL add_one(const __grid_constant__ qlora_cuda_args args) {
  if (place() < args.rows)
    floats(args, 0)[place()] = floats(args, 1)[place()] + 1.0f;
}

/// Sets out[block] to the sum of the block's inputs, with shuffles, then shared
/// memory.
KERNEL block_sum(const __grid_constant__ qlora_cuda_args args) {
  __shared__ float partials[32];
  float sum = floats(args, 1)[place()];
  for (int offset = 16; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0)
    partials[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp)
    sum += partials[warp];
  if (threadIdx.x == 0)
    floats(args, 0)[blockIdx.x] = sum;
}

/// Reverses each block's inputs in dynamic shared memory.
KERNEL reverse(const __grid_constant__ qlora_cuda_args args) {
  extern __shared__ float values[];
  values[threadIdx.x] = floats(args, 1)[place()];
  __syncthreads();
  floats(args, 0)[place()] = values[blockDim.x - 1 - threadIdx.x];
}

/// Does the same as `reverse`, but without the barrier.
KERNEL reverse_without_barrier(const __grid_constant__ qlora_cuda_args args) {
  extern __shared__ float values[];
  values[threadIdx.x] = floats(args, 1)[place()];
  floats(args, 0)[place()] = values[blockDim.x - 1 - threadIdx.x];
}

/// Half of the threads end before the barrier.
KERNEL divergent_barrier(const __grid_constant__ qlora_cuda_args args) {
  if (threadIdx.x >= blockDim.x / 2)
    return;
  __syncthreads();
  floats(args, 0)[place()] = 1.0f;
}

/// Threads reach two different barriers.
KERNEL two_barriers(const __grid_constant__ qlora_cuda_args args) {
  if (threadIdx.x % 2)
    __syncthreads();
  else
    __syncthreads();
  floats(args, 0)[place()] = 1.0f;
}

/// Lane 3 does not reach the shuffle.
KERNEL missing_lane(const __grid_constant__ qlora_cuda_args args) {
  float value = 1.0f;
  if (threadIdx.x != 3)
    value = __shfl_xor_sync(0xffffffffu, value, 1);
  floats(args, 0)[place()] = value;
}

/// Does every kind of warp operation; out[i] is 1 if all match CUDA's rules.
KERNEL warp_operations(const __grid_constant__ qlora_cuda_args args) {
  const int lane = int(threadIdx.x % 32);
  const unsigned all = 0xffffffffu;
  bool isRight = __shfl_sync(all, lane, 5) == 5;
  isRight &= __shfl_sync(all, lane, 5, 8) == (lane & ~7) + 5;
  isRight &= __shfl_down_sync(all, lane, 4) == (lane < 28 ? lane + 4 : lane);
  isRight &= __shfl_up_sync(all, lane, 4) == (lane < 4 ? lane : lane - 4);
  isRight &= __shfl_xor_sync(all, double(lane), 3) == double(lane ^ 3);
  isRight &= __ballot_sync(all, lane % 2) == 0xaaaaaaaau;
  isRight &= __any_sync(all, lane == 7) && !__all_sync(all, lane == 7);
  __syncwarp();
  isRight &= __syncthreads_count(lane == 0) == int(blockDim.x / 32);
  isRight &= __syncthreads_or(place() == 0) == (blockIdx.x == 0);
  floats(args, 0)[place()] = isRight ? 1.0f : 0.0f;
}

/// Writes a single float, `constants[0]` elements after the operand's end.
KERNEL write_past_end(const __grid_constant__ qlora_cuda_args args) {
  if (place() == 0)
    floats(args, 0)[args.rows + args.constants[0]] = 1.0f;
}

/// Loads 16 bytes at an address that is only a multiple of 4.
KERNEL misaligned(const __grid_constant__ qlora_cuda_args args) {
  struct alignas(16) Four {
    float value[4];
  };
  const auto *four = reinterpret_cast<const Four *>(floats(args, 1) + 1);
  floats(args, 0)[place()] = four->value[0];
}

/// Uses an index past the end of an array in shared memory.
KERNEL past_shared(const __grid_constant__ qlora_cuda_args args) {
  __shared__ float values[32];
  values[threadIdx.x + args.constants[0]] = 1.0f;
  __syncthreads();
  floats(args, 0)[place()] = values[threadIdx.x];
}

/// Calls itself recursively until its stack overflows.
static __device__ float deep(float value, int64_t depth) {
  volatile float kept[16];
  kept[depth % 16] = value;
  return depth ? deep(value + 1, depth - 1) + kept[depth % 16] : value;
}
KERNEL overflow_stack(const __grid_constant__ qlora_cuda_args args) {
  floats(args, 0)[place()] = deep(1.0f, args.constants[0]);
}

/// Reads the learning rate of the step block.
KERNEL read_step(const __grid_constant__ qlora_cuda_args args) {
  if (place() == 0)
    floats(args, 0)[0] = args.step->learning_rate;
}

/// Copies 16 rows of 16 bf16, from row 16 * `matrix` of buffer 1. Fills rows
/// that do not exist with zeros.
static __device__ void copyMatrix(qlora_words (&to)[16][2],
                                  const qlora_cuda_args &args, int64_t matrix) {
  const auto *from = static_cast<const uint16_t *>(args.buffers[1]);
  const int row = int(threadIdx.x % 32) / 2, word = int(threadIdx.x % 2);
  const int64_t at = matrix * 16 + row;
  const bool exists = at < args.constants[0];
  qlora_copy_async(qlora_shared_address(&to[row][word]),
                   exists ? from + at * 16 + word * 8 : from, exists);
  qlora_commit_copies();
}

/// Each warp computes A B^T and A B, for 16 by 16 matrices in bf16. A and B are
/// copied asynchronously, as one group each. Constant 0 is the number of rows
/// that exist. Output: out[warp][tile][lane][i] = c.value[i], with two tiles of
/// A B^T, then two tiles of A B.
KERNEL tensor_products(const __grid_constant__ qlora_cuda_args args) {
  __shared__ qlora_words matrices[2][2][16][2];
  auto &own = matrices[threadIdx.x / 32];
  const int64_t warp = int64_t(threadIdx.x / 32);
  copyMatrix(own[0], args, 2 * warp);
  copyMatrix(own[1], args, 2 * warp + 1);
  const int lane = int(threadIdx.x % 32);
  qlora_wait_copies<1>();
  __syncthreads();
  const qlora_words a = qlora_load_matrices(
      qlora_shared_address(&own[0][lane % 16][lane / 16]));
  qlora_wait_copies<0>();
  __syncthreads();
  const qlora_shared row =
      qlora_shared_address(&own[1][lane % 16][lane / 16]);
  const qlora_words b = qlora_load_matrices(row);
  const qlora_words transposed = qlora_load_transposed(row);
  qlora_sums products[4] = {};
  qlora_multiply(products[0], a, b.word[0], b.word[2]);
  qlora_multiply(products[1], a, b.word[1], b.word[3]);
  qlora_multiply(products[2], a, transposed.word[0], transposed.word[1]);
  qlora_multiply(products[3], a, transposed.word[2], transposed.word[3]);
  for (int product = 0; product < 4; ++product)
    for (int i = 0; i < 4; ++i)
      floats(args, 0)[((warp * 4 + product) * 32 + lane) * 4 + i] =
          products[product].value[i];
}

/// Reads an asynchronous copy without waiting for it.
KERNEL copy_without_wait(const __grid_constant__ qlora_cuda_args args) {
  __shared__ qlora_words words[64];
  qlora_copy_async(qlora_shared_address(&words[threadIdx.x]),
                   floats(args, 1) + threadIdx.x / 4 * 4, true);
  qlora_commit_copies();
  qlora_wait_copies<1>();
  floats(args, 0)[threadIdx.x] =
      __builtin_bit_cast(float, words[threadIdx.x].word[0]);
  qlora_wait_copies<0>();
}

/// Rounds pairs to bf16 and converts them back to f32: the low half is out[2
/// i], the high half out[2 i + 1]. Sets out[128 + i] = 2^in[i].
KERNEL tensor_conversions(const __grid_constant__ qlora_cuda_args args) {
  const float x = floats(args, 1)[threadIdx.x];
  const uint32_t pair = qlora_round_pair(x, -x);
  floats(args, 0)[2 * threadIdx.x] = qlora_bf16_to_f32(uint16_t(pair));
  floats(args, 0)[2 * threadIdx.x + 1] =
      qlora_bf16_to_f32(uint16_t(pair >> 16));
  floats(args, 0)[128 + threadIdx.x] = qlora_exp2(x);
}

/// Sets out[256 k + i] to function k of in[i].
KERNEL row_functions(const __grid_constant__ qlora_cuda_args args) {
  const float x = floats(args, 1)[threadIdx.x];
  floats(args, 0)[threadIdx.x] = qlora_sigmoid(x);
  floats(args, 0)[256 + threadIdx.x] = qlora_rsqrt(x * x);
}

/// Draws the random numbers of columns 16 i to 16 i + 15 of row 7, one by one,
/// then in lanes of 2, 4, 8 and 16. Writes 256 values for each.
template <int N>
static __device__ void drawLanes(const qlora_cuda_args &args, float *out) {
  for (int i = 0; i < 16; i += N) {
    const int column = 16 * int(threadIdx.x) + i;
    const qlora_draws<N> draws = qlora_draw<N>(42, 3, 9, 7, column);
    for (int lane = 0; lane < N; ++lane)
      out[column + lane] = qlora_unit(draws.word[lane]);
  }
}
KERNEL draws(const __grid_constant__ qlora_cuda_args args) {
  float *const out = floats(args, 0);
  for (int i = 0; i < 16; ++i) {
    const int column = 16 * int(threadIdx.x) + i;
    out[column] = qlora_uniform(42, 3, 9, 7, column);
  }
  drawLanes<2>(args, out + 256);
  drawLanes<4>(args, out + 512);
  drawLanes<8>(args, out + 768);
  drawLanes<16>(args, out + 1024);
}
