// SPDX-License-Identifier: MIT

// Cases of attention and attention_grad, and error bounds for implementations
// that round the scores.

#ifndef QLORA_TESTS_CONFORMANCE_ATTENTIONCASE_H
#define QLORA_TESTS_CONFORMANCE_ATTENTIONCASE_H

#include "tests/conformance/KernelCase.h"

#include <numeric>

namespace qlora {

enum class Segments { kNone, kPacked, kPadded, kOne };

struct Attention {
  int64_t batch, length, heads, keyHeads, dim, window, gap;
  Segments segments;
  qlora_dtype dtype;
  double cap = 0;
  bool hasSinks = false;

  double scale() const { return 1 / std::sqrt(double(dim)); }
  int64_t tokens() const { return batch * length; }
  int64_t width() const { return heads * dim; }
  int64_t keyWidth() const { return keyHeads * dim; }
};

inline std::ostream &operator<<(std::ostream &out, const Attention &a) {
  return out << "B" << a.batch << " T" << a.length << " H" << a.heads << "/"
             << a.keyHeads << " D" << a.dim << " window " << a.window
             << " segments " << int(a.segments) << " " << dtypeName(a.dtype)
             << " cap " << a.cap << (a.hasSinks ? " sinks" : "");
}

/// Returns a token's segment id: one of three segments with odd lengths, or 1
/// for kOne. Padding has id 0.
inline int32_t segmentOf(const Attention &a, int64_t batch, int64_t token) {
  const int64_t position = token + 3 * batch;
  const bool isPadded =
      a.segments == Segments::kPadded || a.segments == Segments::kOne;
  if (isPadded && token >= a.length - a.length / 5 - 1)
    return 0;
  if (a.segments == Segments::kOne)
    return 1;
  return position < a.length / 3 ? 1 : position < a.length * 3 / 4 ? 2 : 3;
}

inline KernelCase makeCase(const Attention &a, bool isGradient) {
  KernelCase::Types types = {{"q", a.dtype},
                             {"k", a.dtype},
                             {"v", a.dtype},
                             {"out", a.dtype},
                             {"lse", QLORA_DTYPE_F32}};
  if (a.segments != Segments::kNone)
    types["segments"] = QLORA_DTYPE_I32;
  if (a.hasSinks && !isGradient)
    types["sinks"] = QLORA_DTYPE_F32;
  if (isGradient)
    for (const char *name : {"dout", "dq", "dk", "dv"})
      types[name] = a.dtype;
  KernelCase test(isGradient ? "attention_grad" : "attention", types,
                  {{"batch", a.batch},
                   {"length", a.length},
                   {"heads", a.heads},
                   {"kv_heads", a.keyHeads},
                   {"dim", a.dim},
                   {"ldq", a.width() + a.gap},
                   {"ldk", a.keyWidth() + a.gap},
                   {"ldv", a.keyWidth() + a.gap},
                   {"ldo", a.width() + a.gap},
                   {"lddo", a.width() + a.gap},
                   {"lddq", a.width() + a.gap},
                   {"lddk", a.keyWidth() + a.gap},
                   {"lddv", a.keyWidth() + a.gap},
                   {"window", a.window},
                   {"scale", bits(a.scale())},
                   {"cap", bits(a.cap)},
                   {"slots", 3}});
  test.hasOneSegment = a.segments == Segments::kOne;
  test.fill("q", a.tokens(), a.width(), a.width() + a.gap, 1);
  test.fill("k", a.tokens(), a.keyWidth(), a.keyWidth() + a.gap, 2);
  test.fill("v", a.tokens(), a.keyWidth(), a.keyWidth() + a.gap, 3);
  if (a.hasSinks && !isGradient)
    test.fill("sinks", 1, a.heads, a.heads, 5);
  if (isGradient)
    test.fill("dout", a.tokens(), a.width(), a.width() + a.gap, 4);
  for (int64_t i = 0; a.segments != Segments::kNone && i < a.tokens(); ++i)
    test.set("segments", i, segmentOf(a, i / a.length, i % a.length));
  return test;
}

/// Runs the reference forward. Copies its `out` and `lse` into the case of the
/// gradient.
inline KernelCase makeGradient(const Attention &a) {
  KernelCase forward = makeCase(a, false), gradient = makeCase(a, true);
  expectOk(forward.run("reference"));
  for (const char *name : {"out", "lse"})
    std::copy_n(forward.data(name), forward.bytes(name), gradient.data(name));
  return gradient;
}

// Tensor cores and bf16 matmuls of CPUs take bf16 operands. So all
// implementations except the reference round P, and in the gradient also dS,
// before the matmul with it. Each factor then has a relative error of at most u
// = 2^-8, and each result an error of at most u times a sum of magnitudes:
//
//   out  u sum_j P_ij |v_j|         dv  u sum_i P_ij |dout_i|
//   dq   u sum_j |dS_ij| |k_j|      dk  u sum_i |dS_ij| |q_i|
//
// The tests compute these sums for each element, because a common bound would
// accept wrong small results. cuDNN may also round the summand that each query
// head adds to dk and dv.

/// Returns how often the implementation `row` may round the summands of a
/// result to bf16 (see above).
inline int roundingsOf(const Attention &a, const std::string &row) {
  if (a.dtype != QLORA_DTYPE_BF16)
    return 0;
  return row == "cudnn" ? 2 : row == "reference" ? 0 : 1;
}

/// Sums of magnitudes for each operand name and element. Empty if the
/// implementation rounds nothing.
using Magnitudes = std::map<std::string, std::vector<double>>;

inline Magnitudes forwardMagnitudes(const Attention &a) {
  KernelCase test = makeCase(a, false);
  const int64_t ld = a.keyWidth() + a.gap;
  for (int64_t token = 0; token < a.tokens(); ++token)
    for (int64_t i = token * ld; i < token * ld + a.keyWidth(); ++i)
      test.set("v", i, std::abs(test.at("v", i)));
  expectOk(test.run("reference"));
  Magnitudes sums;
  for (uint64_t i = 0; i < test.bytes("out") / 2; ++i)
    sums["out"].push_back(test.at("out", int64_t(i)));
  return sums;
}

inline bool sees(const Attention &a, int64_t batch, int64_t query,
                 int64_t key) {
  if (key > query || (a.window != 0 && key + a.window <= query))
    return false;
  return a.segments == Segments::kNone ||
         (segmentOf(a, batch, query) != 0 &&
          segmentOf(a, batch, query) == segmentOf(a, batch, key));
}

/// Computes the bounds above for the gradients in f64. The index of a row's
/// first element identifies the row.
class RoundedGradient {
public:
  explicit RoundedGradient(const Attention &a) : a(a) {
    KernelCase test = makeGradient(a);
    for (const char *name : {"q", "k", "v", "out", "dout"})
      for (uint64_t i = 0; i < test.bytes(name) / 2; ++i)
        numbers[name].push_back(test.at(name, int64_t(i)));
    for (uint64_t i = 0; i < test.bytes("lse") / 4; ++i)
      lse.push_back(test.at("lse", int64_t(i)));
    for (const char *name : {"dq", "dk", "dv"})
      sums[name].resize(test.bytes(name) / 2);
  }

