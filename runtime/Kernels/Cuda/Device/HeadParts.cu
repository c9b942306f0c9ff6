// SPDX-License-Identifier: MIT

// The kernels of head_merge and head_part, except the GEMMs, which the host
// enqueues (HeadChunks.cpp). If a row has an invalid target, or has a label but
// was not computed, the row's softmax state and the loss are NaN.

#include "runtime/Kernels/Cuda/Device/HeadRows.cuh"

constexpr uint32_t kNotANumber = 0x7fc00000u, kMinusInfinity = 0xff800000u;

/// The softmax state of a row's logits in one vocabulary shard.
struct HeadState {
  float most;
  float sum;
  float target;
  float word;
  float total; ///< sum of the logits, with smoothing; else 0
};

/// `smoothing`: its bits.
QLORA_DEVICE int stateNumbers(int64_t smoothing) { return smoothing ? 5 : 4; }

QLORA_DEVICE HeadState loadState(const void *states, int64_t i,
                                 int64_t smoothing) {
  const float *from = qlora_at<float>(states, i * stateNumbers(smoothing));
  return {from[0], from[1], from[2], from[3], smoothing ? from[4] : 0.0f};
}

QLORA_DEVICE void storeState(const HeadState &state, void *states, int64_t i,
                             int64_t smoothing) {
  float *to = qlora_at<float>(states, i * stateNumbers(smoothing));
  to[0] = state.most;
  to[1] = state.sum;
  to[2] = state.target;
  to[3] = state.word;
  if (smoothing)
    to[4] = state.total;
}

/// Initializes states, one thread per row: 0 for rows without a label, NaN for
/// rows that are not computed yet. Buffers: targets, states. Constants: rows,
/// the bits of smoothing.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_part_begin(const __grid_constant__ qlora_cuda_args args) {
  const int64_t row = int64_t(blockIdx.x) * kHeadThreads + threadIdx.x;
  if (row >= args.constants[0])
    return;
  const bool isLabelled = qlora_load_i32(args.buffers[0], row) != kNoTarget;
  const float number = isLabelled ? qlora_from_bits(kNotANumber) : 0.0f;
  storeState({number, number, number, number, number}, args.buffers[1], row,
             args.constants[1]);
}

/// Overwrites the logits with e^(logit - most) times the derivative of the cap;
/// 0 for the target and after the last token. `target`: -1 if not in the shard.
template <typename Gradient>
QLORA_DEVICE void writeFactors(float *logits, int64_t words, int64_t piece,
                               bool isWide, int64_t target, float most,
                               float inverse) {
  auto *factors = reinterpret_cast<typename Gradient::storage *>(logits);
  if (isWide)
    writeSoftmax<Gradient, true>(logits, words, most, {inverse});
  else
    writeSoftmax<Gradient, false>(logits, words, most, {inverse});
  __syncthreads();
  qlora_fill_row<Gradient>(factors + words, piece - words, 0.0f);
  if (threadIdx.x == 0 && target >= 0)
    Gradient::store(factors, target, 0.0f);
}

/// Returns the state of a row. `first` is the shard's first token id. `target`
/// is -1 if another shard has it.
QLORA_DEVICE HeadState findState(const float *logits, int64_t first,
                                 int64_t words, bool isWide, int64_t target,
                                 int64_t smoothing) {
  HeadState state = {qlora_from_bits(kMinusInfinity), 0, 0, -1, 0};
  if (target >= 0)
    state.target = logits[target];
  if (words == 0)
    return state;
  const HeadRow read =
      isWide ? readRow<true>(logits, words) : readRow<false>(logits, words);
  state.most = read.base;
  state.sum = float(read.sum);
  state.word = float(first + read.word);
  if (smoothing)
    state.total = float(rowTotal(logits, words));
  return state;
}

/// Computes a row's state; one block per row of the chunk. Buffers: logits f32
/// [chunk, piece], targets, labelled, states. Constants: the chunk's first row,
/// piece, vocab, the bits of cap and of smoothing.
template <typename Gradient>
QLORA_DEVICE void partRow(const qlora_cuda_args &args) {
  const int64_t piece = args.constants[1], vocab = args.constants[2];
  const int64_t row =
      qlora_load_i32(args.buffers[2], args.constants[0] + blockIdx.x);
  float *logits = qlora_at<float>(args.buffers[0], blockIdx.x * piece);
  const int32_t word =
      row < 0 ? kNoTarget : qlora_load_i32(args.buffers[1], row);
  if (word < 0 || word >= vocab) {
    if constexpr (Gradient::kExists)
      qlora_fill_row<Gradient>(
          reinterpret_cast<typename Gradient::storage *>(logits), piece, 0.0f);
    return;
  }
  const int64_t first = args.step->shard * piece;
  const int64_t left = first < vocab ? vocab - first : 0;
  const int64_t words = left < piece ? left : piece;
  const int64_t target = word < first + words ? word - first : -1;
  const bool isWide =
      piece % 4 == 0 && words % 4 == 0 && qlora_is_vector(args.buffers[0]);
  const HeadState state = findState(logits, first, words, isWide, target,
                                    args.constants[4]);
  if (threadIdx.x == 0)
    storeState(state, args.buffers[3], row, args.constants[4]);
  if constexpr (Gradient::kExists) {
    const float cap = float(__builtin_bit_cast(double, args.constants[3]));
    writeFactors<Gradient>(logits, words, piece, isWide, target, state.most,
                           cap == 0 ? 0.0f : 1.0f / cap);
  }
}

