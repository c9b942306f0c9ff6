// SPDX-License-Identifier: MIT

// The rules of runtime/ABI/module.h, checked on tables in memory. Each
// message names the table, the row and the number that is wrong.
//
// They find bugs of a compiler. Damage is found before, by the seal of the
// file; so pointers to tables and strings are taken as they are.
//
// Beyond the ranges of indices: each arena kind at most once; parameters do
// not overlap, have the bytes of their shape, and live in the arena of their
// role; nothing writes FROZEN; operands are aligned to their dtype, workspaces
// on CUDA to 256 bytes; image units have no gaps and no image twice; a kernel
// is generated for the module's target (a function, or a symbol with a
// geometry that a card can launch) or is a row of Kernels.def for it, whose
// operands and constants its launches have; copies and collectives have
// matching types and bytes; an event is recorded once and before it is waited
// for; entries and bindings are unique and have the sizes of their batch and
// length.

#ifndef QLORA_RUNTIME_MODULE_MODULECHECK_H
#define QLORA_RUNTIME_MODULE_MODULECHECK_H

#include <cstdint>
#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// What all checks refuse with.
template <typename... Args>
Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kDataLoss, format,
                       std::forward<Args>(args)...);
}

/// The header (magic, version, sizes), then every table.
Status checkModule(const qlora_module &module);

/// The parts of checkModule; each trusts those before it.
Status checkModuleHeader(const qlora_module &module);
Status checkArenas(const qlora_module &module);
Status checkParameters(const qlora_module &module);
Status checkImages(const qlora_module &module);
Status checkKernels(const qlora_module &module);
Status checkCommands(const qlora_module &module);
/// Of one command, whose operands are in order; of any that is no collective,
/// that it has nothing of one.
Status checkCollective(const qlora_module &module,
                       const qlora_command &command);
/// Whether two operands have a byte in common.
inline bool overlap(const qlora_operand &a, const qlora_operand &b) {
  return a.arena == b.arena && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}
Status checkEntries(const qlora_module &module);

} // namespace qlora

#endif // QLORA_RUNTIME_MODULE_MODULECHECK_H
