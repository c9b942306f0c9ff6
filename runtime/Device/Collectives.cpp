// SPDX-License-Identifier: MIT

// Converts commands to calls, checks group sizes, and runs a group of one rank.

#include "runtime/Device/Collectives.h"

#include <algorithm>

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Options/ParallelMesh.h"

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

static Status checkCollective(const LoadedModule &module,
                              const qlora_command &command, int64_t ranks) {
  const auto operands = module.operands(command);
  const std::string_view name = collectiveName(command.collective);
  const std::string_view group = groupName(command.group);
  if (command.collective == QLORA_COLLECTIVE_BROADCAST && command.peer >= ranks)
    return Status::invalid("the program's {} over {} is from rank {}, but "
                           "there are {} ranks; start the number that it was "
                           "compiled for",
                           name, group, command.peer, ranks);
  const bool isOfTwo = command.collective == QLORA_COLLECTIVE_SEND ||
                       command.collective == QLORA_COLLECTIVE_RECV;
  if (isOfTwo && command.peer % ranks == 0)
    return Status::invalid("the program's {} over {} at a distance of {} in a "
                           "group of {} ranks would reach the rank itself; "
                           "start the number that it was compiled for",
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
  return Status::invalid(
      "the program's {} over {} has operands of {} and {} bytes, which do not "
      "fit {} ranks; start the number that it was compiled for",
      name, group, operands[0].bytes, operands[1].bytes, ranks);
}

Status checkMesh(const LoadedModule &module, int ranks) {
  if (const auto fixed = static_cast<int>(module.table().run_ranks);
      fixed != 0 && fixed != ranks)
    return Status::invalid("'{}' compresses gradients for {} ranks, but {} {} "
                           "started; start {}, or compile with --ranks {}",
                           module.path(), fixed, ranks,
                           ranks == 1 ? "was" : "were", fixed, ranks);
  const ParallelMesh mesh(module.table().mesh);
  return mesh.checkRanks(fmt::format("'{}'", module.path()), ranks);
}

Status checkCollectives(const LoadedModule &module, const GroupSizes &sizes) {
  for (const qlora_command &command : module.commands())
    if (command.kind == QLORA_COMMAND_COLLECTIVE)
      QLORA_RETURN_IF_ERROR(
          checkCollective(module, command, sizes[command.group]));
  return Status::ok();
}

/// Copies `from` to `to` if the collective has two operands.
Status SingleRank::run(const CollectiveCall &call) {
  if (!call.to.empty() && !call.from.empty())
    std::memmove(call.to.data(), call.from.data(), call.from.size());
  return Status::ok();
}

} // namespace qlora
