// SPDX-License-Identifier: MIT

// Experts, row by row: route, route_grad, gather_rows, combine_rows,
// choice_grad, transpose_rows.

#include <algorithm>
#include <cmath>

#include "runtime/Kernels/Cpu/CheckIndices.h"
#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu {

// Choice of experts -----------------------------------------------------------

namespace {
/// The softmax of a row of logits, for route and its gradient.
struct Softmax {
  float largest, sum;

  template <typename At> static Softmax of(int64_t count, At at) {
    Softmax softmax = {at(0), 0};
    for (int64_t i = 1; i < count; ++i)
      softmax.largest = std::max(softmax.largest, at(i));
    for (int64_t i = 0; i < count; ++i)
      softmax.sum += std::exp(at(i) - softmax.largest);
    return softmax;
  }
  float operator()(float logit) const {
    return std::exp(logit - largest) / sum;
  }
};

struct Router {
  int64_t rows, experts, chosen, ldl;
  bool overAll;
  qlora_dtype type;

  explicit Router(const KernelRequest &r)
      : rows(r.constant("rows")), experts(r.constant("experts")),
        chosen(r.constant("chosen")), ldl(r.constant("ldl")),
        overAll(r.constant("over_all") != 0), type(r.type("logits")) {}

  float logit(const void *logits, int64_t row, int64_t expert) const {
    return loadElement(type, logits, row * ldl + expert);
  }
  Softmax softmax(const void *logits, int64_t row,
                  const int32_t *choices) const {
    if (overAll)
      return Softmax::of(experts,
                         [&](int64_t e) { return logit(logits, row, e); });
    return Softmax::of(
        chosen, [&](int64_t j) { return logit(logits, row, choices[j]); });
  }
  void choose(const void *logits, int64_t row, int32_t *choices) const;
  void differentiate(const void *logits, int64_t row, const int32_t *choices,
                     const float *dweights, qlora_dtype out, void *dlogits,
                     int64_t first) const;
};
} // namespace

/// Compares logits; a NaN is smaller than any number.
static bool isBetter(float a, float b) { return a > b || (b != b && a == a); }

/// Selects a row's best experts in one pass over its logits, best first.
void Router::choose(const void *logits, int64_t row, int32_t *choices) const {
  int64_t count = 0;
  for (int32_t e = 0; e < experts; ++e) {
    const float value = logit(logits, row, e);
    int64_t at = count;
    while (at > 0 && isBetter(value, logit(logits, row, choices[at - 1])))
      --at;
    if (at == chosen)
      continue;
    count = std::min(count + 1, chosen);
    std::copy_backward(choices + at, choices + count - 1, choices + count);
    choices[at] = e;
  }
}

/// Computes the logits' gradient dl_i = w_i (dw_i - sum of w_j dw_j). dw_i is 0
/// for experts that were not chosen; w_i is 0 for experts outside the softmax.
void Router::differentiate(const void *logits, int64_t row,
                           const int32_t *choices, const float *dweights,
                           qlora_dtype out, void *dlogits,
                           int64_t first) const {
  const Softmax softmax = this->softmax(logits, row, choices);
  float mean = 0;
  for (int64_t j = 0; j < chosen; ++j)
    mean += softmax(logit(logits, row, choices[j])) * dweights[j];
  for (int64_t e = 0; e < experts; ++e)
    storeElement(out, dlogits, first + e,
                 overAll ? -softmax(logit(logits, row, e)) * mean : 0);
  for (int64_t j = 0; j < chosen; ++j)
    storeElement(out, dlogits, first + choices[j],
                 softmax(logit(logits, row, choices[j])) *
                     (dweights[j] - mean));
}

