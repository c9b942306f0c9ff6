// SPDX-License-Identifier: MIT

// XXH3 over texts and files, for cache names and damage detection. Accidental
// collisions do not occur in practice, but collisions can be constructed.

#ifndef QLORA_RUNTIME_BASE_CONTENTHASH_H
#define QLORA_RUNTIME_BASE_CONTENTHASH_H

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Hashes a sequence of items. The length of each item is hashed too, so ("ab",
/// "c") and ("a", "bc") differ.
class ContentHash {
public:
  ContentHash();

  void add(std::string_view text);
  void add(std::span<const int64_t> numbers);
  /// Adds at(0), ..., at(count - 1) as one item: the same as add() of an array
  /// of them, without the array.
  template <typename T, typename At> void addEach(int64_t count, const At &at) {
    std::array<T, 1024> window;
    for (int64_t first = 0; first < count; first += std::ssize(window)) {
      const int64_t size = std::min(count - first, std::ssize(window));
      for (int64_t i = 0; i < size; ++i)
        window[static_cast<size_t>(i)] = static_cast<T>(at(first + i));
      update(window.data(), static_cast<size_t>(size) * sizeof(T));
    }
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    update(&bytes, sizeof bytes);
  }
  /// Adds the file's content; returns kNotFound if it cannot be read.
  Status addFile(const std::string &path);
  /// Returns 32 hexadecimal digits for the items added so far.
  std::string finish() const;

  static constexpr size_t kDigits = 32;

private:
  void update(const void *data, size_t bytes);

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state;
};

// A sealed file ends with a digest ("seal") of all bytes before it. Readers of
// the file's format ignore the seal: for example, the loader of ELF files reads
// only ranges that headers list. The seal detects damage, not tampering.

/// Returns `bytes` followed by their seal.
std::string sealed(std::string bytes);

/// Whether `bytes` is exactly an output of sealed().
bool isSealed(std::string_view bytes);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CONTENTHASH_H
