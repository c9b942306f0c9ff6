// SPDX-License-Identifier: MIT

// Reads E4M3 weights. `weight_scale_inv` (DeepSeek, Qwen3, transformers) and
// `weight_scale` (compressed-tensors, FBGEMM) mean the same despite their
// names: a code is multiplied by the scale. The shape of the scales determines
// which elements share a scale. In memory each row has its own scales.

#include "runtime/Weights/StoredReaders.h"

#include <numeric>

#include "runtime/Kernels/Rows.h"

namespace qlora {

/// Rows and columns of the square tiles that share a scale in published models.
static constexpr int64_t kTile = 128;

StatusOr<LoadScale> scaleLoader(const ModelFiles::Entry &scales) {
  switch (scales.tensor->dtype) {
  case SafetensorsDtype::kF32:
    return &qlora_load_f32;
  case SafetensorsDtype::kBF16:
    return &qlora_load_bf16;
  case SafetensorsDtype::kF16:
    return &qlora_load_f16;
  default:
    return damaged(
        "'{}': tensor '{}' is {}; expected scales of F32, BF16 or F16",
        scales.file->path(), scales.tensor->name,
        safetensorsDtypeName(scales.tensor->dtype));
  }
}

namespace {
/// Size of the elements that share a scale.
struct Tile {
  int64_t rows = 0, columns = 0;
};
} // namespace

static int64_t dividedUp(int64_t count, int64_t each) {
  return (count + each - 1) / each;
}

/// Returns the size of the tiles that share a scale, given the shape of the
/// scales; nothing if this shape does not fit the matrix.
static std::optional<Tile> tileOf(const std::vector<int64_t> &scales,
                                  int64_t rows, int64_t columns) {
  const int64_t count = std::accumulate(scales.begin(), scales.end(),
                                        int64_t(1), std::multiplies<>());
  if (count == 1)
    return Tile{rows, columns};
  if (scales == std::vector{rows} || scales == std::vector<int64_t>{rows, 1})
    return Tile{1, columns};
  if (scales == std::vector{dividedUp(rows, kTile), dividedUp(columns, kTile)})
    return Tile{kTile, std::min(kTile, columns)};
  return std::nullopt;
}

/// Writes a scale for each block of each row, copied from the block's tile.
static void spread(LoadScale load, const uint8_t *scales, Tile tile,
                   int64_t rows, int64_t columns, int64_t block, float *out) {
  const int64_t tilesOfRow = dividedUp(columns, tile.columns);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; column += block)
      *out++ = load(scales, row / tile.rows * tilesOfRow +
                                column / tile.columns);
}

Status describeFp8(const ModelFiles &model, const std::string &weight,
                   const StoredFormat &format, StoredDescription &result) {
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry codes, model.get(weight));
  const std::vector<int64_t> &shape = codes.tensor->shape;
  if (shape.size() != 2 || shape[0] <= 0 || shape[1] <= 0)
    return damaged("'{}': tensor '{}' has shape {}; expected a matrix",
                   codes.file->path(), weight, formatShape(shape));
  const int64_t rows = shape[0], columns = shape[1];
  const std::string module = moduleOfWeight(weight);
  std::string name = module + ".weight_scale_inv";
  if (!model.find(name).tensor)
    name = module + ".weight_scale";
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(name));
  QLORA_ASSIGN_OR_RETURN(const LoadScale load, scaleLoader(entry));
  const std::vector<int64_t> &scales = entry.tensor->shape;
  const std::optional<Tile> tile = tileOf(scales, rows, columns);
  if (!tile)
    return damaged("'{}': tensor '{}' has shape {}, but '{}' {}; expected one "
                   "scale, {} for rows, or {}x{} for blocks of {}",
                   entry.file->path(), name, formatShape(scales), weight,
                   formatShape(shape), rows, dividedUp(rows, kTile),
                   dividedUp(columns, kTile), kTile);
  // The block size must also divide the last tile of a row, if it is narrower.
  const int64_t block =
      tile->columns == columns ? columns : std::gcd(columns, tile->columns);
  if (block != columns && !format.takesPower(block))
    return damaged("'{}': tensor '{}' has {} columns in blocks of {}; "
                   "expected a multiple of {}",
                   codes.file->path(), weight, columns, kTile,
                   format.leastBlock);
  result.shape = shape;
  result.layout = StoredLayout::of(format.dtype, rows * columns, block, false);
  const StoredLayout layout = result.layout;
  const auto place = [=](std::span<uint8_t> bytes, uint8_t *out) {
    spread(load, bytes.data(), *tile, rows, columns, block,
           reinterpret_cast<float *>(out + layout.scales));
    return Status::ok();
  };
  result.parts = {{weight, SafetensorsDtype::kF8E4M3, shape, layout.packed, {}},
                  {name, entry.tensor->dtype, scales, -1, place}};
  // Scales for activations are ignored: qlora does not quantize activations.
  for (const char *unread : {".input_scale", ".activation_scale"})
    if (const ModelFiles::Entry found = model.find(module + unread);
        found.tensor)
      result.parts.push_back({module + unread, found.tensor->dtype,
                              found.tensor->shape, -1, {}});
  return Status::ok();
}

} // namespace qlora
