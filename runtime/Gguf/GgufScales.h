// SPDX-License-Identifier: MIT

// Scales of quantized blocks with the least squared error.
//
// Codes and scale depend on each other: a scale rounds each value to a code,
// and fixed codes have one best scale, by least squares. The search tries
// scales around the one that maps the largest value to the largest code, since
// clipping or unused codes may pay. Then it repeats both steps from the best
// scale until its codes are stable, at most kRounds times.
//
// Sums are in eight lanes whatever the vector width, so that all machines get
// the same bits. Values are scaled to at most 1 first: no sum over- or
// underflows.

#ifndef QLORA_RUNTIME_GGUF_GGUFSCALES_H
#define QLORA_RUNTIME_GGUF_GGUFSCALES_H

#include <cmath>
#include <cstdint>
#include <cstring>

namespace qlora::gguf {

// The functions are inlined into loops that are compiled for several
// instruction sets.
#define QLORA_INLINE [[gnu::always_inline]] inline

inline constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

/// Repetitions of rounding and least squares after the search.
inline constexpr int kRounds = 3;

/// Below this magnitude, all values of a block become 0: any f16 scale of such
/// values would be 0.
inline constexpr float kZero = 1e-20f;

QLORA_INLINE Lanes load(const float *from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

QLORA_INLINE float total(const Lanes &v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/// Returns (x + offset) * inverse, rounded to nearest even and clamped. The
/// limits are integers below 2^22.
QLORA_INLINE Lanes codesOf(const Lanes &x, float offset, float inverse,
                           float low, float high) {
  const Lanes lows = Lanes{} + low, highs = Lanes{} + high;
  Lanes v = (x + offset) * inverse;
  v = v < lows ? lows : v;
  v = v > highs ? highs : v;
  constexpr float kShift = 0x1.8p23f; // no fraction bits remain in the sum
  return (v + kShift) - kShift;
}

template <int Count> QLORA_INLINE float largestOf(const float *x) {
  float largest = 0;
  for (int i = 0; i < Count; ++i)
    largest = std::abs(x[i]) > std::abs(largest) ? x[i] : largest;
  return largest;
}

template <int Count>
QLORA_INLINE void storeCodes(const float *x, float offset, float inverse,
                             float low, float high, float bias,
                             uint8_t *codes) {
  for (int i = 0; i < Count; i += kLanes) {
    const Lanes q = codesOf(load(x + i), offset, inverse, low, high) + bias;
    for (int lane = 0; lane < kLanes; ++lane)
      codes[i + lane] = static_cast<uint8_t>(static_cast<int>(q[lane]));
  }
}

// value = scale * code --------------------------------------------------------

/// Sums over a block for its codes q.
struct ScaleSums {
  float xq = 0, qq = 0;

  float best() const { return xq / qq; }
  /// How much the best scale reduces the sum of squares; qq is above 0.
  float gain() const { return xq * xq / qq; }
};

template <int Count>
QLORA_INLINE ScaleSums sumCodes(const float *x, float inverse, float low,
                                float high) {
  Lanes xq = {}, qq = {};
  for (int i = 0; i < Count; i += kLanes) {
    const Lanes value = load(x + i);
    const Lanes q = codesOf(value, 0, inverse, low, high);
    xq += value * q;
    qq += q * q;
  }
  return {total(xq), total(qq)};
}

/// Returns the best scale, of either sign, for codes in [low, high], where
/// high = -low - 1.
template <int Count>
QLORA_INLINE float findScale(const float *values, float low, float high) {
  const float largest = largestOf<Count>(values);
  if (std::abs(largest) < kZero)
    return 0;
  float x[Count];
  for (int i = 0; i < Count; ++i)
    x[i] = values[i] / largest; // the largest is 1
  ScaleSums best;
  float bestGain = -1;
  const auto tryInverse = [&](float inverse) {
    const ScaleSums sums = sumCodes<Count>(x, inverse, low, high);
    const float gain = sums.qq > 0 ? sums.gain() : 0;
    if (gain > bestGain) {
      best = sums;
      bestGain = gain;
    }
  };
  for (int step = -5; step <= 5; ++step) {
    tryInverse(low - 0.2f * static_cast<float>(step));
    tryInverse(high + 0.2f * static_cast<float>(step));
  }
  for (int round = 0; round < kRounds; ++round) {
    const float before = bestGain;
    tryInverse(1 / best.best());
    if (bestGain <= before)
      break;
  }
  return best.best() * largest;
}

// value = scale * code - least ------------------------------------------------

/// The parameters of one part. Neither is negative.
struct PartFit {
  float scale = 0, least = 0;
};

/// Returns the parameters with the least error for the codes of `inverse` and
/// `least`, and the sum of squares that they explain. `sum` is that of x.
struct Explained {
  PartFit fit;
  float gain = -1;
};

template <int Count>
QLORA_INLINE Explained fitPart(const float *x, float sum, float inverse,
                               float least, float high) {
  Lanes q1 = {}, q2 = {}, xq = {};
  for (int i = 0; i < Count; i += kLanes) {
    const Lanes value = load(x + i);
    const Lanes q = codesOf(value, least, inverse, 0, high);
    q1 += q;
    q2 += q * q;
    xq += value * q;
  }
  const float n = Count, sq = total(q1), sqq = total(q2), sxq = total(xq);
  const float determinant = n * sqq - sq * sq; // an integer, so exact
  if (sqq == 0)
    return {{0, sum < 0 ? -sum / n : 0}, sum < 0 ? sum * sum / n : 0};
  float scale = sxq / sqq, offset = 0; // with a least value of 0
  if (determinant > 0) {
    const float freeOffset = (sqq * sum - sq * sxq) / determinant;
    if (freeOffset < 0) {
      offset = freeOffset;
      scale = (n * sxq - sum * sq) / determinant;
    }
  }
  if (!(scale > 0))
    return {};
  return {{scale, -offset}, scale * sxq + offset * sum};
}

/// Returns the best parameters of a part for codes in [0, high].
template <int Count>
QLORA_INLINE PartFit findPart(const float *values, float high) {
  const float largest = std::abs(largestOf<Count>(values));
  if (largest < kZero)
    return {};
  float x[Count];
  Lanes sums = {};
  float low = 0, top = -1;
  for (int i = 0; i < Count; ++i) {
    x[i] = values[i] / largest;
    low = x[i] < low ? x[i] : low;
    top = x[i] > top ? x[i] : top;
  }
  for (int i = 0; i < Count; i += kLanes)
    sums += load(x + i);
  const float sum = total(sums), range = top - low;
  // Equal negative values: the least value alone is exact.
  if (range == 0)
    return {0, -low * largest};
  Explained best;
  const auto tryFit = [&](float inverse, float least) {
    const Explained fit = fitPart<Count>(x, sum, inverse, least, high);
    if (fit.gain > best.gain)
      best = fit;
  };
  for (int step = -6; step <= 12; ++step)
    tryFit((high + 0.15f * static_cast<float>(step)) / range, -low);
  for (int round = 0; round < kRounds; ++round) {
    const float before = best.gain;
    if (best.fit.scale > 0)
      tryFit(1 / best.fit.scale, best.fit.least);
    if (best.gain <= before)
      break;
  }
  return {best.fit.scale * largest, best.fit.least * largest};
}

/// Returns the squared error of a part with these parameters and codes in
/// [low, high]. `least` is 0 for types without one.
template <int Count>
QLORA_INLINE float partError(const float *x, float scale, float least,
                             float low, float high) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  Lanes sum = {};
  for (int i = 0; i < Count; i += kLanes) {
    const Lanes value = load(x + i);
    const Lanes error =
        value - (codesOf(value, least, inverse, low, high) * scale - least);
    sum += error * error;
  }
  return total(sum);
}

} // namespace qlora::gguf

#endif // QLORA_RUNTIME_GGUF_GGUFSCALES_H
