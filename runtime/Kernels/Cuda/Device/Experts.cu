// SPDX-License-Identifier: MIT

// Ops for experts: route, route_grad, sort_by_expert, gather_rows,
// combine_rows, choice_grad, transpose_rows, grouped_matmul,
// grouped_weight_grad. Kernels.def lists their buffers and constants. Experts'
// row counts are in device memory, so grids have the maximum size, and surplus
// blocks return. Earlier kernels compute the row indices; an index out of range
// is skipped.

#include "runtime/Kernels/Cuda/Device/Groups.cuh"
#include "runtime/Kernels/Cuda/Device/Lanes.cuh"

constexpr int kExpertThreads = 256;

/// Defines a kernel that calls one function and may use all registers.
#define QLORA_EXPERT_KERNEL(Symbol, ...)                                       \
  QLORA_CUDA_KERNEL(kExpertThreads, 1)                                         \
  Symbol(const __grid_constant__ qlora_cuda_args args) { __VA_ARGS__(args); }

// Routing --------------------------------------------------------------------

/// A row of router logits. One thread processes the whole row.
template <typename Logits> struct RouterRow {
  const typename Logits::storage *logits;
  const int32_t *choices;
  int64_t experts, chosen;
  bool overAll;
  float largest, sum;

  __device__ float logit(int64_t expert) const {
    return Logits::load(logits, expert);
  }
  __device__ float at(int64_t i) const {
    return logit(overAll ? i : int64_t(choices[i]));
  }
  __device__ void prepare() {
    const int64_t count = overAll ? experts : chosen;
    largest = at(0);
    for (int64_t i = 1; i < count; ++i)
      largest = qlora_maximum(largest, at(i));
    sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += qlora_exp(at(i) - largest);
  }
  __device__ float weight(int64_t expert) const {
    return qlora_exp(logit(expert) - largest) / sum;
  }
};

/// Compares logits; NaN is smaller than every number.
QLORA_DEVICE bool isBetter(float a, float b) {
  return a > b || (b != b && a == a);
}

/// Selects the experts with the largest logits, in descending order.
template <typename Logits>
QLORA_DEVICE void choose(const RouterRow<Logits> &row, int32_t *choices) {
  int64_t count = 0;
  for (int32_t e = 0; e < row.experts; ++e) {
    const float value = row.logit(e);
    int64_t at = count;
    while (at > 0 && isBetter(value, row.logit(choices[at - 1])))
      --at;
    if (at == row.chosen)
      continue;
    count = count < row.chosen ? count + 1 : count;
    for (int64_t i = count - 1; i > at; --i)
      choices[i] = choices[i - 1];
    choices[at] = e;
  }
}

template <typename Logits>
QLORA_DEVICE void route(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int64_t n = int64_t(blockIdx.x) * kExpertThreads + threadIdx.x;
  if (n >= c[0])
    return;
  float *weights = qlora_at<float>(args.buffers[1], n * c[2]);
  int32_t *choices = qlora_at<int32_t>(args.buffers[2], n * c[2]);
  RouterRow<Logits> row = {
      qlora_at<typename Logits::storage>(args.buffers[0], n * c[3]), choices,
      c[1], c[2], c[4] != 0, 0, 0};
  choose(row, choices);
  row.prepare();
  for (int64_t j = 0; j < row.chosen; ++j)
    weights[j] = row.weight(choices[j]);
}
QLORA_EXPERT_KERNEL(qlora_route_f32, route<qlora_f32>)
QLORA_EXPERT_KERNEL(qlora_route_bf16, route<qlora_bf16>)

template <typename Logits>
QLORA_DEVICE void routeGrad(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int64_t n = int64_t(blockIdx.x) * kExpertThreads + threadIdx.x;
  if (n >= c[0])
    return;
  const float *dweights = qlora_at<float>(args.buffers[2], n * c[2]);
  const int32_t *choices = qlora_at<int32_t>(args.buffers[1], n * c[2]);
  auto *out = qlora_at<typename Logits::storage>(args.buffers[3], n * c[4]);
  RouterRow<Logits> row = {
      qlora_at<typename Logits::storage>(args.buffers[0], n * c[3]), choices,
      c[1], c[2], c[5] != 0, 0, 0};
  row.prepare();
  float mean = 0;
  for (int64_t j = 0; j < row.chosen; ++j)
    mean += row.weight(choices[j]) * dweights[j];
  for (int64_t e = 0; e < row.experts; ++e)
    Logits::store(out, e, row.overAll ? -row.weight(e) * mean : 0.0f);
  for (int64_t j = 0; j < row.chosen; ++j)
    Logits::store(out, choices[j],
                  row.weight(choices[j]) * (dweights[j] - mean));
}
QLORA_EXPERT_KERNEL(qlora_route_grad_f32, routeGrad<qlora_f32>)
QLORA_EXPERT_KERNEL(qlora_route_grad_bf16, routeGrad<qlora_bf16>)

