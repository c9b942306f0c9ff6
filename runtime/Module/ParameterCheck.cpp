// SPDX-License-Identifier: MIT

// Finds compiler bugs in the table of parameters.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ModuleLoader.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

namespace qlora {

/// Checks that StoredLayout can describe a quantized parameter.
static Status checkFormat(const qlora_parameter &p) {
  const StoredFormat *format = storedFormat(p.format);
  if (!format || (storedFormat(p.dtype) && p.dtype != p.format))
    return damaged("dtype {} as format {}", p.dtype, p.format);
  const bool isRow = format->takesRows && p.rank > 0 &&
                     p.rank <= QLORA_MAX_RANK && p.block == p.shape[p.rank - 1];
  if (p.role != QLORA_ROLE_FROZEN || (!isRow && !std::has_single_bit(p.block)))
    return damaged("quantized, but its role is {} and its block {}", p.role,
                   p.block);
  // In slices, scales are decoded unless the format forbids that.
  const bool isDecoded =
      p.slices != 0 && format->codedScales == CodedScales::kByChoice;
  if (!format->takesDoubleQuant(p.double_quant != 0) ||
      (p.double_quant != 0 && p.double_quant != (isDecoded ? 2 : 1)))
    return damaged("{} with double_quant {} and {} slices", format->name,
                   p.double_quant, p.slices);
  return Status::ok();
}

/// Checks that role, init, dtype and quantization are consistent.
static Status checkRole(const qlora_module &m, const qlora_parameter &p) {
  const bool isFrozen = p.role == QLORA_ROLE_FROZEN;
  const uint32_t kind = m.arenas[p.arena].kind;
  const bool isState = p.role == QLORA_ROLE_STATE;
  if (isFrozen  ? !isFrozenArena(kind)
      : isState ? kind != QLORA_ARENA_STATE
                : kind != QLORA_ARENA_TRAINABLE)
    return damaged("role {} in the {} arena", p.role, arenaKindName(kind));
  if (!isFrozen && p.dtype != QLORA_DTYPE_F32 &&
      !(isState && p.dtype == QLORA_DTYPE_U8))
    return damaged("trained, but dtype {} is not f32", p.dtype);
  if ((p.init == QLORA_INIT_FILE) == (isState || p.role == QLORA_ROLE_ADAPTER))
    return damaged("role {} with init {}", p.role, p.init);
  // A state with another init than zero is computed from the seed and the
  // state's name. Such a state is not sharded.
  if (isState && p.init != QLORA_INIT_ZERO &&
      (p.init != QLORA_INIT_NORMAL || p.dtype != QLORA_DTYPE_F32 ||
       p.piece != 0))
    return damaged("a state with init {}", p.init);
  if (p.quantization == QLORA_QUANTIZATION_NONE &&
      (storedFormat(p.dtype) || p.block != 0 || p.double_quant != 0))
    return damaged("not quantized, but dtype {}, block {}, double_quant {}",
                   p.dtype, p.block, p.double_quant);
  if (p.quantization != QLORA_QUANTIZATION_NONE)
    QLORA_RETURN_IF_ERROR(checkFormat(p));
  const int64_t rows =
      p.shape[0] * (p.slices != 0 && p.slice_dimension == 0 ? p.slices : 1);
  if (p.parts != 0 && ((p.quantization != QLORA_QUANTIZATION_ON_LOAD &&
                        p.quantization != QLORA_QUANTIZATION_STORED &&
                        p.piece == 0 && p.slices == 0) ||
                       p.rank == 0 || rows % p.parts != 0))
    return damaged("{} parts, but quantization {} and {} dimensions", p.parts,
                   p.quantization, p.rank);
  if (p.quantization == QLORA_QUANTIZATION_TURNED && p.rank != 2)
    return damaged("transposed, but of {} dimensions", p.rank);
  return Status::ok();
}

/// Whether an arena is sharded by ranges that hold several tensors, not tensor
/// by tensor. A tensor's `offset` is then the offset of its range's shard.
static bool hasRanges(uint32_t kind) {
  return kind == QLORA_ARENA_STATE || kind == QLORA_ARENA_TRAINABLE;
}

/// Checks an fsdp shard.
static Status checkPiece(const qlora_module &m, const qlora_parameter &p) {
  const uint32_t kind = m.arenas[p.arena].kind;
  const bool isRange = hasRanges(kind);
  const uint64_t ranks = kind == QLORA_ARENA_TRAINABLE ? m.mesh.zero2
                         : kind == QLORA_ARENA_STATE
                             ? std::max(m.mesh.zero1, m.mesh.zero2)
                             : m.mesh.fsdp;
  const uint64_t end = p.bytes + p.first;
  if (p.piece == 0 && p.first == 0)
    return Status::ok();
  if (p.piece % QLORA_PIECE_ALIGNMENT != 0 || end < p.bytes ||
      p.piece < (end + ranks - 1) / ranks || ranks == 1 ||
      (isRange ? p.first % (dtypeBits(static_cast<qlora_dtype>(p.dtype)) / 8)
               : p.first) != 0)
    return damaged("{} pieces of {} bytes, in the {} arena", ranks, p.piece,
                   arenaKindName(kind));
  return Status::ok();
}

/// Maximum length of a dimension, so that no product overflows.
static constexpr int64_t kMostLength = int64_t{1} << 40;

/// Checks a slice. Segment lengths are those of the complete tensor.
static Status checkSlice(const qlora_module &m, const qlora_parameter &p) {
  if (p.slices == 0)
    return p.slice_dimension == 0 && p.segments == 0 && p.first_segment == 0
               ? Status::ok()
               : damaged("segments, but no slices");
  const MeshAxis *axis = axisWith(m.mesh, kSlices);
  if (!axis || p.slices != m.mesh.*axis->ranks || p.role != QLORA_ROLE_FROZEN ||
      (p.piece != 0 && slicesOverPieceRanks(m.mesh)) ||
      p.slice_dimension >= p.rank || p.segments == 0 ||
      !isRange(p.first_segment, p.segments, m.constant_count))
    return damaged("{} slices of {} segments in dimension {}", p.slices,
                   p.segments, p.slice_dimension);
  int64_t left = p.shape[p.slice_dimension];
  for (uint32_t i = 0; i < p.segments; ++i) {
    const int64_t length = m.constants[p.first_segment + i];
    if (length <= 0 || length > kMostLength || length % p.slices != 0 ||
        length / p.slices > left)
      return damaged("a segment of {} in {} slices", length, p.slices);
    left -= length / p.slices;
  }
  return left == 0 ? Status::ok()
                   : damaged("segments that do not cover {} of {}", left,
                             p.shape[p.slice_dimension]);
}

static Status checkParameter(const qlora_module &m, const qlora_parameter &p) {
  if (p.arena >= m.arena_count)
    return damaged("arena {} of {}", p.arena, m.arena_count);
  if (p.rank > QLORA_MAX_RANK)
    return damaged("{} dimensions", p.rank);
  QLORA_RETURN_IF_ERROR(checkSlice(m, p));
  QLORA_RETURN_IF_ERROR(checkRole(m, p));
  int64_t elements = 1;
  for (uint32_t i = 0; i < p.rank; ++i)
    elements *= p.shape[i];
  if (elements <= 0)
    return damaged("its shape has {} elements", elements);
  const auto dtype = static_cast<qlora_dtype>(p.dtype);
  const bool isStored = storedFormat(dtype);
  const uint64_t expected =
      isStored ? StoredLayout::of(dtype, elements, p.block, p.double_quant == 1)
                     .bytes
               : static_cast<uint64_t>(elements) * dtypeBits(dtype) / 8;
  if (p.bytes != expected)
    return damaged("{} bytes instead of {}", p.bytes, expected);
  QLORA_RETURN_IF_ERROR(checkPiece(m, p));
  const uint64_t arenaBytes = m.arenas[p.arena].bytes;
  if (!isRange(p.offset, arenaBytesOf(p), arenaBytes) ||
      p.offset % (isStored || p.piece ? 64 : dtypeBits(dtype) / 8) != 0)
    return damaged("bytes {}+{} of an arena of {}", p.offset, arenaBytesOf(p),
                   arenaBytes);
  return Status::ok();
}

/// Whether `next`, sorted after `one`, begins before the end of `one`. In a
/// sharded range, all tensors have the range's offset; `first` orders them.
static bool shareBytes(const qlora_module &m, const qlora_parameter &one,
                       const qlora_parameter &next) {
  if (one.arena != next.arena)
    return false;
  if (one.piece != 0 && one.offset == next.offset &&
      hasRanges(m.arenas[one.arena].kind))
    return one.piece != next.piece || next.first < one.first + one.bytes;
  return next.offset < one.offset + arenaBytesOf(one);
}

Status checkParameters(const qlora_module &m) {
  std::set<std::string_view> names;
  std::vector<const qlora_parameter *> sorted;
  for (uint32_t i = 0; i < m.parameter_count; ++i) {
    const qlora_parameter &p = m.parameters[i];
    if (!names.insert(p.name).second)
      return damaged("two parameters are called '{}'", p.name);
    if (Status status = checkParameter(m, p); !status.isOk())
      return status.withContext(fmt::format("parameter '{}'", p.name));
    sorted.push_back(&p);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto *a, const auto *b) {
    return std::tie(a->arena, a->offset, a->first) <
           std::tie(b->arena, b->offset, b->first);
  });
  for (size_t i = 1; i < sorted.size(); ++i)
    if (shareBytes(m, *sorted[i - 1], *sorted[i]))
      return damaged("parameters '{}' and '{}' share bytes",
                     sorted[i - 1]->name, sorted[i]->name);
  return Status::ok();
}

} // namespace qlora
