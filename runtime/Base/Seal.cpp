// SPDX-License-Identifier: MIT

// A word and a digest.

#include "runtime/Base/Seal.h"

#include "runtime/Base/ContentHash.h"

namespace qlora {

static std::string sealOf(std::string_view bytes) {
  ContentHash hash;
  hash.add(bytes);
  return "qlora-seal:" + hash.finish();
}

std::string sealed(std::string bytes) {
  bytes += sealOf(bytes);
  return bytes;
}

bool isSealed(std::string_view bytes) {
  const size_t end = bytes.rfind("qlora-seal:");
  return end != bytes.npos && bytes.substr(end) == sealOf(bytes.substr(0, end));
}

} // namespace qlora