/// Sorts all rows with one block. Each expert of this rank gets equally many
/// threads, which divide the rows: each counts the expert's rows in its range,
/// then places them. With too few threads, each handles several experts.
QLORA_DEVICE void sortByExpert(const qlora_cuda_args &args, int32_t *counts) {
  const int64_t rows = args.constants[0], experts = args.constants[1];
  const int64_t own = experts / args.constants[2];
  const int64_t first = own == experts ? 0 : args.step->expert_part * own;
  const int32_t *choices = qlora_at<int32_t>(args.buffers[0], 0);
  int32_t *order = qlora_at<int32_t>(args.buffers[1], 0);
  int32_t *places = qlora_at<int32_t>(args.buffers[2], 0);
  int32_t *sorted = qlora_at<int32_t>(args.buffers[3], 0);
  int32_t *offsets = qlora_at<int32_t>(args.buffers[4], 0);
  const int per = own < kExpertThreads ? kExpertThreads / int(own) : 1;
  const int part = int(threadIdx.x) % per;
  const int64_t begin = rows * part / per, end = rows * (part + 1) / per;
  for (int64_t e = threadIdx.x / per; e < own; e += kExpertThreads / per) {
    int32_t count = 0;
    for (int64_t row = begin; row < end; ++row)
      count += choices[row] == first + e;
    (per > 1 ? counts[threadIdx.x] : offsets[first + e + 1]) = count;
  }
  for (int64_t row = threadIdx.x; own < experts && row < rows;
       row += kExpertThreads) {
    order[row] = places[row] = -1;
    sorted[row] = int32_t(first);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t sum = offsets[0] = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const bool isOwn = e >= first && e < first + own;
      const int64_t mine = (e - first) * per;
      for (int i = 0; isOwn && per > 1 && i < per; ++i) {
        const int32_t count = counts[mine + i];
        counts[mine + i] = sum;
        sum += count;
      }
      sum += isOwn && per == 1 ? offsets[e + 1] : 0;
      offsets[e + 1] = sum;
    }
  }
  __syncthreads();
  if (args.buffers[5])
    for (int64_t e = threadIdx.x; e <= own; e += kExpertThreads)
      *qlora_at<int32_t>(args.buffers[5], e) = offsets[first + e];
  for (int64_t e = threadIdx.x / per; e < own; e += kExpertThreads / per) {
    int32_t place = per > 1 ? counts[threadIdx.x] : offsets[first + e];
    for (int64_t row = begin; row < end; ++row)
      if (choices[row] == first + e) {
        order[place] = int32_t(row);
        sorted[place] = int32_t(first + e);
        places[row] = place++;
      }
  }
}

QLORA_CUDA_KERNEL(kExpertThreads, 1)
qlora_sort_by_expert(const __grid_constant__ qlora_cuda_args args) {
  __shared__ int32_t counts[kExpertThreads];
  sortByExpert(args, counts);
}

// Tokens and sorted rows ------------------------------------------------------

/// gather_rows: one block per sorted row.
template <typename X>
QLORA_DEVICE void gatherRows(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int64_t p = blockIdx.x;
  const int32_t choice = qlora_load_i32(args.buffers[1], p);
  const bool isThere = choice >= 0 && choice < c[0] * c[1];
  const float factor = isThere && args.buffers[2]
                           ? qlora_load_f32(args.buffers[2], choice)
                           : 1.0f;
  for (int64_t i = threadIdx.x; i < c[2]; i += kExpertThreads)
    X::store(args.buffers[3], p * c[4] + i,
             isThere ? factor * X::load(args.buffers[0],
                                        choice / int32_t(c[1]) * c[3] + i)
                     : 0.0f);
}
QLORA_EXPERT_KERNEL(qlora_gather_rows_f32, gatherRows<qlora_f32>)
QLORA_EXPERT_KERNEL(qlora_gather_rows_bf16, gatherRows<qlora_bf16>)