QLORA_HEAD_ROWS(qlora_head_part_rows, partRow<HeadNoGradient>)
QLORA_HEAD_ROWS(qlora_head_part_rows_f32, partRow<HeadGradientF32>)
QLORA_HEAD_ROWS(qlora_head_part_rows_bf16, partRow<HeadGradientBF16>)

// Merging --------------------------------------------------------------------

struct HeadMerge {
  int64_t rows, columns, vocab, piece, shards, stride, lines, own, shard;
  int64_t smoothing; ///< its bits
  bool hasOwnProbability;
  float cap;

  __device__ explicit HeadMerge(const qlora_cuda_args &args)
      : rows(args.constants[0]), columns(args.constants[1]),
        vocab(args.constants[2]), piece(args.constants[3]),
        shards(args.constants[4]), stride(args.constants[5]),
        lines(args.constants[7]), own(args.constants[8]),
        shard(args.step->shard), smoothing(args.constants[9]),
        hasOwnProbability(args.constants[10] != 0),
        cap(float(__builtin_bit_cast(double, args.constants[6]))) {}
  /// Returns the index of this rank's first row.
  __device__ int64_t firstOwn() const { return own == rows ? 0 : shard * own; }
  __device__ bool isWord(int32_t target) const {
    return target >= 0 && target < vocab;
  }
};

/// A row's softmax state, merged over all shards.
struct HeadMerged {
  double lse;
  float target;
  float word;
  double total;

  /// Returns the factor of the loss and its gradient.
  __device__ double scale(const HeadMerge &merge) const {
    return merge.hasOwnProbability ? exp(double(target) - lse) : 1;
  }
  __device__ double loss(const HeadMerge &merge) const {
    const double smoothing = __builtin_bit_cast(double, merge.smoothing);
    return scale(merge) * (lse - (1 - smoothing) * target -
                           smoothing * total / double(merge.vocab));
  }
};

QLORA_DEVICE HeadMerged mergeStates(const HeadMerge &merge, const void *states,
                                    int64_t row) {
  float most = qlora_from_bits(kMinusInfinity);
  HeadMerged merged = {0, 0, -1, 0};
  QLORA_ROLL
  for (int64_t shard = 0; shard < merge.shards; ++shard) {
    const HeadState state =
        loadState(states, shard * merge.rows + row, merge.smoothing);
    merged.target += state.target;
    merged.total += state.total;
    if (state.most > most) { // ties go to the first shard
      most = state.most;
      merged.word = state.word;
    }
  }
  double sum = 0;
  QLORA_ROLL
  for (int64_t shard = 0; shard < merge.shards; ++shard) {
    const HeadState state =
        loadState(states, shard * merge.rows + row, merge.smoothing);
    sum += double(state.sum) * exp(double(state.most) - double(most));
  }
  merged.lse = double(most) + log(sum);
  return merged;
}

/// Factors of a row's gradient: of the rank's gradient, of the target's row of
/// w and, with smoothing only, of the sum of the rank's rows of w.
QLORA_DEVICE int mergeFactors(const HeadMerge &merge) {
  return merge.smoothing ? 3 : 2;
}

/// Merges a row's softmax states from all vocabulary shards; one thread per
/// row. Buffers: states, targets, correct, losses f64 of the rank's rows,
/// factors f32 [rows, mergeFactors()] or null.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_merge_rows(const __grid_constant__ qlora_cuda_args args) {
  const HeadMerge merge(args);
  const int64_t row = int64_t(blockIdx.x) * kHeadThreads + threadIdx.x;
  if (row >= merge.rows)
    return;
  const int32_t target = qlora_load_i32(args.buffers[1], row);
  const bool isWord = merge.isWord(target),
             isShard = merge.shard < merge.shards;
  HeadMerged merged = {};
  if (isWord)
    merged = mergeStates(merge, args.buffers[0], row);
  const int64_t own = row - merge.firstOwn();
  if (own >= 0 && own < merge.own) {
    *qlora_at<double>(args.buffers[3], own) =
        isWord ? merged.loss(merge) : double(qlora_from_bits(kNotANumber));
    qlora_store_i32(args.buffers[2], own,
                    isWord && merged.word == float(target));
  }
  if (!args.buffers[4] || !isWord)
    return;
  const float most =
      isShard ? loadState(args.buffers[0], merge.shard * merge.rows + row,
                          merge.smoothing)
                    .most
              : qlora_from_bits(kNotANumber);
  const float inverse = merge.cap == 0 ? 0.0f : 1.0f / merge.cap;
  const double smoothing = __builtin_bit_cast(double, merge.smoothing);
  const double scale = merged.scale(merge);
  float *factors =
      qlora_at<float>(args.buffers[4], row * mergeFactors(merge));
  factors[0] = float(exp(double(most) - merged.lse) * scale);
  factors[1] =
      float((expm1(merged.target - merged.lse) + smoothing) * scale) *
      headSlope(merged.target, inverse);
  if (merge.smoothing)
    factors[2] = float(-smoothing / double(merge.vocab) * scale);
}

