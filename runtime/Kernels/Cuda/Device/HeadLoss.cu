// SPDX-License-Identifier: MIT

// head_loss and head_loss_grad around their products, which are the host's
// (HeadLoss.cpp): the list of rows that have a label, chunks of these rows
// gathered, the softmax of their logits, gradients scattered. Targets were
// checked when the data was read; one outside of the vocabulary makes the
// loss NaN.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kHeadThreads = 512;
constexpr int32_t kNoTarget = -100;

// Rows with a label ---------------------------------------------------------

/// One block. Buffers: targets, labelled, correct. Constant: rows. labelled :=
/// the rows with a label in their order, then -1; correct := 0.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_labelled(const __grid_constant__ qlora_cuda_args args) {
  __shared__ int32_t counts[kHeadThreads];
  const int64_t rows = args.constants[0];
  const int64_t each = (rows + kHeadThreads - 1) / kHeadThreads;
  const int64_t first = threadIdx.x * each;
  const int64_t end = first + each < rows ? first + each : rows;
  int32_t count = 0;
  for (int64_t row = first; row < end; ++row)
    count += qlora_load_i32(args.buffers[0], row) != kNoTarget;
  counts[threadIdx.x] = count;
  __syncthreads();
  int64_t place = 0, all = 0;
  for (int thread = 0; thread < kHeadThreads; ++thread) {
    place += thread < int(threadIdx.x) ? counts[thread] : 0;
    all += counts[thread];
  }
  for (int64_t row = first; row < end; ++row) {
    qlora_store_i32(args.buffers[2], row, 0);
    if (qlora_load_i32(args.buffers[0], row) != kNoTarget)
      qlora_store_i32(args.buffers[1], place++, int32_t(row));
  }
  for (int64_t rest = all + threadIdx.x; rest < rows; rest += kHeadThreads)
    qlora_store_i32(args.buffers[1], rest, -1);
}

/// One block is one row of the chunk. Buffers: hidden, labelled, gathered.
/// Constants: the chunk's first row, columns, the stride of hidden.
template <typename From, typename To>
QLORA_DEVICE void gatherRow(const qlora_cuda_args &args) {
  const int64_t columns = args.constants[1];
  const int64_t row =
      qlora_load_i32(args.buffers[1], args.constants[0] + blockIdx.x);
  const auto *from = qlora_at<typename From::storage>(
      args.buffers[0], row < 0 ? 0 : row * args.constants[2]);
  auto *to =
      qlora_at<typename To::storage>(args.buffers[2], blockIdx.x * columns);
  for (int64_t column = threadIdx.x; column < columns; column += blockDim.x)
    To::store(to, column, row < 0 ? 0.0f : From::load(from, column));
}

/// The way back, for rows that are there. Buffers: gradient, labelled,
/// dhidden. Constants: the chunk's first row, columns, the stride of dhidden.
template <typename From, typename To>
QLORA_DEVICE void scatterRow(const qlora_cuda_args &args) {
  const int64_t columns = args.constants[1];
  const int64_t row =
      qlora_load_i32(args.buffers[1], args.constants[0] + blockIdx.x);
  if (row < 0)
    return;
  const auto *from =
      qlora_at<typename From::storage>(args.buffers[0], blockIdx.x * columns);
  auto *to = qlora_at<typename To::storage>(args.buffers[2],
                                            row * args.constants[2]);
  for (int64_t column = threadIdx.x; column < columns; column += blockDim.x)
    To::store(to, column, From::load(from, column));
}

/// One block is one row: zeros where it has no label. Buffers: targets,
/// dhidden. Constants: columns, the stride of dhidden.
template <typename T>
QLORA_DEVICE void clearRow(const qlora_cuda_args &args) {
  const int64_t row = blockIdx.x;
  if (qlora_load_i32(args.buffers[0], row) != kNoTarget)
    return;
  auto *to =
      qlora_at<typename T::storage>(args.buffers[1], row * args.constants[1]);
  for (int64_t column = threadIdx.x; column < args.constants[0];
       column += blockDim.x)
    T::store(to, column, 0.0f);
}

#define QLORA_HEAD_ROWS(Symbol, ...)                                           \
  QLORA_CUDA_KERNEL(kHeadThreads)                                              \
  Symbol(const __grid_constant__ qlora_cuda_args args) { __VA_ARGS__(args); }
QLORA_HEAD_ROWS(qlora_head_gather_f32_f32, gatherRow<qlora_f32, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_gather_bf16_f32, gatherRow<qlora_bf16, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_gather_bf16_bf16, gatherRow<qlora_bf16, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_scatter_f32_f32, scatterRow<qlora_f32, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_scatter_f32_bf16, scatterRow<qlora_f32, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_scatter_bf16_bf16,
                scatterRow<qlora_bf16, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_clear_f32, clearRow<qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_clear_bf16, clearRow<qlora_bf16>)

// Softmax -------------------------------------------------------------------

/// The largest logit, and the first word that has it, as torch.argmax.
struct HeadMaximum {
  float value;
  int32_t word;
};

QLORA_DEVICE HeadMaximum firstMaximum(HeadMaximum a, HeadMaximum b) {
  const bool isSecond =
      b.value > a.value || (b.value == a.value && b.word < a.word);
  return isSecond ? b : a;
}