PreparedKernel route::cpu::prepare(const KernelRequest &request, uint64_t) {
  const Router router(request);
  return makeKernel([router](const LibraryKernelArgs &args) {
    const void *logits = args.buffers[0];
    parallelRanges(router.rows, rowGrain(router.experts * router.chosen),
                   [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float *weights = bufferOf<float>(args, 1) + row * router.chosen;
        int32_t *choices = bufferOf<int32_t>(args, 2) + row * router.chosen;
        router.choose(logits, row, choices);
        const Softmax softmax = router.softmax(logits, row, choices);
        for (int64_t j = 0; j < router.chosen; ++j)
          weights[j] = softmax(router.logit(logits, row, choices[j]));
      }
    });
    return Status::ok();
  });
}

PreparedKernel route_grad::cpu::prepare(const KernelRequest &request,
                                        uint64_t) {
  const Router router(request);
  const int64_t lddl = request.constant("lddl");
  const qlora_dtype out = request.type("dlogits");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *choices = bufferOf<const int32_t>(args, 1);
    const auto *dweights = bufferOf<const float>(args, 2);
    const int64_t chosen = router.chosen;
    QLORA_RETURN_IF_ERROR(checkIndices("route_grad", choices,
                                       router.rows * chosen, router.experts));
    parallelRanges(router.rows, rowGrain(router.experts),
                   [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        router.differentiate(args.buffers[0], row, choices + row * chosen,
                             dweights + row * chosen, out, args.buffers[3],
                             row * lddl);
    });
    return Status::ok();
  });
}

// Tokens and sorted rows ------------------------------------------------------

/// Number of columns that are summed in f32 at a time.
static constexpr int64_t kSummed = 1024;

namespace {
struct Move {
  int64_t rows, chosen, columns, ldx, ldo;
  qlora_dtype type;
  bool hasWeights;

  explicit Move(const KernelRequest &r)
      : rows(r.constant("rows")), chosen(r.constant("chosen")),
        columns(r.constant("columns")), ldx(r.constant("ldx")),
        ldo(r.constant("ldo")), type(r.type("x")),
        hasWeights(r.dtype("weights").has_value()) {}

  float weight(const LibraryKernelArgs &args, int64_t choice) const {
    return hasWeights ? bufferOf<const float>(args, 2)[choice] : 1.0f;
  }
};
} // namespace

PreparedKernel gather_rows::cpu::prepare(const KernelRequest &request,
                                         uint64_t) {
  const Move move(request);
  return makeKernel([move](const LibraryKernelArgs &args) {
    const auto *order = bufferOf<const int32_t>(args, 1);
    const int64_t sorted = move.rows * move.chosen;
    QLORA_RETURN_IF_ERROR(
        checkIndices("gather_rows", order, sorted, sorted, -1));
    parallelRanges(sorted, rowGrain(move.columns),
                   [&](int64_t begin, int64_t end) {
      float sum[kSummed];
      for (int64_t p = begin; p < end; ++p) {
        void *out = elementAt(args.buffers[3], move.type, p * move.ldo);
        if (order[p] < 0) {
          clearRun(move.type, out, move.columns);
          continue;
        }
        const void *x = elementAt(args.buffers[0], move.type,
                                  order[p] / move.chosen * move.ldx);
        if (!move.hasWeights) {
          convertRun(move.type, x, move.type, out, move.columns);
          continue;
        }
        for (int64_t c = 0; c < move.columns; c += kSummed) {
          const int64_t count = std::min(kSummed, move.columns - c);
          std::fill_n(sum, count, 0.0f);
          addScaled(move.weight(args, order[p]), move.type,
                    elementAt(x, move.type, c), sum, count);
          narrow(sum, move.type, elementAt(out, move.type, c), count);
        }
      }
    });
    return Status::ok();
  });
}