/// Sums loss and count of a sequence's labelled rows; one block per sequence.
/// Buffers: targets, losses, loss, count.
QLORA_CUDA_KERNEL(kHeadThreads)
qlora_head_merge_sum(const __grid_constant__ qlora_cuda_args args) {
  const HeadMerge merge(args);
  const int64_t rows = merge.own / merge.lines;
  const int64_t first = blockIdx.x * rows;
  const bool isShard = merge.shard < merge.shards;
  double loss = isShard ? 0 : double(qlora_from_bits(kNotANumber)), count = 0;
  for (int64_t own = first + threadIdx.x; isShard && own < first + rows;
       own += kHeadThreads) {
    const int64_t row = merge.firstOwn() + own;
    if (qlora_load_i32(args.buffers[0], row) == kNoTarget)
      continue;
    count += 1;
    loss += *qlora_at<double>(args.buffers[1], own);
  }
  loss = qlora_block_sum(loss);
  count = qlora_block_sum(count);
  if (threadIdx.x != 0)
    return;
  qlora_store_f32(args.buffers[2], blockIdx.x, float(loss));
  qlora_store_f32(args.buffers[3], blockIdx.x, float(count));
}

/// Finishes a row of dhidden; one block per row. Buffers: targets, gradient, w,
/// factors, output, the sum of w's rows f32. The output may be gradient.
template <typename W, typename Out>
QLORA_DEVICE void mergeGradient(const qlora_cuda_args &args) {
  const HeadMerge merge(args);
  const int64_t row = blockIdx.x, columns = merge.columns;
  const int32_t target = qlora_load_i32(args.buffers[0], row);
  auto *to =
      qlora_at<typename Out::storage>(args.buffers[4], row * merge.stride);
  if (!merge.isWord(target))
    return qlora_fill_row<Out>(to, columns, 0.0f);
  const float *factors =
      qlora_at<float>(args.buffers[3], row * mergeFactors(merge));
  const float factor = factors[0];
  const int64_t word = target - merge.shard * merge.piece;
  const bool isHere = word >= 0 && word < merge.piece;
  const float ofWord = isHere ? factors[1] : 0.0f;
  const float *sums =
      merge.smoothing ? qlora_at<float>(args.buffers[5], 0) : nullptr;
  const float ofSums = sums ? factors[2] : 0.0f;
  const float *from = qlora_at<float>(args.buffers[1], row * columns);
  const auto *words = qlora_at<typename W::storage>(
      args.buffers[2], isHere ? word * columns : 0);
  qlora_for_row(
      columns,
      qlora_is_vector(from) && qlora_is_vector(words) && qlora_is_vector(to),
      [&](int64_t i) {
        auto sum = qlora_load_lanes<qlora_f32, kQloraRowLanes>(from, i);
        QLORA_UNROLL
        for (int lane = 0; lane < kQloraRowLanes; ++lane)
          sum[lane] *= factor;
        if (isHere) {
          const auto added = qlora_load_lanes<W, kQloraRowLanes>(words, i);
          QLORA_UNROLL
          for (int lane = 0; lane < kQloraRowLanes; ++lane)
            sum[lane] += ofWord * added[lane];
        }
        if (sums) {
          const auto added =
              qlora_load_lanes<qlora_f32, kQloraRowLanes>(sums, i);
          QLORA_UNROLL
          for (int lane = 0; lane < kQloraRowLanes; ++lane)
            sum[lane] += ofSums * added[lane];
        }
        qlora_store_lanes<Out>(to, i, sum);
      },
      [&](int64_t i) {
        float sum = from[i] * factor;
        if (isHere)
          sum += ofWord * W::load(words, i);
        Out::store(to, i, sums ? sum + ofSums * sums[i] : sum);
      });
}

#define QLORA_MERGE_GRADIENT(W, Out)                                           \
  QLORA_HEAD_ROWS(qlora_head_merge_gradient_##W##_##Out,                       \
                  mergeGradient<qlora_##W, qlora_##Out>)
QLORA_MERGE_GRADIENT(f32, f32)
QLORA_MERGE_GRADIENT(f32, bf16)
QLORA_MERGE_GRADIENT(bf16, f32)
QLORA_MERGE_GRADIENT(bf16, bf16)
QLORA_MERGE_GRADIENT(f16, f32)
QLORA_MERGE_GRADIENT(f16, bf16)
