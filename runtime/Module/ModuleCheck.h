// SPDX-License-Identifier: MIT

// The rules of runtime/ABI/module.h, checked on tables in memory. Each
// message names the table, the row and the number that is wrong.
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
#include <utility>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Where the bytes of a module may lie: the segments of its file in memory.
/// Empty: anywhere (tables that did not come from a file).
class AddressRanges {
public:
  void add(uintptr_t begin, uintptr_t end) { ranges.emplace_back(begin, end); }
  /// Whether [address, address + bytes) is within one range.
  bool contains(const void *address, uint64_t bytes) const;
  /// Whether a string starts and ends within one range.
  bool containsString(const char *text) const;

private:
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
};

/// What all checks refuse with.
template <typename... Args>
Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kDataLoss, format,
                       std::forward<Args>(args)...);
}

/// The header (magic, version, sizes), then every table.
Status checkModule(const qlora_module &module, const AddressRanges &ranges);

/// The parts of checkModule; each trusts those before it.
Status checkModuleHeader(const qlora_module &module,
                         const AddressRanges &ranges);
Status checkArenas(const qlora_module &module);
Status checkParameters(const qlora_module &module, const AddressRanges &ranges);
Status checkImages(const qlora_module &module, const AddressRanges &ranges);
Status checkKernels(const qlora_module &module, const AddressRanges &ranges);
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
