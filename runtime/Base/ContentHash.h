// SPDX-License-Identifier: MIT

// SHA-256 over texts and files, for naming what was made from them.

#ifndef QLORA_RUNTIME_BASE_CONTENTHASH_H
#define QLORA_RUNTIME_BASE_CONTENTHASH_H

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
  ContentHash(ContentHash &&) noexcept;
  ~ContentHash();

  void add(std::string_view text);
  void add(std::span<const int64_t> numbers);
  /// The file's content; kNotFound when it cannot be read.
  Status addFile(const std::string &path);
  /// 64 hexadecimal digits. Nothing may be added afterwards.
  std::string finish();

private:
  struct State;
  std::unique_ptr<State> state;
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CONTENTHASH_H
