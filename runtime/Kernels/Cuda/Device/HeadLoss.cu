// SPDX-License-Identifier: MIT

// The kernels of head_loss and head_loss_grad, except the GEMMs, which the host
// enqueues (HeadChunks.cpp). The kernels list the labelled rows, gather chunks
// of them, compute the softmax of their logits, and scatter gradients. Targets
// were checked when the data was read; an invalid target makes the loss NaN.

#include "runtime/Kernels/Cuda/Device/HeadRows.cuh"

// Labelled rows --------------------------------------------------------------

/// Writes the labelled rows in order, then -1, to `labelled`; sets `correct` to
/// 0. One block. Buffers: targets, labelled, correct or null. Constant: rows.
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
    if (args.buffers[2])
      qlora_store_i32(args.buffers[2], row, 0);
    if (qlora_load_i32(args.buffers[0], row) != kNoTarget)
      qlora_store_i32(args.buffers[1], place++, int32_t(row));
  }
  for (int64_t rest = all + threadIdx.x; rest < rows; rest += kHeadThreads)
    qlora_store_i32(args.buffers[1], rest, -1);
}

/// Gathers a chunk; one block per row. Buffers: hidden, labelled, gathered.
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
  if (row < 0)
    qlora_fill_row<To>(to, columns, 0.0f);
  else
    qlora_copy_row<From, To>(from, to, columns);
}

/// Copies a row of the chunk to its row of dhidden. Buffers: gradient,
/// labelled, dhidden. Constants: the chunk's first row, columns, the stride of
/// dhidden.
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
  qlora_copy_row<From, To>(from, to, columns);
}

/// Zeros the rows without a label; one block per row. Buffers: targets,
/// dhidden. Constants: columns, the stride of dhidden.
template <typename T> QLORA_DEVICE void clearRow(const qlora_cuda_args &args) {
  const int64_t row = blockIdx.x;
  if (qlora_load_i32(args.buffers[0], row) != kNoTarget)
    return;
  auto *to =
      qlora_at<typename T::storage>(args.buffers[1], row * args.constants[1]);
  qlora_fill_row<T>(to, args.constants[0], 0.0f);
}

QLORA_HEAD_ROWS(qlora_head_gather_f32_f32, gatherRow<qlora_f32, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_gather_bf16_f32, gatherRow<qlora_bf16, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_gather_bf16_bf16, gatherRow<qlora_bf16, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_scatter_f32_f32, scatterRow<qlora_f32, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_scatter_f32_bf16, scatterRow<qlora_f32, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_scatter_bf16_bf16,
                scatterRow<qlora_bf16, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_clear_f32, clearRow<qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_clear_bf16, clearRow<qlora_bf16>)

// Logits ----------------------------------------------------------------------

/// Replaces logits z by cap * tanh(z / cap); one block per row. Buffer: logits
/// f32. Constants: vocab, the bits of cap.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_cap(const __grid_constant__ qlora_cuda_args args) {
  const int64_t vocab = args.constants[0];
  const float cap = float(__builtin_bit_cast(double, args.constants[1]));
  float *row = qlora_at<float>(args.buffers[0], blockIdx.x * vocab);
  for (int64_t word = threadIdx.x; word < vocab; word += kHeadThreads)
    row[word] = cap * tanhf(row[word] / cap);
}

// Replaced logits ------------------------------------------------------------
//
// The logits of the tokens in `words` are not computed, but read from the
// operand `columns` (Kernels.def).
/// Calls each(index in columns, token id) for the replaced logits of this
/// block's row. Constants: chunk's first row, vocab, replaced logits per row.
template <typename Each>
QLORA_DEVICE void forReplaced(const qlora_cuda_args &args, Each each) {
  const int64_t row =
      qlora_load_i32(args.buffers[1], args.constants[0] + blockIdx.x);
  const int64_t vocab = args.constants[1], count = args.constants[2];
  const float *words = qlora_at<float>(args.buffers[3], 0);
  for (int64_t i = threadIdx.x; row >= 0 && i < count; i += kHeadThreads)
    if (words[i] >= 0 && words[i] < float(vocab))
      each(row * count + i, int64_t(words[i]));
}

/// Overwrites the replaced logits of a row with `columns`. Buffers: logits f32
/// [chunk, vocab], labelled, columns, words.
template <typename Columns>
QLORA_DEVICE void replaceLogits(const qlora_cuda_args &args) {
  float *logits =
      qlora_at<float>(args.buffers[0], blockIdx.x * args.constants[1]);
  forReplaced(args, [&](int64_t element, int64_t word) {
    logits[word] = Columns::load(args.buffers[2], element);
  });
}

/// Moves the gradient of replaced logits from the logits to dcolumns. Buffers:
/// logits, overwritten by their gradient, labelled, dcolumns, words.
template <typename Gradient, typename Columns>
QLORA_DEVICE void takeGradient(const qlora_cuda_args &args) {
  float *row = qlora_at<float>(args.buffers[0], blockIdx.x * args.constants[1]);
  forReplaced(args, [&](int64_t element, int64_t word) {
    Columns::store(args.buffers[2], element, Gradient::load(row, word));
    Gradient::store(row, word, 0.0f);
  });
}

