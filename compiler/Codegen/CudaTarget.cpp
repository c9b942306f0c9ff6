// SPDX-License-Identifier: MIT

// Compiles the units that are not cached, for all architectures in parallel.

#include "compiler/Codegen/CudaTarget.h"

#include "runtime/Base/CpuCount.h"
#include "runtime/Base/UserFiles.h"

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
    return Status::error(
        StatusCode::kUnavailable,
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

namespace {

/// Collects the images, and the commands for those that are not cached.
class ImageBuilder {
public:
  ImageBuilder(const KernelCache &cache, const std::string &compiler,
               const std::string &version, const ScratchFolder &folder,
               const ProgressListener &progress)
      : cache(cache), compiler(compiler), version(version), folder(folder),
        progress(progress) {}

  Status add(const Unit &unit, uint32_t number, const CudaArch &arch);
  StatusOr<std::vector<DeviceImage>> run();

private:
  const KernelCache &cache;
  const std::string &compiler, &version;
  const ScratchFolder &folder;
  const ProgressListener &progress;
  std::vector<DeviceImage> images;
  std::vector<Command> commands;
  /// File and cache key of each image that is compiled.
  std::vector<std::pair<std::string, std::string>> compiled;
};

} // namespace

Status ImageBuilder::add(const Unit &unit, uint32_t number,
                         const CudaArch &arch) {
  std::string file =
      folder.file(fmt::format("unit{}.{}", number, arch.name()));
  images.push_back({file, number, arch.kind, arch.number});
  std::vector<std::string> flags = flagsFor(unit, arch);
  std::string key = KernelCache::key(
      fmt::format("{}\n{}\n{}", version, fmt::join(flags, " "), unit.text));
  if (std::optional<std::string> bytes = cache.find(key))
    return writeFile(file, *bytes);
  Command command = {compiler};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(),
                 {"-o", file, folder.file(fmt::format("unit{}.cu", number))});
  commands.push_back(std::move(command));
  compiled.emplace_back(file, key);
  return Status::ok();
}

StatusOr<std::vector<DeviceImage>> ImageBuilder::run() {
  unsigned parallel =
      std::clamp(static_cast<unsigned>(usableCpus()), 2u, kMaxParallel);
  QLORA_RETURN_IF_ERROR(runCommands(commands, parallel, progress));
  for (const auto &[file, key] : compiled) {
    QLORA_ASSIGN_OR_RETURN(std::string bytes, readWholeFile(file));
    cache.store(key, bytes);
  }
  return std::move(images);
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
  ImageBuilder builder(cache, compiler, version, folder, progress);
  std::vector<Unit> units = makeUnits(functions);
  for (uint32_t number = 0; number < units.size(); ++number) {
    QLORA_RETURN_IF_ERROR(writeFile(
        folder.file(fmt::format("unit{}.cu", number)), units[number].text));
    for (const CudaArch &arch : archs)
      QLORA_RETURN_IF_ERROR(builder.add(units[number], number, arch));
  }
  QLORA_ASSIGN_OR_RETURN(kernels.images, builder.run());
  return kernels;
}
