// SPDX-License-Identifier: MIT

// Chooses a type for each tensor.

#include "runtime/Gguf/GgufMix.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace qlora {

static constexpr GgufMix kMixes[] = {
    {"f32", GgufType::kF32, false, 0},
    {"f16", GgufType::kF16, false, 1},
    {"bf16", GgufType::kBF16, false, 32},
    {"q8_0", GgufType::kQ8_0, false, 7},
    {"q4_0", GgufType::kQ4_0, true, 2},
    {"q4_k_m", GgufType::kQ4_K, true, 15},
    {"q5_k_m", GgufType::kQ5_K, true, 17},
};

std::span<const GgufMix> ggufMixes() { return kMixes; }

StatusOr<const GgufMix *> findGgufMix(std::string_view name) {
  const auto found = std::ranges::find(kMixes, name, &GgufMix::name);
  if (found != std::end(kMixes))
    return found;
  std::vector<std::string_view> names;
  for (const GgufMix &mix : kMixes)
    names.push_back(mix.name);
  return Status::invalid("--outtype {} is no type of GGUF files that qlora "
                         "writes; use one of {}",
                         name, fmt::join(names, ", "));
}

/// Layers whose values and down projections get more bits: the first and the
/// last eighth, and every third one between them.
static bool getsMoreBits(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 ||
         (layer - layers / 8) % 3 == 2;
}

/// Returns N of "blk.N.x"; -1 for other names.
static int64_t layerOf(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layer = -1;
  if (name.starts_with(kPrefix))
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(),
                    layer);
  return layer;
}

static bool isAlwaysF32(std::string_view name, std::span<const int64_t> shape) {
  return shape.size() < 2 || !name.ends_with(".weight") ||
         name.ends_with("_norm.weight") ||
         name.ends_with("ffn_gate_inp.weight") ||
         name == "position_embd.weight";
}

/// Applies the table of GgufMix.h to a matrix.
static GgufType mixedType(const GgufMix &mix, const GgufMixModel &model,
                          std::string_view name, int64_t columns) {
  const auto has = [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  if (name == "output.weight" ||
      (name == "token_embd.weight" && !model.hasOutput))
    return columns % ggufTypeInfo(mix.type).blockValues == 0 ? GgufType::kQ6_K
                                                             : GgufType::kQ8_0;
  if (mix.type == GgufType::kQ4_0) {
    const bool isKeyOrValue =
        has("attn_v.") || has("attn_k.") || has("attn_qkv.");
    return model.experts == 8 && isKeyOrValue ? GgufType::kQ8_0 : mix.type;
  }
  const bool getsMore = getsMoreBits(layerOf(name), model.layers);
  if (has("attn_v.") || has("attn_qkv.")) {
    if (model.experts == 8)
      return GgufType::kQ8_0;
    if (getsMore)
      return GgufType::kQ6_K;
    return model.is70B && mix.type == GgufType::kQ4_K ? GgufType::kQ5_K
                                                      : mix.type;
  }
  if (has("attn_k.") && model.experts == 8)
    return GgufType::kQ8_0;
  if (has("ffn_down") && getsMore)
    return GgufType::kQ6_K;
  if (has("attn_output.") && model.experts == 8 &&
      mix.type == GgufType::kQ4_K)
    return GgufType::kQ5_K;
  return mix.type;
}

/// Returns `type`, or the type for rows without whole blocks of it.
static GgufType fittingType(GgufType type, int64_t columns) {
  const auto fits = [&](GgufType wanted) {
    return columns % ggufTypeInfo(wanted).blockValues == 0;
  };
  if (fits(type))
    return type;
  if (type == GgufType::kQ4_K)
    type = GgufType::kQ5_0;
  else if (type == GgufType::kQ5_K)
    type = GgufType::kQ5_1;
  else if (type == GgufType::kQ6_K)
    type = GgufType::kQ8_0;
  return fits(type) ? type : GgufType::kF16;
}

GgufType chooseGgufType(const GgufMix &mix, const GgufMixModel &model,
                        std::string_view name,
                        std::span<const int64_t> shape) {
  if (isAlwaysF32(name, shape))
    return GgufType::kF32;
  const int64_t columns = shape.back();
  const GgufType type =
      mix.isMixed ? mixedType(mix, model, name, columns) : mix.type;
  return fittingType(type, columns);
}

} // namespace qlora
