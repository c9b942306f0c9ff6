// SPDX-License-Identifier: MIT

// RoPE as in transformers' modeling_rope_utils.py. PyTorch evaluates number /
// tensor as reciprocal(tensor) * number, which rounds twice. So does this code.

#include "frontend/Rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

namespace qlora {

/// Returns number / x with PyTorch's rounding.
static float divideNumber(double number, float x) {
  return (1.0f / x) * static_cast<float>(number);
}

/// Llama 3.1: multiplies wavelengths much longer than the original context by
/// `factor`, keeps short ones, and interpolates between them.
static float stretchLlama3(const RopeConfig &rope, float frequency) {
  const double context = static_cast<double>(rope.originalMaxPositions);
  const auto lowWavelength = static_cast<float>(context / rope.lowFreqFactor);
  const auto highWavelength = static_cast<float>(context / rope.highFreqFactor);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = divideNumber(2 * std::numbers::pi, frequency);
  if (wavelength > lowWavelength)
    return frequency / factor;
  if (wavelength < highWavelength)
    return frequency;
  const float smooth =
      (divideNumber(context, wavelength) -
       static_cast<float>(rope.lowFreqFactor)) /
      static_cast<float>(rope.highFreqFactor - rope.lowFreqFactor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

/// YaRN (Peng et al., 2023): keeps column pairs with more than betaFast
/// rotations in the original context. Multiplies the wavelengths of pairs with
/// fewer than betaSlow rotations by `factor`. Interpolates between them.
static void stretchYarn(const RopeConfig &rope,
                        std::span<const float> wavelengths,
                        std::vector<float> &frequencies) {
  const auto width = static_cast<double>(rope.rotated);
  const auto context = static_cast<double>(rope.originalMaxPositions);
  const auto columnOf = [&](double turns) {
    return width * std::log(context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = columnOf(rope.betaFast), high = columnOf(rope.betaSlow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high)
    high += 0.001;
  for (size_t i = 0; i < wavelengths.size(); ++i) {
    const float column = (static_cast<float>(i) - static_cast<float>(low)) /
                         static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(column, 0.0f, 1.0f);
    const float stretched =
        1.0f / (static_cast<float>(rope.factor) * wavelengths[i]);
    frequencies[i] = stretched * (1.0f - kept) + frequencies[i] * kept;
  }
}

/// Returns theta^(2i / rotated) for each column pair i: the number of tokens in
/// which the pair rotates by one radian.
static std::vector<float> wavelengthsOf(const RopeConfig &rope) {
  std::vector<float> wavelengths;
  for (int64_t i = 0; i < rope.rotated; i += 2)
    wavelengths.push_back(
        std::pow(static_cast<float>(rope.theta),
                 static_cast<float>(i) / static_cast<float>(rope.rotated)));
  return wavelengths;
}

/// longrope: stretches each wavelength by its own factor. Ding et al., 2024.
static std::vector<float> stretchEach(const RopeConfig &rope,
                                      std::span<const double> factors) {
  std::vector<float> frequencies = wavelengthsOf(rope);
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1.0f / (static_cast<float>(factors[i]) * frequencies[i]);
  return frequencies;
}

std::vector<float> inverseFrequencies(const RopeConfig &rope) {
  if (rope.kind == RopeKind::kLongRope)
    return stretchEach(rope, rope.shortFactors);
  const std::vector<float> wavelengths = wavelengthsOf(rope);
  std::vector<float> frequencies;
  for (float wavelength : wavelengths) {
    float frequency = 1.0f / wavelength;
    if (rope.kind == RopeKind::kLinear)
      frequency /= static_cast<float>(rope.factor);
    if (rope.kind == RopeKind::kLlama3)
      frequency = stretchLlama3(rope, frequency);
    frequencies.push_back(frequency);
  }
  if (rope.kind == RopeKind::kYarn)
    stretchYarn(rope, wavelengths, frequencies);
  return frequencies;
}

std::vector<float> longFrequencies(const RopeConfig &rope) {
  return rope.kind == RopeKind::kLongRope ? stretchEach(rope, rope.longFactors)
                                          : std::vector<float>();
}

} // namespace qlora
