// SPDX-License-Identifier: MIT

// XXH3 over texts and files, for naming what was made from them and for
// finding damage. It keeps apart what chance made different; whoever wants two
// texts of one hash can make them.

#ifndef QLORA_RUNTIME_BASE_CONTENTHASH_H
#define QLORA_RUNTIME_BASE_CONTENTHASH_H

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Each part goes in with its length, so that parts cannot be mistaken for
/// others.
class ContentHash {
public:
  ContentHash();

  void add(std::string_view text);
  void add(std::span<const int64_t> numbers);
  /// The file's content; kNotFound when it cannot be read.
  Status addFile(const std::string &path);
  /// 32 hexadecimal digits of what was added so far.
  std::string finish() const;

  static constexpr size_t kDigits = 32;

private:
  void update(const void *data, size_t bytes);

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state;
};

// A file that knows whether it is whole: its last bytes are a digest of all
// those before them. Readers of its own format do not see it (the system's
// loader looks at what the headers of an ELF file name, and at nothing else).
// It finds damage, not malice.

/// `bytes` and their seal.
std::string sealed(std::string bytes);

/// Whether these are all the bytes that sealed() gave, and no others.
bool isSealed(std::string_view bytes);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CONTENTHASH_H
