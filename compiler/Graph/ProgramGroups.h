// SPDX-License-Identifier: MIT

// Sizes of a module's rank groups.

#ifndef QLORA_COMPILER_GRAPH_PROGRAMGROUPS_H
#define QLORA_COMPILER_GRAPH_PROGRAMGROUPS_H

#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

#include "runtime/Module/GroupSizes.h"

namespace qlora {

/// Returns the group sizes of one mesh, which data parallelism repeats.
inline GroupSizes groupsOf(mlir::Operation *module) {
  return {{QLORA_GROUP_FSDP, program::piecesOf(module)},
          {QLORA_GROUP_TP, program::tensorRanksOf(module)},
          {QLORA_GROUP_CP, program::contextRanksOf(module)},
          {QLORA_GROUP_PP, program::stagesOf(module)},
          {QLORA_GROUP_EP, program::expertRanksOf(module)}};
}

/// Returns the group sizes of a run if the module fixes its number of ranks,
/// else of one mesh.
inline GroupSizes runGroupsOf(mlir::Operation *module) {
  const GroupSizes mesh = groupsOf(module);
  return mesh.on(std::max(train::runRanksOf(module), mesh.meshSize()));
}

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_PROGRAMGROUPS_H
