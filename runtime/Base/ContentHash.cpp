// SPDX-License-Identifier: MIT

// Hashes with the 128-bit XXH3.

#include "runtime/Base/ContentHash.h"

#include <fstream>
#include <vector>

namespace qlora {

ContentHash::ContentHash() : state(XXH3_createState(), XXH3_freeState) {
  XXH3_128bits_reset(state.get());
}

void ContentHash::update(const void *data, size_t bytes) {
  XXH3_128bits_update(state.get(), data, bytes);
}

void ContentHash::add(std::string_view text) {
  const uint64_t length = text.size();
  update(text.data(), text.size());
  update(&length, sizeof length);
}

void ContentHash::add(std::span<const int64_t> numbers) {
  add({reinterpret_cast<const char *>(numbers.data()), numbers.size_bytes()});
}

Status ContentHash::addFile(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  uint64_t bytes = 0;
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const size_t count = static_cast<size_t>(file.gcount());
    update(buffer.data(), count);
    bytes += count;
  }
  if (!file.eof())
    return Status::notFound("cannot read '{}'", path);
  update(&bytes, sizeof bytes);
  return Status::ok();
}

std::string ContentHash::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

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
