// SPDX-License-Identifier: MIT

// A counter-based generator from splitmix64, and uniform and normal draws.

#include "runtime/Weights/ParameterInit.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

namespace qlora {

/// Finaliser of splitmix64 (Steele, Lea, Flood, 2014): a bijection whose every
/// output bit depends on every input bit.
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static uint64_t initStream(uint64_t seed, const char *name) {
  uint64_t hash = 0xcbf29ce484222325u; // FNV-1a
  for (; *name; ++name)
    hash = (hash ^ static_cast<uint8_t>(*name)) * 0x100000001b3u;
  return mix(mix(seed) ^ hash);
}

/// Returns element `index` of a stream, uniform in [0, 1) with 53 bits.
static double initUniform(uint64_t stream, uint64_t index) {
  const uint64_t bits = mix(stream + (index + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Box-Muller transform; each element draws two uniform values.
static double initNormal(uint64_t stream, uint64_t index) {
  const double u = 1.0 - initUniform(stream, 2 * index); // never 0
  const double angle =
      2.0 * std::numbers::pi * initUniform(stream, 2 * index + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}

void drawNormal(uint64_t seed, const char *name, std::span<float> out) {
  const uint64_t stream = initStream(seed, name);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(initNormal(stream, i));
}

void initParameter(const qlora_parameter &parameter, uint64_t seed,
                   uint64_t first, std::span<float> out) {
  const uint64_t stream = initStream(seed, parameter.name);
  const uint64_t count = out.size();
  switch (parameter.init) {
  case QLORA_INIT_KAIMING: {
    const double bound =
        1.0 / std::sqrt(static_cast<double>(parameter.shape[1]));
    for (uint64_t i = 0; i < count; ++i)
      out[i] = static_cast<float>((2 * initUniform(stream, first + i) - 1) *
                                  bound);
    return;
  }
  case QLORA_INIT_GAUSSIAN:
  case QLORA_INIT_NORMAL: {
    const double deviation =
        parameter.init == QLORA_INIT_NORMAL
            ? 1.0
            : 1.0 / static_cast<double>(parameter.shape[0]);
    for (uint64_t i = 0; i < count; ++i)
      out[i] = static_cast<float>(initNormal(stream, first + i) * deviation);
    return;
  }
  default:
    assert((parameter.init == QLORA_INIT_ZERO ||
            parameter.init == QLORA_INIT_COMPUTED) &&
           "this init reads a file");
    std::ranges::fill(out, 0.0F);
  }
}

} // namespace qlora
