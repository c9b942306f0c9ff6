// SPDX-License-Identifier: MIT

// Groups the kernels into units, and compiles them.

#include "compiler/Codegen/CpuTarget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

using namespace qlora;

/// Text of runtime/Kernels/Rows.h, with the text of its includes inserted.
extern const char qloraKernelPrelude[];

/// Maximum number of units. All units are compiled in parallel.
static constexpr size_t kParallel = 2;
/// Minimum bytes of a unit. Smaller units compile faster than clang starts.
static constexpr size_t kMinUnitBytes = 16 << 10;

std::vector<std::string> CpuTarget::flags() const {
  return {"-x", "c++", "-std=c++20", "-O3", "-march=" + level.march,
          // With AVX-512, the default of 256 bits would be half as fast.
          "-mprefer-vector-width=512",
          // The kernel text alone decides where to round.
          "-ffp-contract=off", "-fno-math-errno",
          // Export one symbol, import none, and depend on no build machine.
          "-fPIC", "-fvisibility=hidden", "-ffreestanding", "-fno-exceptions",
          "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fno-ident",
          "-fno-stack-protector", "-w", "-c"};
}

/// Groups the functions into up to kParallel units of similar size, each with
/// the prelude first.
static std::vector<std::string>
makeUnits(const std::vector<std::string> &functions) {
  size_t bytes = 0;
  for (const std::string &function : functions)
    bytes += function.size();
  size_t count = std::clamp<size_t>(bytes / kMinUnitBytes, 1, kParallel);
  std::vector<std::string> units(count);
  for (const std::string &function : functions)
    *std::ranges::min_element(units, {}, &std::string::size) += "\n" + function;
  for (std::string &unit : units)
    unit.insert(0, qloraKernelPrelude);
  return units;
}

StatusOr<CompiledKernels>
CpuTarget::compile(const std::vector<std::string> &functions,
                   const ScratchFolder &folder) {
  QLORA_ASSIGN_OR_RETURN(std::string version,
                         readCommand({clang, "--version"}));
  CompiledKernels kernels;
  CachedCommands commands(cache);
  for (const std::string &unit : makeUnits(functions)) {
    const size_t number = kernels.objects.size();
    std::string source = folder.file(fmt::format("kernels{}.cpp", number));
    std::string object = folder.file(fmt::format("kernels{}.o", number));
    QLORA_RETURN_IF_ERROR(writeFile(source, unit));
    Command command = flags();
    std::string input =
        fmt::format("{}\n{}\n{}", version, fmt::join(command, " "), unit);
    command.insert(command.begin(), clang);
    command.insert(command.end(), {"-o", object, source});
    QLORA_RETURN_IF_ERROR(commands.add(input, object, std::move(command)));
    kernels.objects.push_back(std::move(object));
  }
  QLORA_RETURN_IF_ERROR(commands.run(kParallel, progress));
  return kernels;
}