/// combine_rows: one block per token.
template <typename X>
QLORA_DEVICE void combineRows(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int64_t n = blockIdx.x;
  for (int64_t i = threadIdx.x; i < c[2]; i += kExpertThreads) {
    float sum = 0;
    for (int64_t choice = n * c[1]; choice < (n + 1) * c[1]; ++choice) {
      const int32_t place = qlora_load_i32(args.buffers[1], choice);
      if (place < 0 || place >= c[0] * c[1])
        continue;
      const float factor =
          args.buffers[2] ? qlora_load_f32(args.buffers[2], choice) : 1.0f;
      sum += factor * X::load(args.buffers[0], place * c[3] + i);
    }
    X::store(args.buffers[3], n * c[4] + i, sum);
  }
}
QLORA_EXPERT_KERNEL(qlora_combine_rows_f32, combineRows<qlora_f32>)
QLORA_EXPERT_KERNEL(qlora_combine_rows_bf16, combineRows<qlora_bf16>)

/// transpose_rows: one block per row. Adjacent threads access adjacent elements
/// of the longer dimension of the row's matrix.
template <typename X>
QLORA_DEVICE void transposeRows(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const auto *x =
      qlora_at<typename X::storage>(args.buffers[0], blockIdx.x * c[3]);
  auto *out = qlora_at<typename X::storage>(args.buffers[1], blockIdx.x * c[4]);
  const int inner = int(c[2]), outer = int(c[1] / c[2]);
  const bool isWide = inner > outer;
  const int longer = isWide ? inner : outer, shorter = isWide ? outer : inner;
  const int from = isWide ? 1 : inner, to = isWide ? outer : 1;
  for (int j = 0; j < shorter; ++j) {
    const int end = j * (isWide ? inner : 1) + longer * from;
    int read = j * (isWide ? inner : 1) + int(threadIdx.x) * from;
    int written = j * (isWide ? 1 : outer) + int(threadIdx.x) * to;
    QLORA_ROLL
    for (; read < end; read += kExpertThreads * from) {
      out[written] = x[read];
      written += kExpertThreads * to;
    }
  }
}
QLORA_EXPERT_KERNEL(qlora_transpose_rows_f32, transposeRows<qlora_f32>)
QLORA_EXPERT_KERNEL(qlora_transpose_rows_bf16, transposeRows<qlora_bf16>)

/// choice_grad: one block per choice of a token.
template <typename X>
QLORA_DEVICE void choiceGrad(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int32_t choice = int32_t(blockIdx.x);
  const int32_t place = qlora_load_i32(args.buffers[2], choice);
  const bool isThere = place >= 0 && place < c[0] * c[1];
  float sum = 0;
  for (int64_t i = threadIdx.x; isThere && i < c[2]; i += kExpertThreads)
    sum += X::load(args.buffers[0], choice / int32_t(c[1]) * c[3] + i) *
           X::load(args.buffers[1], place * c[4] + i);
  sum = qlora_block_sum(sum);
  if (threadIdx.x == 0)
    qlora_store_f32(args.buffers[3], choice, sum);
}
QLORA_EXPERT_KERNEL(qlora_choice_grad_f32, choiceGrad<qlora_f32>)
QLORA_EXPERT_KERNEL(qlora_choice_grad_bf16, choiceGrad<qlora_bf16>)

// Grouped matmuls ------------------------------------------------------------

/// Rows and columns of a tile of c, and the depth per step. Experts.cpp
/// computes the grid from it. A thread computes kTileSums elements of c.
constexpr int kGroupTile = 32;
constexpr int kTileSums = kGroupTile * kGroupTile / kExpertThreads;

using GroupTile = float[kGroupTile][kGroupTile + 1];

