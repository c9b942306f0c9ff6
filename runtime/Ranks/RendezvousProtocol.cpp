// SPDX-License-Identifier: MIT

// Proofs of the job's secret, and the error messages of both ends.

#include "runtime/Ranks/RendezvousProtocol.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "runtime/Ranks/Socket.h"

namespace qlora {

StatusOr<Digest> randomDigest() {
  Digest drawn;
  if (RAND_bytes(drawn.data(), drawn.size()) != 1)
    return Status::unavailable("the system has no random numbers");
  return drawn;
}

Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &drawn) {
  std::string text(role);
  text.append(reinterpret_cast<const char *>(drawn.data()), drawn.size());
  Digest proof = {};
  unsigned bytes = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char *>(text.data()), text.size(),
       proof.data(), &bytes);
  return proof;
}

bool isSame(const Digest &a, const Digest &b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &ofServer, const Digest &ofClient) {
  std::string both(role);
  both.append(reinterpret_cast<const char *>(ofServer.data()), ofServer.size());
  return proofOf(secret, both, ofClient);
}

StatusOr<std::string> receiveText(const FileDescriptor &socket,
                                  uint32_t bytes) {
  if (bytes > kMaxRendezvousText)
    return Status::invalid("its answer has {} bytes, more than the limit of "
                           "{}. Fix: install the same version on every host",
                           bytes, kMaxRendezvousText);
  std::string text(bytes, '\0');
  QLORA_RETURN_IF_ERROR(receiveAll(socket, text.data(), bytes));
  return text;
}

Status portTaken(std::string_view place) {
  return Status::unavailable(
      "rank 0 cannot listen at {}: another program uses the port. Fix: set "
      "another MASTER_PORT on every rank",
      place);
}

Status noAnswer(std::string_view place, std::chrono::milliseconds patience) {
  return Status::unavailable(
      "{} accepts connections, but did not answer in {} s. Fix: check whether "
      "rank 0 is stopped there, or another program uses the port",
      place, patience.count() / 1000.0);
}

Status otherSecret(int rank, std::string_view address, std::string_view place) {
  return Status::unavailable(
      "rank {} ({}) has another QLORA_JOB_SECRET than rank 0 at {}. Fix: give "
      "all ranks of a job the same secret, and each job its own MASTER_PORT",
      rank, address, place);
}

Status notReached(std::string_view place, std::string_view ranks,
                  std::chrono::milliseconds patience) {
  return Status::unavailable(
      "rank 0 at {} was not reached in {} s by rank {}. Fix: start the missing "
      "ranks, and check that the host of rank 0 is up and its port open",
      place, patience.count() / 1000.0, ranks);
}

} // namespace qlora
