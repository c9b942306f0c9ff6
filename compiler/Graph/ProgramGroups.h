// SPDX-License-Identifier: MIT

// The groups of ranks that a module's program is for.

#ifndef QLORA_COMPILER_GRAPH_PROGRAMGROUPS_H
#define QLORA_COMPILER_GRAPH_PROGRAMGROUPS_H

#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"

#include "runtime/Module/GroupSizes.h"

namespace qlora {

/// Of a mesh by itself.
inline GroupSizes groupsOf(mlir::Operation *module) {
  return {{QLORA_GROUP_FSDP, program::piecesOf(module)},
          {QLORA_GROUP_TP, program::tensorRanksOf(module)},
          {QLORA_GROUP_CP, program::contextRanksOf(module)},
          {QLORA_GROUP_PP, program::stagesOf(module)},
          {QLORA_GROUP_EP, program::expertRanksOf(module)}};
}

/// The groups of a run of that module, as far as the module knows its number of
/// ranks: one mesh if it does not.
inline GroupSizes runGroupsOf(mlir::Operation *module) {
  const GroupSizes mesh = groupsOf(module);
  return mesh.on(std::max(train::runRanksOf(module), mesh.meshSize()));
}

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_PROGRAMGROUPS_H
