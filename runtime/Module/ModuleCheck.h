// SPDX-License-Identifier: MIT

// What the tables of a module are checked for. Damage is found before, by the
// seal of the file; so pointers, strings and values of enums are taken as they
// are.
//
// checkModule runs whenever a module is opened: that this qlora-run is the one
// that the module was compiled for, and that its stages are of one pipeline. A
// file may be whole and of another build.
//
// checkTables looks for bugs of a compiler, and runs where they are looked for:
// on the null device, which the tests load every program into. Each message
// names the table, the row and the number that is wrong:
//
// - arenas: each kind once; gradients, moments and rounded adapters have the
//   size that the trainable ones ask for;
// - parameters: one of a name, in the arena of its role, with the bytes of its
//   shape, aligned, and none in another's place;
// - kernels of the module are code for its target, with a geometry that a card
//   can launch;
// - operands lie in their arena and are whole, aligned elements, workspaces on
//   CUDA at multiples of 256 bytes; nothing writes frozen weights;
// - launches, copies and collectives have the operands of their kind;
// - entries and bindings are there once, with the sizes of their batch and
//   length.
//
// What the commands of an entry do to each other is AccessCheck.h's.

#ifndef QLORA_RUNTIME_MODULE_MODULECHECK_H
#define QLORA_RUNTIME_MODULE_MODULECHECK_H

#include <cstdint>
#include <string_view>
#include <utility>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Numbers of the header that are those of the run: the same in all stages, and in
/// all programs that run together.
inline constexpr std::pair<std::string_view, uint32_t qlora_module::*>
    kNumbersOfRun[] = {{"target", &qlora_module::target},
                       {"stages", &qlora_module::stages},
                       {"shards", &qlora_module::shards},
                       {"update_pieces", &qlora_module::update_pieces},
                       {"trained_pieces", &qlora_module::trained_pieces},
                       {"tensor_ranks", &qlora_module::tensor_ranks},
                       {"context_ranks", &qlora_module::context_ranks},
                       {"expert_ranks", &qlora_module::expert_ranks},
                       {"run_ranks", &qlora_module::run_ranks},
                       {"entries", &qlora_module::entry_count}};

/// What all checks refuse with.
template <typename... Args>
Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kDataLoss, format,
                       std::forward<Args>(args)...);
}

/// Of all stages, from the first on: format, target and library kernels are
/// this qlora-run's, this CPU has the instructions of the generated ones, and
/// checkStage.
Status checkModule(const qlora_module &first);
/// Stage `number` of a pipeline has in common with the first one what ranks of
/// all stages have in common: numbers of ranks, arenas and parameters other
/// than the base's, entries, and where they add up results.
Status checkStage(const qlora_module &first, const qlora_module &stage,
                  uint32_t number);

/// The tables of one stage of a module that checkModule accepts.
Status checkTables(const qlora_module &module);
/// Its part for operands and commands, after launches.
Status checkCommands(const qlora_module &module);

/// Whether [first, first + count) lies within [0, limit).
inline bool isRange(uint64_t first, uint64_t count, uint64_t limit) {
  return first <= limit && count <= limit - first;
}

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_MODULECHECK_H
