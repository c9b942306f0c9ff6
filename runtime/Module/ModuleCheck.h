// SPDX-License-Identifier: MIT

// Checks of a module's tables. The file's seal was checked before, so pointers,
// strings and enum values are assumed to be valid.
//
// checkModule runs whenever a module is opened. It checks that the module was
// compiled for this build, since an undamaged file may be from another one, and
// that its stages belong together.
//
// checkTables looks for compiler bugs. It runs on the null device, which loads
// every program of the tests. Messages name table, row and wrong value:
//
// - arenas: each kind once; gradients, moments and rounded adapters have the
//   size that the trainable arena requires;
// - parameters: unique names, in the arena of their role, with the bytes of
//   their shape, aligned, and without overlap;
// - kernels of the module are code for its target, with a geometry that a GPU
//   can launch;
// - operands lie in their arena and are whole, aligned elements, workspaces on
//   CUDA at multiples of 256 bytes; nothing writes frozen weights;
// - launches, copies and collectives have the operands of their kind;
// - entries and bindings are unique, with the sizes of their batch and length.
//
// AccessCheck.h checks how the commands of an entry affect each other.

#ifndef QLORA_RUNTIME_MODULE_MODULECHECK_H
#define QLORA_RUNTIME_MODULE_MODULECHECK_H

#include <cstdint>
#include <string_view>
#include <utility>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Header fields that must be equal in all stages and programs of one run, as
/// is the mesh.
inline constexpr std::pair<std::string_view, uint32_t qlora_module::*>
    kNumbersOfRun[] = {{"target", &qlora_module::target},
                       {"run_ranks", &qlora_module::run_ranks},
                       {"entries", &qlora_module::entry_count}};

/// Returns kDataLoss with a message: the error for damaged modules.
template <typename... Args>
Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::dataLoss(format, std::forward<Args>(args)...);
}

/// Checks all stages, starting with the first: format, target and library
/// kernels match this qlora-run, this CPU has the instructions of the generated
/// kernels, and the stages belong together (checkStage).
Status checkModule(const qlora_module &first);
/// Checks that stage `number` of a pipeline matches the first stage in all that
/// ranks share: numbers of ranks, arenas, parameters except the base, entries,
/// and the offsets of reduced results.
Status checkStage(const qlora_module &first, const qlora_module &stage,
                  uint32_t number);

/// Checks the tables of one stage of a module that checkModule accepts.
Status checkTables(const qlora_module &module);
/// Part of checkTables.
Status checkParameters(const qlora_module &module);
/// Checks operands and commands. checkTables calls it after checking launches.
Status checkCommands(const qlora_module &module);

/// Whether [first, first + count) lies within [0, limit).
inline bool isRange(uint64_t first, uint64_t count, uint64_t limit) {
  return first <= limit && count <= limit - first;
}

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_MODULECHECK_H
