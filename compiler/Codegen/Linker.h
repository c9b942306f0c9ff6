// SPDX-License-Identifier: MIT

// Links objects and assembler text to a shared library, with clang and lld.

#ifndef QLORA_COMPILER_CODEGEN_LINKER_H
#define QLORA_COMPILER_CODEGEN_LINKER_H

#include "compiler/Codegen/Tools.h"

namespace qlora {

/// Assembles `text` (x86-64) with clang to `object`.
Status assemble(const std::string &clang, const std::string &text,
                const std::string &object, const ScratchFolder &folder);

/// Links `objects` to a shared library. Returns its bytes with a content hash
/// (sealed() in ContentHash.h). The library imports nothing. The same objects
/// give the same bytes.
StatusOr<std::string> linkLibrary(const std::vector<std::string> &objects,
                                  const ScratchFolder &folder);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_LINKER_H
