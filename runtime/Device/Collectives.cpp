// SPDX-License-Identifier: MIT

// From commands to calls, and what a group of one does.

#include "runtime/Device/Collectives.h"

#include <algorithm>
#include <utility>

#include "runtime/Kernels/KernelTable.h"

namespace qlora {

CollectiveCall CollectiveCall::of(const LoadedModule &module,
                                  const qlora_command &command,
                                  std::span<void *const> addresses) {
  const auto operands = module.operands(command);
  CollectiveCall call;
  call.kind = static_cast<qlora_collective>(command.collective);
  call.dtype = static_cast<qlora_dtype>(operands[0].dtype);
  call.peer = command.peer;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::span<uint8_t> bytes(static_cast<uint8_t *>(addresses[i]),
                                   operands[i].bytes);
    if (operands[i].access & QLORA_WRITE)
      call.to = bytes;
    else
      call.from = bytes;
  }
  return call;
}

uint64_t collectiveBytes(const LoadedModule &module,
                         const qlora_command &command) {
  const auto operands = module.operands(command);
  return std::max(operands.front().bytes, operands.back().bytes);
}

static Status checkCollective(const LoadedModule &module,
                              const qlora_command &command, int64_t ranks) {
  const auto operands = module.operands(command);
  const std::string_view name = collectiveName(command.collective);
  const std::string_view group = groupName(command.group);
  if (command.collective == QLORA_COLLECTIVE_BROADCAST &&
      command.peer >= ranks)
    return Status::invalid("the program's {} over {} is from rank {}, but "
                           "there are {} ranks",
                           name, group, command.peer, ranks);
  const bool isOfTwo = command.collective == QLORA_COLLECTIVE_SEND ||
                       command.collective == QLORA_COLLECTIVE_RECV;
  if (isOfTwo && command.peer % ranks == 0)
    return Status::invalid("the program's {} over {} is {} places on, which of "
                           "{} is the rank itself",
                           name, group, command.peer, ranks);
  if (operands.size() < 2)
    return Status::ok();
  const uint64_t most = std::max(operands[0].bytes, operands[1].bytes);
  const uint64_t least = std::min(operands[0].bytes, operands[1].bytes);
  const uint64_t pieces =
      command.collective == QLORA_COLLECTIVE_ALL_TO_ALL ? 1 : ranks;
  const uint64_t element =
      dtypeBits(static_cast<qlora_dtype>(operands[0].dtype)) / 8;
  if (most == least * pieces && most % (uint64_t(ranks) * element) == 0)
    return Status::ok();
  return Status::invalid("the program's {} over {} has {} and {} bytes, which "
                         "are not the pieces of {} ranks; start as many as it "
                         "was compiled for",
                         name, group, operands[0].bytes, operands[1].bytes,
                         ranks);
}

/// What ranks do together in a module, and the axis that says so.
static std::pair<const char *, const char *>
sharingOf(const LoadedModule &module) {
  if (module.stages() > 1)
    return {"divides its layers", "pp"};
  if (module.tensorRanks() > 1)
    return {"shares each product", "tp"};
  if (module.contextRanks() > module.groupSize())
    return {"shares each line", "cp"};
  if (module.expertRanks() > module.groupSize())
    return {"shares its experts", "ep"};
  if (module.table().shards > 1)
    return {"divides its base", "fsdp"};
  return module.table().trained_pieces > 1
             ? std::pair("divides what it trains", "zero2")
             : std::pair("divides its updates", "zero1");
}

Status checkMesh(const LoadedModule &module, int ranks) {
  const int mesh = module.meshSize();
  if (const auto fixed = static_cast<int>(module.table().run_ranks);
      fixed != 0 && fixed != ranks)
    return Status::invalid("'{}' sums gradients in fewer bits among {} ranks, but "
                           "{} {} started; start {}, or compile with --ranks {}",
                           module.path(), fixed, ranks,
                           ranks == 1 ? "was" : "were", fixed, ranks);
  if (ranks % mesh == 0)
    return Status::ok();
  const auto [what, axis] = sharingOf(module);
  return Status::invalid("'{}' {} among {} ranks, but {} {} started; start a "
                         "multiple of {}, or compile with another --parallel "
                         "{}=N",
                         module.path(), what, mesh, ranks,
                         ranks == 1 ? "was" : "were", mesh, axis);
}

Status checkCollectives(const LoadedModule &module, const GroupSizes &sizes) {
  for (const qlora_command &command : module.commands())
    if (command.kind == QLORA_COMMAND_COLLECTIVE)
      QLORA_RETURN_IF_ERROR(
          checkCollective(module, command, sizes[command.group]));
  return Status::ok();
}

/// With two operands one goes to the other.
Status SingleRank::run(const CollectiveCall &call) {
  if (!call.to.empty() && !call.from.empty())
    std::memmove(call.to.data(), call.from.data(), call.from.size());
  return Status::ok();
}

} // namespace qlora
