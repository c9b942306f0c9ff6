// SPDX-License-Identifier: MIT

// Checks of a module's header, arenas and parameters.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Module/ModuleLoader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace qlora {

/// No machine has more; keeps sums of offsets from overflowing.
static constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 48;
/// Arenas are mapped, so a page is what alignment can promise.
static constexpr uint32_t kMaxAlignment = 4096;
static constexpr uint32_t kMinBlock = 32;
static constexpr uint32_t kMaxBlock = 4096;

static Status checkVersion(const qlora_module &module) {
  if (module.magic != QLORA_MODULE_MAGIC)
    return damaged("not a module of qloracc: magic {:#x} instead of {:#x}",
                   module.magic, QLORA_MODULE_MAGIC);
  if (module.abi_version != QLORA_ABI_VERSION)
    return Status::error(StatusCode::kUnavailable,
                         "it has format version {}, this qlora-run reads {}; "
                         "compile the model again",
                         module.abi_version, QLORA_ABI_VERSION);
  if (module.module_bytes != sizeof(qlora_module))
    return damaged("its module table has {} bytes instead of {}",
                   module.module_bytes, sizeof(qlora_module));
  return Status::ok();
}

static Status checkJsonText(std::string_view name, const char *text) {
  const auto root = nlohmann::json::parse(text, nullptr, false);
  if (!root.is_object())
    return damaged("{} is not a JSON object", name);
  return Status::ok();
}

Status checkModuleHeader(const qlora_module &m) {
  QLORA_RETURN_IF_ERROR(checkVersion(m));
  if (m.target != QLORA_TARGET_CPU && m.target != QLORA_TARGET_CUDA)
    return damaged("unknown target {}", m.target);
  QLORA_RETURN_IF_ERROR(checkJsonText("config_json", m.config_json));
  return checkJsonText("plan_json", m.plan_json);
}

static Status checkArena(const qlora_arena &arena, std::set<uint32_t> &kinds) {
  if (arena.kind >= QLORA_ARENA_KIND_COUNT)
    return damaged("unknown kind {}", arena.kind);
  if (!kinds.insert(arena.kind).second)
    return damaged("a second {} arena", arenaKindName(arena.kind));
  if (!std::has_single_bit(arena.alignment) || arena.alignment > kMaxAlignment)
    return damaged("alignment {} is not a power of two up to {}",
                   arena.alignment, kMaxAlignment);
  if (arena.bytes > kMaxArenaBytes)
    return damaged("{} bytes are more than any machine has", arena.bytes);
  return Status::ok();
}

Status checkArenas(const qlora_module &m) {
  std::set<uint32_t> kinds;
  uint64_t bytes[QLORA_ARENA_KIND_COUNT] = {};
  for (uint32_t i = 0; i < m.arena_count; ++i) {
    if (Status status = checkArena(m.arenas[i], kinds); !status.isOk())
      return status.withContext(fmt::format("arena {}", i));
    bytes[m.arenas[i].kind] = m.arenas[i].bytes;
  }
  const uint64_t trainable = bytes[QLORA_ARENA_TRAINABLE];
  if (kinds.contains(QLORA_ARENA_GRADIENT) &&
      bytes[QLORA_ARENA_GRADIENT] < trainable)
    return damaged("the gradient arena has {} bytes, the trainable one {}",
                   bytes[QLORA_ARENA_GRADIENT], trainable);
  for (uint32_t kind : {QLORA_ARENA_MOMENT1, QLORA_ARENA_MOMENT2})
    if (kinds.contains(kind) && bytes[kind] != trainable)
      return damaged("the {} arena has {} bytes, the trainable one {}",
                     arenaKindName(kind), bytes[kind], trainable);
  if (kinds.contains(QLORA_ARENA_ROUNDED) &&
      2 * bytes[QLORA_ARENA_ROUNDED] != trainable)
    return damaged("the rounded arena has {} bytes, the trainable one {}",
                   bytes[QLORA_ARENA_ROUNDED], trainable);
  return Status::ok();
}

