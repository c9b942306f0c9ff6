// SPDX-License-Identifier: MIT

// Says why no plan of the driver fits the memory limits.

#include "compiler/Driver.h"

#include "mlir/IR/Diagnostics.h"

#include "compiler/Passes.h"
#include "compiler/Schedule/EntryBuffers.h"

#include "runtime/Base/Amounts.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ModuleLoader.h"

#include <fmt/ranges.h>

using namespace mlir;
using namespace qlora;

/// Returns "frozen base 1.3 MiB; adapters 0.2 MiB; ...". If `onlyHost`, lists
/// only arenas in host memory.
static std::string arenasInWords(ModuleOp program, bool onlyHost = false) {
  std::string text;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.getBytes() > 0 && (arena.isOnHost() || !onlyHost))
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ",
                          arenaTitle(static_cast<unsigned>(arena.getKind())),
                          formatBytes(arena.getBytes()));
  return text;
}

static int64_t frozenBytes(ModuleOp program) {
  int64_t bytes = 0;
  for (auto arena : program.getOps<program::ArenaOp>())
    if (arena.getKind() == program::Arena::Frozen)
      bytes += arena.getBytes();
  return bytes;
}

/// Lists the largest tensors of a step, or of a prefill if nothing is trained:
/// "4.0 MiB of MODULE, ...".
static std::string largestTensors(ModuleOp program) {
  constexpr size_t kShown = 3;
  std::vector<std::string> tensors;
  for (auto entry : program.getOps<program::EntryOp>())
    if ((entry.getKind() == program::EntryKind::AccumulateLast ||
         entry.getKind() == program::EntryKind::Prefill) &&
        tensors.empty())
      for (program::BufferOp buffer : largestBuffers(entry, kShown))
        tensors.push_back(fmt::format("{} of {}",
                                      formatBytes(buffer.getBytes()),
                                      buffer.getLabel().value_or("").str()));
  return fmt::format("{}", fmt::join(tensors, ", "));
}

/// Returns a hint for the user if a plan with the base in host memory fits;
/// else an empty string.
std::string Driver::curedByOffload(ModuleOp step) {
  const bool hasNoBase =
      options.trained.all && options.trained.unfrozen == "[]";
  if (!traits.offloadsTables || chosen.offloadBase || hasNoBase)
    return "";
  MemoryBudget budget = leastBudget();
  budget.offloadBase = true;
  OwningOpRef<ModuleOp> plan = step.clone();
  if (failed(optimizeAndPlan(*plan, budget)) ||
      plannedBytes(*plan) > options.memoryLimit || isAboveHostLimit(*plan))
    return "";
  return fmt::format("--offload base would need {} of GPU memory and {} of "
                     "pinned host memory",
                     formatBytes(plannedBytes(*plan)),
                     formatBytes(plannedHostBytes(*plan)));
}

bool Driver::isAboveHostLimit(ModuleOp program) const {
  return options.hostMemoryLimit > 0 &&
         plannedHostBytes(program) > options.hostMemoryLimit;
}

/// Checks --host-memory-limit. Plans use host memory only on request, or if no
/// other plan is within --memory-limit.
LogicalResult Driver::checkHostLimit(ModuleOp program) const {
  if (!isAboveHostLimit(program))
    return success();
  InFlightDiagnostic error =
      emitError(program.getLoc())
      << "--host-memory-limit: the smallest plan needs "
      << formatBytes(plannedHostBytes(program)) << " ("
      << plannedHostBytes(program) << " bytes) of pinned host memory, but the "
      << "limit is " << formatBytes(options.hostMemoryLimit)
      << "; raise it to at least that, or offload less (--offload)";
  error.attachNote(program.getLoc())
      << "made up of: " << arenasInWords(program, /*onlyHost=*/true);
  return error;
}

LogicalResult Driver::refuseLimit(ModuleOp step, ModuleOp program) {
  smallest = plannedBytes(program);
  if (!explainsLimit)
    return failure();
  const std::string cure = curedByOffload(step);
  const StoredFormat *stored =
      storedFormat(std::string_view(options.quantize.format));
  InFlightDiagnostic error =
      emitError(program.getLoc())
      << "--memory-limit: the smallest plan needs " << formatBytes(smallest)
      << " (" << smallest << " bytes), but the limit is "
      << formatBytes(options.memoryLimit)
      << "; raise it to at least that, or lower "
      << (options.trains ? "--max-length, --per-device-train-batch-size or "
                           "--lora-r"
                         : "--generation-length or --generation-batch")
      << (stored && stored->bits == 4 ? "" : ", or use --load-in-4bit");
  error.attachNote(program.getLoc())
      << "made up of: " << arenasInWords(program);
  if (options.mesh.pp > 1)
    error.attachNote(program.getLoc())
        << "this is stage " << options.stage << " of a pipeline of "
        << options.mesh.pp
        << " stages; a larger --num-micro-batches makes chunks smaller";
  if (const int64_t base = frozenBytes(program); base > options.memoryLimit)
    error.attachNote(program.getLoc())
        << "the frozen base alone needs " << formatBytes(base)
        << (baseHolders(options.mesh) > 1
                ? " on each rank; use more ranks in --parallel"
                : ", unsharded; --parallel fsdp=N shards it over N ranks");
  if (std::string tensors = largestTensors(program); !tensors.empty())
    error.attachNote(program.getLoc()) << "large tensors: " << tensors;
  if (!cure.empty())
    error.attachNote(program.getLoc()) << cure;
  return error;
}
