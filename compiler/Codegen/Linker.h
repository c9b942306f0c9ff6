// SPDX-License-Identifier: MIT

// Objects and assembler text to a shared library, with clang and lld.

#ifndef QLORA_COMPILER_CODEGEN_LINKER_H
#define QLORA_COMPILER_CODEGEN_LINKER_H

#include "compiler/Codegen/Tools.h"

namespace qlora {

/// Assembles `text` (x86-64) with clang to `object`.
Status assemble(const std::string &clang, const std::string &text,
                const std::string &object, const ScratchFolder &folder);

/// The bytes of a library with these objects and nothing else: it imports
/// nothing, and the same objects give the same bytes. Sealed (ContentHash.h).
StatusOr<std::string> linkLibrary(const std::vector<std::string> &objects,
                                  const ScratchFolder &folder);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_LINKER_H