/// Elements of a shape, or why there is no such number.
static StatusOr<uint64_t> countElements(const qlora_parameter &p) {
  if (p.rank > QLORA_MAX_RANK)
    return damaged("rank {} is more than {}", p.rank, QLORA_MAX_RANK);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < p.rank; ++i) {
    if (p.shape[i] <= 0)
      return damaged("dimension {} is {}", i, p.shape[i]);
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(p.shape[i]),
                               &elements) ||
        elements > kMaxArenaBytes)
      return damaged("its shape has too many elements");
  }
  return elements;
}

static Status checkQuantization(const qlora_parameter &p) {
  if (p.quantization > QLORA_QUANTIZATION_NF4_TURNED)
    return damaged("unknown quantization {}", p.quantization);
  if (p.double_quant > 1)
    return damaged("double_quant is {}", p.double_quant);
  if (p.quantization == QLORA_QUANTIZATION_NONE) {
    if (p.dtype == QLORA_DTYPE_NF4 || p.block != 0 || p.double_quant != 0)
      return damaged("not quantised, but dtype {}, block {}, double_quant {}",
                     p.dtype, p.block, p.double_quant);
    return Status::ok();
  }
  if (p.rank < 1)
    return damaged("quantised, but a scalar");
  if (p.quantization == QLORA_QUANTIZATION_NF4_TURNED && p.rank != 2)
    return damaged("turned, but of {} dimensions", p.rank);
  if (p.role != QLORA_ROLE_FROZEN)
    return damaged("quantised, but its role is {}", p.role);
  if (!std::has_single_bit(p.block) || p.block < kMinBlock ||
      p.block > kMaxBlock)
    return damaged("block {} is not a power of two in {}..{}", p.block,
                   kMinBlock, kMaxBlock);
  return Status::ok();
}

/// Role, init and dtype must make sense together.
static Status checkRole(const qlora_module &m, const qlora_parameter &p) {
  if (p.role > QLORA_ROLE_TRAINABLE)
    return damaged("unknown role {}", p.role);
  if (p.init > QLORA_INIT_GAUSSIAN)
    return damaged("unknown init {}", p.init);
  const bool isFrozen = p.role == QLORA_ROLE_FROZEN;
  const uint32_t kind = m.arenas[p.arena].kind;
  if (isFrozen ? !isFrozenArena(kind) : kind != QLORA_ARENA_TRAINABLE)
    return damaged("role {} in the {} arena", p.role,
                   arenaKindName(m.arenas[p.arena].kind));
  if (p.dtype > QLORA_DTYPE_F16 && !(isFrozen && p.dtype == QLORA_DTYPE_NF4))
    return damaged("dtype {} is no dtype of a weight", p.dtype);
  if (!isFrozen && p.dtype != QLORA_DTYPE_F32)
    return damaged("trained, but dtype {} is not f32", p.dtype);
  const bool fromFile = p.init == QLORA_INIT_FILE;
  if (fromFile == (p.role == QLORA_ROLE_ADAPTER))
    return damaged("role {} with init {}", p.role, p.init);
  if (p.init == QLORA_INIT_KAIMING && p.rank < 2)
    return damaged("kaiming init needs two dimensions, not {}", p.rank);
  if (p.init == QLORA_INIT_GAUSSIAN && p.rank < 1)
    return damaged("gaussian init needs a dimension");
  return Status::ok();
}

