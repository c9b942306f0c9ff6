// SPDX-License-Identifier: MIT

// SHA-256 of OpenSSL.

#include "runtime/Base/ContentHash.h"

#include <openssl/evp.h>

#include <cstdint>
#include <fstream>
#include <vector>

namespace qlora {

struct ContentHash::State {
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

ContentHash::ContentHash() : state(std::make_unique<State>()) {
  EVP_DigestInit_ex(state->context, EVP_sha256(), nullptr);
}
ContentHash::ContentHash(ContentHash &&) noexcept = default;
ContentHash::~ContentHash() = default;

static void addLength(EVP_MD_CTX *context, uint64_t length) {
  EVP_DigestUpdate(context, &length, sizeof length);
}

void ContentHash::add(std::string_view text) {
  EVP_DigestUpdate(state->context, text.data(), text.size());
  addLength(state->context, text.size());
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
    size_t count = static_cast<size_t>(file.gcount());
    EVP_DigestUpdate(state->context, buffer.data(), count);
    bytes += count;
  }
  if (!file.eof())
    return Status::error(StatusCode::kNotFound, "cannot read '{}'", path);
  addLength(state->context, bytes);
  return Status::ok();
}

std::string ContentHash::finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  EVP_DigestFinal_ex(state->context, digest, &bytes);
  std::string hex;
  for (unsigned i = 0; i < bytes; ++i)
    hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

} // namespace qlora