QLORA_DEVICE HeadMaximum rowMaximum(const float *logits, int64_t vocab) {
  __shared__ HeadMaximum partials[kHeadThreads / kQloraWarp];
  HeadMaximum most = {qlora_from_bits(0xff800000u), 0x7fffffff};
  for (int64_t word = threadIdx.x; word < vocab; word += kHeadThreads)
    most = firstMaximum(most, {logits[word], int32_t(word)});
  for (int offset = kQloraWarp / 2; offset > 0; offset /= 2)
    most = firstMaximum(most, {__shfl_xor_sync(0xffffffffu, most.value, offset),
                               __shfl_xor_sync(0xffffffffu, most.word, offset)});
  if (threadIdx.x % kQloraWarp == 0)
    partials[threadIdx.x / kQloraWarp] = most;
  __syncthreads();
  for (int warp = 0; warp < kHeadThreads / kQloraWarp; ++warp)
    most = firstMaximum(most, partials[warp]);
  __syncthreads();
  return most;
}

/// Sum of e^(logit - maximum): f32 in a thread, f64 over the block.
QLORA_DEVICE double sumExponentials(const float *logits, int64_t vocab,
                                    float maximum) {
  float sum = 0;
  for (int64_t word = threadIdx.x; word < vocab; word += kHeadThreads)
    sum += qlora_exp(logits[word] - maximum);
  return qlora_block_sum(double(sum));
}

/// No gradient is asked for.
struct HeadNoGradient {
  static constexpr bool kExists = false;
};
struct HeadGradientF32 : qlora_f32 {
  static constexpr bool kExists = true;
};
struct HeadGradientBF16 : qlora_bf16 {
  static constexpr bool kExists = true;
};

/// logits := softmax - 1 at the target, or zero, narrowed in place. What a
/// step writes lies in the part of the row that was read before.
template <typename Gradient>
QLORA_DEVICE void writeGradient(float *logits, int64_t vocab, int32_t target,
                                float lse, bool isLabelled) {
  for (int64_t begin = 0; begin < vocab; begin += kHeadThreads) {
    const int64_t word = begin + threadIdx.x;
    float value = 0;
    if (isLabelled && word < vocab)
      value = qlora_exp(logits[word] - lse) - (word == target ? 1.0f : 0.0f);
    __syncthreads();
    if (word < vocab)
      Gradient::store(logits, word, value);
    __syncthreads();
  }
}

/// One block is one row of the chunk. Buffers: logits f32 [chunk, vocab],
/// targets, labelled, row losses f64 in the order of labelled, correct.
/// Constants: the chunk's first row, vocab.
template <typename Gradient>
QLORA_DEVICE void headRow(const qlora_cuda_args &args) {
  const int64_t vocab = args.constants[1];
  const int64_t place = args.constants[0] + blockIdx.x;
  const int64_t row = qlora_load_i32(args.buffers[2], place);
  float *logits = qlora_at<float>(args.buffers[0], blockIdx.x * vocab);
  const int32_t target =
      row < 0 ? kNoTarget : qlora_load_i32(args.buffers[1], row);
  const bool isLabelled = target >= 0 && target < vocab;
  double loss = row < 0 ? 0 : double(qlora_from_bits(0x7fc00000u));
  int32_t isCorrect = 0;
  float lse = 0;
  if (isLabelled) {
    const HeadMaximum most = rowMaximum(logits, vocab);
    const double exact =
        most.value + log(sumExponentials(logits, vocab, most.value));
    loss = exact - logits[target];
    lse = float(exact);
    isCorrect = most.word == target;
  }
  if (threadIdx.x == 0) {
    *qlora_at<double>(args.buffers[3], place) = loss;
    if (isCorrect)
      qlora_store_i32(args.buffers[4], row, isCorrect);
  }
  if constexpr (Gradient::kExists) {
    __syncthreads();
    writeGradient<Gradient>(logits, vocab, target, lse, isLabelled);
  }
}

QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_loss_rows(const __grid_constant__ qlora_cuda_args args) {
  headRow<HeadNoGradient>(args);
}
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_loss_rows_f32(const __grid_constant__ qlora_cuda_args args) {
  headRow<HeadGradientF32>(args);
}
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_loss_rows_bf16(const __grid_constant__ qlora_cuda_args args) {
  headRow<HeadGradientBF16>(args);
}

/// One block: loss and count. Buffers: row losses, labelled, loss, count.
/// Constants: rows, and how many of labelled were computed; a labelled row
/// that was not makes the loss NaN.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_loss_sum(const __grid_constant__ qlora_cuda_args args) {
  double loss = 0, count = 0;
  for (int64_t place = threadIdx.x; place < args.constants[0];
       place += kHeadThreads) {
    if (qlora_load_i32(args.buffers[1], place) < 0)
      continue;
    count += 1;
    loss += place < args.constants[1]
                ? *qlora_at<double>(args.buffers[0], place)
                : double(qlora_from_bits(0x7fc00000u));
  }
  loss = qlora_block_sum(loss);
  count = qlora_block_sum(count);
  if (threadIdx.x != 0)
    return;
  qlora_store_f32(args.buffers[2], 0, float(loss));
  qlora_store_f32(args.buffers[3], 0, float(count));
}