QLORA_HEAD_ROWS(qlora_head_replace_f32, replaceLogits<qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_replace_bf16, replaceLogits<qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_take_f32_f32, takeGradient<qlora_f32, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_take_f32_bf16, takeGradient<qlora_f32, qlora_bf16>)
QLORA_HEAD_ROWS(qlora_head_take_bf16_f32, takeGradient<qlora_bf16, qlora_f32>)
QLORA_HEAD_ROWS(qlora_head_take_bf16_bf16, takeGradient<qlora_bf16, qlora_bf16>)

// Loss and gradient -----------------------------------------------------------

/// Overwrites a row's logits with their gradient (Kernels.def). Writes zeros
/// without a target.
template <typename Gradient>
QLORA_DEVICE void writeGradient(float *logits, int64_t vocab, bool isWide,
                                int32_t target, float logit, float lse,
                                float smoothing, const HeadTerms &terms) {
  if (target < 0)
    return qlora_fill_row<Gradient>(
        reinterpret_cast<typename Gradient::storage *>(logits), vocab, 0.0f);
  if (isWide)
    writeSoftmax<Gradient, true>(logits, vocab, lse, terms);
  else
    writeSoftmax<Gradient, false>(logits, vocab, lse, terms);
  __syncthreads();
  if (threadIdx.x == 0)
    Gradient::store(logits, target,
                    (headExp(logit - lse) - 1.0f + (smoothing - terms.share)) *
                        terms.scale * headSlope(logit, terms.inverse));
}

/// Computes a row's loss; one block per row. Buffers: logits f32 [chunk,
/// vocab], targets, labelled, losses f64 in the order of `labelled`, correct.
/// Constants: the chunk's first row, vocab, the bits of cap and of smoothing,
/// own_probability.
template <typename Gradient>
QLORA_DEVICE void headRow(const qlora_cuda_args &args) {
  const int64_t vocab = args.constants[1];
  const int64_t place = args.constants[0] + blockIdx.x;
  const int64_t row = qlora_load_i32(args.buffers[2], place);
  float *logits = qlora_at<float>(args.buffers[0], blockIdx.x * vocab);
  const bool isWide = vocab % 4 == 0 && qlora_is_vector(args.buffers[0]);
  int32_t target = row < 0 ? kNoTarget : qlora_load_i32(args.buffers[1], row);
  if (target >= vocab)
    target = kNoTarget;
  const double smoothing = __builtin_bit_cast(double, args.constants[3]);
  double loss = row < 0 ? 0 : double(qlora_from_bits(0x7fc00000u));
  double scale = 1;
  int32_t isCorrect = 0;
  float logit = 0, lse = 0;
  if (target >= 0) {
    logit = logits[target];
    const HeadRow read = isWide ? readRow<true>(logits, vocab)
                                : readRow<false>(logits, vocab);
    const double exact = read.base + log(read.sum);
    if (args.constants[4])
      scale = exp(double(logit) - exact);
    const double mean =
        smoothing == 0 ? 0 : rowTotal(logits, vocab) / double(vocab);
    loss = scale * (exact - (1 - smoothing) * logit - smoothing * mean);
    lse = float(exact);
    isCorrect = read.word == target;
  }
  if (threadIdx.x == 0) {
    *qlora_at<double>(args.buffers[3], place) = loss;
    if (isCorrect)
      qlora_store_i32(args.buffers[4], row, isCorrect);
  }
  if constexpr (Gradient::kExists) {
    const float cap = float(__builtin_bit_cast(double, args.constants[2]));
    writeGradient<Gradient>(logits, vocab, isWide, target, logit, lse,
                            float(smoothing),
                            {cap == 0 ? 0.0f : 1.0f / cap,
                             float(smoothing / double(vocab)), float(scale)});
  }
}

QLORA_HEAD_ROWS(qlora_head_loss_rows, headRow<HeadNoGradient>)
QLORA_HEAD_ROWS(qlora_head_loss_rows_f32, headRow<HeadGradientF32>)
QLORA_HEAD_ROWS(qlora_head_loss_rows_bf16, headRow<HeadGradientBF16>)

/// Sums a sequence's losses; one block per sequence. Buffers: row losses,
/// labelled, loss, count. Constants: rows, computed entries of `labelled`, rows
/// per sequence. A labelled row that was not computed makes the loss NaN.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_loss_sum(const __grid_constant__ qlora_cuda_args args) {
  double loss = 0, count = 0;
  for (int64_t place = threadIdx.x; place < args.constants[0];
       place += kHeadThreads) {
    const int32_t row = qlora_load_i32(args.buffers[1], place);
    if (row < 0 || row / args.constants[2] != blockIdx.x)
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
  qlora_store_f32(args.buffers[2], blockIdx.x, float(loss));
  qlora_store_f32(args.buffers[3], blockIdx.x, float(count));
}