PreparedKernel combine_rows::cpu::prepare(const KernelRequest &request,
                                          uint64_t) {
  const Move move(request);
  return makeKernel([move](const LibraryKernelArgs &args) {
    const auto *places = bufferOf<const int32_t>(args, 1);
    const int64_t sorted = move.rows * move.chosen;
    QLORA_RETURN_IF_ERROR(
        checkIndices("combine_rows", places, sorted, sorted, -1));
    parallelRanges(move.rows, rowGrain(move.columns * move.chosen),
                   [&](int64_t begin, int64_t end) {
      float sum[kSummed];
      for (int64_t row = begin; row < end; ++row)
        for (int64_t c = 0; c < move.columns; c += kSummed) {
          const int64_t count = std::min(kSummed, move.columns - c);
          std::fill_n(sum, count, 0.0f);
          for (int64_t j = 0; j < move.chosen; ++j) {
            const int64_t choice = row * move.chosen + j;
            if (places[choice] < 0)
              continue;
            addScaled(move.weight(args, choice), move.type,
                      elementAt(args.buffers[0], move.type,
                                places[choice] * move.ldx + c),
                      sum, count);
          }
          narrow(sum, move.type,
                 elementAt(args.buffers[3], move.type, row * move.ldo + c),
                 count);
        }
    });
    return Status::ok();
  });
}

PreparedKernel choice_grad::cpu::prepare(const KernelRequest &request,
                                         uint64_t) {
  const int64_t rows = request.constant("rows");
  const int64_t chosen = request.constant("chosen");
  const int64_t columns = request.constant("columns");
  const int64_t ldt = request.constant("ldt"), ldx = request.constant("ldx");
  const qlora_dtype type = request.type("x");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *places = bufferOf<const int32_t>(args, 2);
    QLORA_RETURN_IF_ERROR(
        checkIndices("choice_grad", places, rows * chosen, rows * chosen, -1));
    parallelRanges(rows * chosen, rowGrain(columns),
                   [&](int64_t begin, int64_t end) {
      float token[kSummed], row[kSummed];
      for (int64_t choice = begin; choice < end; ++choice) {
        double sum = 0;
        const int64_t there = places[choice] < 0 ? 0 : columns;
        for (int64_t c = 0; c < there; c += kSummed) {
          const int64_t count = std::min(kSummed, columns - c);
          widen(type,
                elementAt(args.buffers[0], type, choice / chosen * ldt + c),
                token, count);
          widen(type,
                elementAt(args.buffers[1], type, places[choice] * ldx + c), row,
                count);
          sum += sumOfProducts(token, row, count);
        }
        bufferOf<float>(args, 3)[choice] = float(sum);
      }
    });
    return Status::ok();
  });
}

namespace {
/// Transposes elements of sizeof(Word) bytes, whatever their type.
template <typename Word> struct RowTranspose {
  int64_t columns, inner, ldx, ldo;

  void operator()(const LibraryKernelArgs &args, int64_t row) const {
    const Word *x = bufferOf<const Word>(args, 0) + row * ldx;
    Word *out = bufferOf<Word>(args, 1) + row * ldo;
    const int64_t outer = columns / inner;
    for (int64_t j = 0; j < inner; ++j)
      for (int64_t i = 0; i < outer; ++i)
        out[j * outer + i] = x[i * inner + j];
  }
};
} // namespace

template <typename Word>
static PreparedKernel prepareRowTranspose(const KernelRequest &request) {
  const int64_t rows = request.constant("rows");
  const RowTranspose<Word> transpose = {
      request.constant("columns"), request.constant("inner"),
      request.constant("ldx"), request.constant("ldo")};
  return makeKernel([=](const LibraryKernelArgs &args) {
    parallelRanges(rows, rowGrain(transpose.columns),
                   [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        transpose(args, row);
    });
    return Status::ok();
  });
}

PreparedKernel transpose_rows::cpu::prepare(const KernelRequest &request,
                                            uint64_t) {
  return request.type("x") == QLORA_DTYPE_F32
             ? prepareRowTranspose<uint32_t>(request)
             : prepareRowTranspose<uint16_t>(request);
}

} // namespace qlora::cpu
