// SPDX-License-Identifier: MIT

// Computes the key of a base, and checks whether the base may be cached.

#include "runtime/Weights/QuantizedBase.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/Base/ContentHash.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Weights/FileWeight.h"

namespace qlora {

/// Raise this version if a change of loading gives a weight other bytes but
/// does not change quantizedSample().
constexpr const char *kBaseVersion = "qlora base 1";

static bool isInFrozenArena(const LoadedModule &module,
                            const qlora_parameter &parameter) {
  return module.arenas()[parameter.arena].kind == QLORA_ARENA_FROZEN;
}

bool quantizesBase(const LoadedModule &module) {
  const auto parameters = module.parameters();
  return std::any_of(
      parameters.begin(), parameters.end(),
      [&](const qlora_parameter &parameter) {
        return isInFrozenArena(module, parameter) &&
               (parameter.quantization == QLORA_QUANTIZATION_ON_LOAD ||
                parameter.quantization == QLORA_QUANTIZATION_TURNED);
      });
}

/// Quantizes values of many magnitudes to every format. The result changes with
/// the quantizer, so a change of the quantizer needs no new kBaseVersion.
static std::string quantizedSample() {
  // More than 256 blocks, for two scales of scales, and a partial last block.
  constexpr int64_t kElements = 64 * 300 + 7;
  std::vector<float> elements(kElements);
  for (int64_t i = 0; i < kElements; ++i)
    elements[static_cast<size_t>(i)] =
        std::ldexp(static_cast<float>(i * 40503 % 65521 - 32760),
                   static_cast<int>(i / 64 % 24) - 32);
  std::string bytes;
  for (const StoredFormat &format : kStoredFormats) {
    if (!isQuantizer(format.dtype))
      continue;
    const auto layout = StoredLayout::of(
        format.dtype, kElements, 64, format.codedScales != CodedScales::kNever);
    const size_t begin = bytes.size();
    bytes.resize(begin + static_cast<size_t>(layout.bytes));
    quantizeStored(layout, elements.data(),
                   reinterpret_cast<uint8_t *>(bytes.data() + begin));
  }
  return bytes;
}

static std::string layoutText(const qlora_parameter &parameter) {
  const std::span<const int64_t> shape(parameter.shape, parameter.rank);
  return fmt::format("{} {} {} {} {} {} {} {} {}", formatShape(shape),
                     parameter.file_dtype, parameter.dtype,
                     parameter.quantization, parameter.format, parameter.block,
                     parameter.double_quant, parameter.offset, parameter.bytes);
}

uint32_t holdersOf(const LoadedModule &module) {
  return static_cast<uint32_t>(baseHolders(module.table().mesh));
}

static std::string sliceText(const LoadedModule &module,
                             const qlora_parameter &parameter) {
  const std::span<const int64_t> segments(
      module.table().constants + parameter.first_segment, parameter.segments);
  return fmt::format("{} {} {}", parameter.slices, parameter.slice_dimension,
                     formatShape(segments));
}

/// Adds the shard to the hash. A base that is not sharded adds nothing, so its
/// key stays the same as in earlier versions.
static void addPiece(const LoadedModule &module, uint32_t piece,
                     ContentHash &hash) {
  const uint32_t holders = holdersOf(module);
  if (holders <= 1)
    return;
  hash.add(fmt::format("piece {} of {}", piece, holders));
  for (const qlora_parameter &parameter : module.parameters())
    if (isInFrozenArena(module, parameter)) {
      hash.add(fmt::format("{}", parameter.piece));
      if (parameter.slices != 0)
        hash.add(sliceText(module, parameter));
    }
}

static void addFile(const std::string &name, const SafetensorsFile &file,
                    ContentHash &hash) {
  const FileIdentity &identity = file.identity();
  hash.add(name);
  hash.add(fmt::format("{} {} {} {} {}", identity.bytes, identity.inode,
                       identity.modified, identity.changed,
                       file.tensors().size()));
  for (const SafetensorsTensor &tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(fmt::format("{} {} {} {}", safetensorsDtypeName(tensor.dtype),
                         formatShape(tensor.shape), tensor.begin, tensor.end));
  }
}

StatusOr<std::string> baseKey(const LoadedModule &module,
                              const ModelFiles &model, uint32_t piece) {
  ContentHash hash;
  hash.add(kBaseVersion);
  hash.add(quantizedSample());
  hash.add(model.quantization());
  hash.add(fmt::format("{}", module.arenaBytes(QLORA_ARENA_FROZEN)));
  for (const qlora_parameter &parameter : module.parameters()) {
    if (!isInFrozenArena(module, parameter))
      continue;
    hash.add(parameter.name);
    for (const char *name : fileNamesOf(parameter))
      hash.add(name);
    hash.add(layoutText(parameter));
  }
  addPiece(module, piece, hash);
  for (const auto &[name, file] : model.all())
    addFile(name, file, hash);
  for (const std::string &tensor : model.tensorNames()) {
    QLORA_ASSIGN_OR_RETURN(std::string file, model.fileOf(tensor));
    hash.add(tensor);
    hash.add(file);
  }
  return hash.finish();
}

Status checkSettled(const ModelFiles &model) {
  for (const auto &[name, file] : model.all())
    if (!file.identity().isSettled())
      return Status::unavailable(
          "'{}' was changed less than two seconds ago, and may still change",
          file.path());
  return Status::ok();
}

Status checkUnchanged(const ModelFiles &model) {
  for (const auto &[name, file] : model.all()) {
    QLORA_ASSIGN_OR_RETURN(FileIdentity now, FileIdentity::at(file.path()));
    if (now != file.identity())
      return Status::unavailable("'{}' was changed while it was read",
                                 file.path());
  }
  return Status::ok();
}

} // namespace qlora