static Status checkParameter(const qlora_module &m, const qlora_parameter &p) {
  if (p.arena >= m.arena_count)
    return damaged("arena {} of {}", p.arena, m.arena_count);
  QLORA_RETURN_IF_ERROR(checkRole(m, p));
  QLORA_RETURN_IF_ERROR(checkQuantization(p));
  if (p.init == QLORA_INIT_FILE && p.file_dtype >= QLORA_DTYPE_COUNT)
    return damaged("unknown file_dtype {}", p.file_dtype);
  QLORA_ASSIGN_OR_RETURN(uint64_t elements, countElements(p));
  const bool isNF4 = p.dtype == QLORA_DTYPE_NF4;
  const uint64_t expected =
      isNF4 ? NF4Layout::of(static_cast<int64_t>(elements), p.block,
                            p.double_quant != 0)
                  .bytes
            : elements * dtypeBits(static_cast<qlora_dtype>(p.dtype)) / 8;
  if (p.bytes != expected)
    return damaged("{} bytes instead of {}", p.bytes, expected);
  const uint64_t arenaBytes = m.arenas[p.arena].bytes;
  if (p.offset > arenaBytes || p.bytes > arenaBytes - p.offset)
    return damaged("bytes {}+{} of an arena of {}", p.offset, p.bytes,
                   arenaBytes);
  if (p.offset % (isNF4 ? 64 : 4) != 0)
    return damaged("offset {} is not aligned", p.offset);
  return Status::ok();
}

static Status checkOverlap(const qlora_module &m) {
  std::vector<const qlora_parameter *> sorted;
  for (uint32_t i = 0; i < m.parameter_count; ++i)
    sorted.push_back(&m.parameters[i]);
  std::sort(sorted.begin(), sorted.end(), [](const auto *a, const auto *b) {
    return std::tie(a->arena, a->offset) < std::tie(b->arena, b->offset);
  });
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i]->arena == sorted[i - 1]->arena &&
        sorted[i]->offset < sorted[i - 1]->offset + sorted[i - 1]->bytes)
      return damaged("parameters '{}' and '{}' share bytes",
                     sorted[i - 1]->name, sorted[i]->name);
  return Status::ok();
}

Status checkParameters(const qlora_module &m) {
  std::set<std::string_view> names;
  for (uint32_t i = 0; i < m.parameter_count; ++i) {
    const qlora_parameter &p = m.parameters[i];
    if (p.name[0] == '\0')
      return damaged("parameter {} has no name", i);
    if (!names.insert(p.name).second)
      return damaged("two parameters are called '{}'", p.name);
    if (Status status = checkParameter(m, p); !status.isOk())
      return status.withContext(fmt::format("parameter '{}'", p.name));
  }
  return checkOverlap(m);
}

/// Words of the "flags" (x86) or "Features" (Arm) line of the first CPU.
static std::set<std::string> readCpuFeatures() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with("flags") && !line.starts_with("Features"))
      continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> features;
    for (std::string word; words >> word;)
      features.insert(word);
    return features;
  }
  return {};
}

/// kUnavailable when this CPU lacks one of the comma-separated features of a
/// module; names the missing ones.
static Status checkCpuFeatures(const char *needed) {
  const std::set<std::string> present = readCpuFeatures();
  std::istringstream list(needed);
  std::vector<std::string> missing;
  for (std::string feature; std::getline(list, feature, ',');)
    if (!feature.empty() && !present.contains(feature))
      missing.push_back(feature);
  if (missing.empty())
    return Status::ok();
  return Status::error(StatusCode::kUnavailable,
                       "it was compiled for instructions that this CPU lacks: "
                       "{}; compile the model on this machine",
                       fmt::join(missing, ", "));
}

Status checkModule(const qlora_module &m) {
  QLORA_RETURN_IF_ERROR(checkModuleHeader(m));
  QLORA_RETURN_IF_ERROR(checkArenas(m));
  QLORA_RETURN_IF_ERROR(checkParameters(m));
  QLORA_RETURN_IF_ERROR(checkImages(m));
  QLORA_RETURN_IF_ERROR(checkKernels(m));
  QLORA_RETURN_IF_ERROR(checkCommands(m));
  QLORA_RETURN_IF_ERROR(checkEntries(m));
  return checkCpuFeatures(m.cpu_features);
}

} // namespace qlora
