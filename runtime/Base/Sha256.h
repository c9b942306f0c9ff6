// SPDX-License-Identifier: MIT

// SHA-256, for digests that other programs compute too.

#ifndef QLORA_RUNTIME_BASE_SHA256_H
#define QLORA_RUNTIME_BASE_SHA256_H

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string>

namespace qlora {

class Sha256 {
public:
  Sha256() { EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr); }
  void add(const void *data, size_t bytes) {
    EVP_DigestUpdate(context.get(), data, bytes);
  }
  /// Returns 64 hexadecimal digits. Must be called once.
  std::string finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned int bytes = 0;
    EVP_DigestFinal_ex(context.get(), digest.data(), &bytes);
    std::string hex;
    for (unsigned int i = 0; i < bytes; ++i)
      hex += fmt::format("{:02x}", digest[i]);
    return hex;
  }

private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{
      EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_SHA256_H
