// SPDX-License-Identifier: MIT

// A file that knows whether it is whole: its last bytes are a digest of all
// those before them. Readers of its own format do not see it (the system's
// loader looks at what the headers of an ELF file name, and at nothing else).
// It finds damage, not malice.

#ifndef QLORA_RUNTIME_BASE_SEAL_H
#define QLORA_RUNTIME_BASE_SEAL_H

#include <string>
#include <string_view>

namespace qlora {

/// `bytes` and their seal.
std::string sealed(std::string bytes);

/// Whether these are all the bytes that sealed() gave, and no others.
bool isSealed(std::string_view bytes);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_SEAL_H
