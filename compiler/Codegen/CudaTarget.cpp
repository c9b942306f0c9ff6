// SPDX-License-Identifier: MIT

// Compiles each unit for all architectures in parallel.

#include "compiler/Codegen/CudaTarget.h"

#include "runtime/Base/CpuCount.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <tuple>

using namespace qlora;

// Texts of runtime/Kernels/Cuda/Device, generated at build time. The text of
// the project's headers that they include is inserted.
extern const char qloraCudaPrelude[];
extern const char *const qloraCudaUnits[];
extern const size_t qloraCudaUnitCount;

std::string CudaArch::name() const {
  return fmt::format("{}_{}", kind == QLORA_IMAGE_PTX ? "compute" : "sm",
                     number);
}

//===----------------------------------------------------------------------===//
// Options
//===----------------------------------------------------------------------===//

static StatusOr<CudaArch> parseArch(std::string_view name) {
  CudaArch arch;
  std::string_view digits = name;
  if (digits.starts_with("compute_")) {
    arch.kind = QLORA_IMAGE_PTX;
    digits.remove_prefix(8);
  } else if (digits.starts_with("sm_")) {
    digits.remove_prefix(3);
  }
  const char *end = digits.data() + digits.size();
  auto [rest, error] = std::from_chars(digits.data(), end, arch.number);
  if (error != std::errc() || rest != end || arch.number < 80 ||
      arch.number > 999)
    return Status::invalid("--cuda-arch: '{}' is not an architecture of at "
                           "least 80; use for example 80,90 for cubins, or "
                           "compute_80 for PTX",
                           name);
  return arch;
}

StatusOr<std::vector<CudaArch>>
CudaTarget::parseArchs(const std::vector<std::string> &names) {
  std::vector<CudaArch> archs;
  for (const std::string &name : names) {
    QLORA_ASSIGN_OR_RETURN(CudaArch arch, parseArch(name));
    archs.push_back(arch);
  }
  auto key = [](const CudaArch &arch) {
    return std::tuple(arch.kind, arch.number);
  };
  std::ranges::sort(archs, {}, key);
  auto repeated = std::ranges::unique(archs, {}, key);
  archs.erase(repeated.begin(), repeated.end());
  return archs;
}

StatusOr<uint32_t> CudaTarget::parseVersion(std::string_view text) {
  static constexpr std::string_view kWord = "release ";
  const size_t word = text.find(kWord);
  const char *end = text.data() + text.size();
  const char *at = word == text.npos ? end : text.data() + word + kWord.size();
  uint32_t major = 0, minor = 0;
  const char *point = std::from_chars(at, end, major).ptr;
  const bool isRelease =
      major >= 1 && major <= 999 && point != end && *point == '.' &&
      std::from_chars(point + 1, end, minor).ec == std::errc() && minor <= 99;
  if (!isRelease)
    return Status::unavailable(
        "its --version names no CUDA release such as 'release 13.0'; name "
        "another nvcc with --cuda-compiler");
  return 1000 * major + 10 * minor;
}

//===----------------------------------------------------------------------===//
// Compiling
//===----------------------------------------------------------------------===//

/// Maximum concurrent nvcc processes. Each takes up to half a GiB of memory.
static constexpr unsigned kMaxParallel = 16;

namespace {

/// One source, compiled to an image for every architecture.
struct Unit {
  std::string text;
  std::vector<std::string> flags;
};

} // namespace

/// Makes unit 0 from the generated kernels, and one unit per hand-written file.
/// Generated kernels are compiled without contraction, as on the CPU, so that
/// recomputing a value in another kernel gives the same bits. Hand-written
/// kernels fix the rounding in their text where it matters.
static std::vector<Unit> makeUnits(const std::vector<std::string> &functions) {
  std::vector<Unit> units;
  std::vector<std::string> flags = {"-std=c++20", "-O3"};
  if (!functions.empty()) {
    units.push_back({qloraCudaPrelude, flags});
    units.back().flags.push_back("-fmad=false");
    for (const std::string &function : functions)
      units.back().text += "\n" + function;
  }
  for (size_t i = 0; i < qloraCudaUnitCount; ++i)
    units.push_back({qloraCudaUnits[i], flags});
  return units;
}

static std::vector<std::string> flagsFor(const Unit &unit,
                                         const CudaArch &arch) {
  std::vector<std::string> flags = unit.flags;
  flags.push_back("-arch=" + arch.name());
  flags.push_back(arch.kind == QLORA_IMAGE_PTX ? "-ptx" : "-cubin");
  return flags;
}

StatusOr<CompiledKernels>
CudaTarget::compile(const std::vector<std::string> &functions,
                    const ScratchFolder &folder) {
  if (archs.empty())
    return CompiledKernels();
  QLORA_ASSIGN_OR_RETURN(std::string version,
                         readCommand({compiler, "--version"}));
  CompiledKernels kernels;
  auto release = parseVersion(version);
  if (!release.isOk())
    return release.status().withContext(compiler);
  kernels.cudaVersion = *release;
  CachedCommands commands(cache);
  const std::vector<Unit> units = makeUnits(functions);
  for (uint32_t number = 0; number < units.size(); ++number) {
    std::string source = folder.file(fmt::format("unit{}.cu", number));
    QLORA_RETURN_IF_ERROR(writeFile(source, units[number].text));
    for (const CudaArch &arch : archs) {
      std::string image =
          folder.file(fmt::format("unit{}.{}", number, arch.name()));
      Command command = flagsFor(units[number], arch);
      std::string input = fmt::format(
          "{}\n{}\n{}", version, fmt::join(command, " "), units[number].text);
      command.insert(command.begin(), compiler);
      command.insert(command.end(), {"-o", image, source});
      QLORA_RETURN_IF_ERROR(commands.add(input, image, std::move(command)));
      kernels.images.push_back({image, number, arch.kind, arch.number});
    }
  }
  const unsigned parallel =
      std::clamp(static_cast<unsigned>(usableCpus()), 2u, kMaxParallel);
  QLORA_RETURN_IF_ERROR(commands.run(parallel, progress));
  return kernels;
}