/// grouped_matmul: one block per tile of c. The constants rows and columns are
/// totals over all groups. W is buffer 1, in a's type.
template <typename X>
QLORA_DEVICE void groupedMatmul(const qlora_cuda_args &args, GroupTile &a,
                                GroupTile &w) {
  const int64_t *c = args.constants;
  const bool isForward = c[6] != 0, isLast = c[7] != 0;
  const int64_t rows = isLast ? c[2] : c[2] / c[1];
  const int64_t columns = isLast ? c[3] / c[1] : c[3];
  const int64_t n = isForward ? rows : columns, k = isForward ? columns : rows;
  const int64_t across = (n + kGroupTile - 1) / kGroupTile;
  const GroupRows mine = groupRowsOf<kGroupTile>(args.buffers[2], c[1], c[0],
                                                 blockIdx.x / across);
  if (!mine.areAmong(c[0]))
    return;
  const int64_t steps = mine.group == c[1] ? 0 : k;
  const int64_t left = blockIdx.x % across * kGroupTile;
  const int lane = int(threadIdx.x) % kGroupTile;
  const int line = int(threadIdx.x) / kGroupTile;
  constexpr int kLines = kExpertThreads / kGroupTile;
  float sums[kTileSums] = {};
  for (int64_t depth = 0; depth < steps; depth += kGroupTile) {
    for (int i = line; i < kGroupTile; i += kLines) {
      const int64_t row = mine.first + i, at = depth + lane;
      a[i][lane] = row < mine.end && at < k
                       ? X::load(args.buffers[0], row * c[4] + at)
                       : 0.0f;
      // w[i][lane] is depth `depth` + i of column `lane` of the tile.
      const int64_t out = left + lane, in = depth + i;
      const int64_t r = isForward ? out : in, l = isForward ? in : out;
      const int64_t index = isLast ? (r * columns + l) * c[1] + mine.group
                                   : (mine.group * rows + r) * columns + l;
      w[i][lane] = out < n && in < k ? X::load(args.buffers[1], index) : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < kGroupTile; ++i)
      for (int s = 0; s < kTileSums; ++s)
        sums[s] += a[line + s * kLines][i] * w[i][lane];
    __syncthreads();
  }
  const float alpha = float(__builtin_bit_cast(double, c[11]));
  const float beta = float(__builtin_bit_cast(double, c[12]));
  for (int s = 0; s < kTileSums; ++s) {
    const int64_t row = mine.first + line + s * kLines;
    const int64_t index = row * c[5] + left + lane;
    if (row >= mine.end || left + lane >= n)
      continue;
    const float before = beta == 0 ? 0 : beta * X::load(args.buffers[3], index);
    X::store(args.buffers[3], index, alpha * sums[s] + before);
  }
}

#define QLORA_GROUPED_MATMUL(X)                                                \
  QLORA_CUDA_KERNEL(kExpertThreads, 1)                                         \
  qlora_grouped_matmul_##X(const __grid_constant__ qlora_cuda_args args) {     \
    __shared__ GroupTile a, w;                                                 \
    groupedMatmul<qlora_##X>(args, a, w);                                      \
  }
QLORA_GROUPED_MATMUL(f32)
QLORA_GROUPED_MATMUL(bf16)

/// grouped_weight_grad: one thread per element of dW adds the rows in order.
template <typename Dy, typename X>
QLORA_DEVICE void groupedWeightGrad(const qlora_cuda_args &args) {
  const int64_t *c = args.constants;
  const int64_t number = int64_t(blockIdx.x) * kExpertThreads + threadIdx.x;
  if (number >= c[1] * c[2] * c[3])
    return;
  const int64_t column = number % c[3], row = number / c[3] % c[2];
  const int64_t group = number / c[3] / c[2];
  const int64_t begin = qlora_load_i32(args.buffers[2], group);
  const int64_t end = qlora_load_i32(args.buffers[2], group + 1);
  float sum = 0;
  for (int64_t p = begin < 0 ? 0 : begin; p < end && p < c[0]; ++p)
    sum += Dy::load(args.buffers[0], p * c[4] + row) *
           X::load(args.buffers[1], p * c[5] + column);
  float *to = qlora_at<float>(
      args.buffers[3], c[6] ? (row * c[3] + column) * c[1] + group : number);
  const float beta = float(__builtin_bit_cast(double, c[8]));
  *to = float(__builtin_bit_cast(double, c[7])) * sum +
        (beta == 0 ? 0 : beta * *to);
}
#define QLORA_GROUPED_WEIGHT_GRAD(Dy, X)                                       \
  QLORA_EXPERT_KERNEL(qlora_grouped_weight_grad_##Dy##_##X,                    \
                      groupedWeightGrad<qlora_##Dy, qlora_##X>)
QLORA_GROUPED_WEIGHT_GRAD(f32, f32)
QLORA_GROUPED_WEIGHT_GRAD(f32, bf16)
QLORA_GROUPED_WEIGHT_GRAD(bf16, f32)
QLORA_GROUPED_WEIGHT_GRAD(bf16, bf16)
