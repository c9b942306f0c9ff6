// SPDX-License-Identifier: MIT

// The softmax part of head_loss and head_loss_grad, over a chunk of rows of
// logits; the products around it are the host's (HeadLoss.cpp). Targets were
// checked when the data was read; one outside of the vocabulary makes the
// loss NaN.

#include "runtime/Kernels/Cuda/Device/Common.cuh"

constexpr int kHeadThreads = 512;
constexpr int32_t kNoTarget = -100;

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
/// targets, row losses f64, correct, the last three of all rows. Constants:
/// the chunk's first row, vocab.
template <typename Gradient>
QLORA_DEVICE void headRow(const qlora_cuda_args &args) {
  const int64_t vocab = args.constants[1];
  const int64_t row = args.constants[0] + blockIdx.x;
  float *logits = qlora_at<float>(args.buffers[0], blockIdx.x * vocab);
  const int32_t target = qlora_load_i32(args.buffers[1], row);
  const bool isLabelled = target >= 0 && target < vocab;
  double loss = target == kNoTarget ? 0 : double(qlora_from_bits(0x7fc00000u));
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
    *qlora_at<double>(args.buffers[2], row) = loss;
    qlora_store_i32(args.buffers[3], row, isCorrect);
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

/// One block: loss and count of all rows. Buffers: row losses, targets, loss,
/// count. Constant: rows.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_loss_sum(const __grid_constant__ qlora_cuda_args args) {
  const int64_t rows = args.constants[0];
  double loss = 0, count = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kHeadThreads) {
    loss += *qlora_at<double>(args.buffers[0], row);
    count += qlora_load_i32(args.buffers[1], row) != kNoTarget;
  }
  loss = qlora_block_sum(loss);
  count = qlora_block_sum(count);
  if (threadIdx.x != 0)
    return;
  qlora_store_f32(args.buffers[2], 0, float(loss));
  qlora_store_f32(args.buffers[3], 0, float(count));
}