  Magnitudes magnitudes() {
    for (int64_t batch = 0; batch < a.batch; ++batch)
      for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t query = 0; query < a.length; ++query)
          for (int64_t key = 0; key <= query; ++key)
            if (sees(a, batch, query, key))
              addPair(batch, head, query, key);
    return sums;
  }

private:
  const double *row(const char *operand, int64_t begin) const {
    return numbers.at(operand).data() + begin;
  }
  double product(const double *left, const double *right) const {
    return std::inner_product(left, left + a.dim, right, 0.0);
  }
  /// Adds |weight * from| to the sums of `to`.
  void add(double weight, const double *from, const char *to, int64_t begin) {
    double *out = sums.at(to).data() + begin;
    for (int64_t d = 0; d < a.dim; ++d)
      out[d] += std::abs(weight * from[d]);
  }
  void addPair(int64_t batch, int64_t head, int64_t query, int64_t key) {
    const int64_t i =
        (batch * a.length + query) * (a.width() + a.gap) + head * a.dim;
    const int64_t j = (batch * a.length + key) * (a.keyWidth() + a.gap) +
                      head / (a.heads / a.keyHeads) * a.dim;
    const double *q = row("q", i), *k = row("k", j), *dout = row("dout", i);
    double score = a.scale() * product(q, k), slope = 1;
    if (a.cap != 0) {
      const double t = std::tanh(score / a.cap);
      score = a.cap * t;
      slope = 1 - t * t;
    }
    const double p = std::exp(
        score - lse[(batch * a.heads + head) * a.length + query]);
    const double ds =
        a.scale() * p * slope *
        (product(dout, row("v", j)) - product(dout, row("out", i)));
    add(ds, k, "dq", i);
    add(ds, q, "dk", j);
    add(p, dout, "dv", j);
  }

  const Attention a;
  Magnitudes numbers, sums;
  std::vector<double> lse;
};

} // namespace qlora

#endif // QLORA_TESTS_CONFORMANCE_ATTENTIONCASE_H
