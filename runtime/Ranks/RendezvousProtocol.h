// SPDX-License-Identifier: MIT

// How the ranks of a job find each other: rank 0 serves two exchanges over TCP.
// In the first, each rank sends a few bytes and, when all ranks have done so,
// receives the next rank's bytes. The bytes contain the address at which the
// rank listens, so the ranks can connect to a ring (Ring.h), which carries all
// later messages. In the second exchange each rank confirms the connection.
//
// Instead of its bytes, a rank may send an error if it cannot take part. The
// server may also find an error: a missing rank, two clients with the same
// rank, another version, or a closed connection. The first error is sent to all
// at once, so every host shows the same line. A rank may get it before its next
// request, while it connects to its neighbours.
//
// Each side first proves that it has the job's secret: it sends an HMAC of 32
// random bytes from each side. Without a correct proof the connection is
// closed. A peer that follows the protocol with the wrong secret is probably a
// misconfigured rank. If ranks are still missing a few seconds later, the start
// fails with an error that names this peer. So a stranger can prevent a start,
// but it cannot join a job or disturb a running one.
//
// Messages, with little-endian integers:
//
//   server: kRendezvousMagic, random bytes
//   client: kRendezvousMagic, u32 rank, random bytes, proof
//   server: proof
//   twice:
//   client: RendezvousRequest, text
//   server: u8 0, u32 length, answer; or u8 1, u32 length, error

#ifndef QLORA_RUNTIME_RANKS_RENDEZVOUSPROTOCOL_H
#define QLORA_RUNTIME_RANKS_RENDEZVOUSPROTOCOL_H

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankTimeLimits.h"

namespace qlora {

/// Random bytes, or an HMAC-SHA256 with the job's secret as its key.
using Digest = std::array<unsigned char, 32>;
StatusOr<Digest> randomDigest();
/// Proves knowledge of `secret`: returns the HMAC of `role` and random `drawn`.
Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &drawn);
/// Returns the HMAC over the random bytes of both ends of a connection.
Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &ofServer, const Digest &ofClient);
inline constexpr std::string_view kClientRole = "rank";
inline constexpr std::string_view kServerRole = "rendezvous";
/// Compares two digests in constant time.
bool isSame(const Digest &a, const Digest &b);

/// The server's first bytes, which identify the protocol.
inline constexpr std::array<char, 8> kRendezvousMagic = {'q', 'l', 'o', 'r',
                                                         'a', 'r', 'z', '2'};
struct RendezvousHello {
  std::array<char, 8> magic = kRendezvousMagic;
  Digest drawn{};
};
/// The client's first message.
struct RendezvousGreeting {
  std::array<char, 8> magic = kRendezvousMagic;
  uint32_t rank = 0;
  Digest drawn{}, proof{};
};
/// The header of a client's text, which is an error if `isFailure`.
struct RendezvousRequest {
  uint32_t ranks = 0, isFailure = 0, bytes = 0;
  std::array<char, 32> version{};
  std::array<char, 64> host{};
};
/// The header of an answer. The text follows.
struct [[gnu::packed]] RendezvousAnswer {
  uint8_t isRefused;
  uint32_t bytes;
};

/// Maximum bytes of a value or an error text.
inline constexpr uint32_t kMaxRendezvousText = 4096;
StatusOr<std::string> receiveText(const FileDescriptor &socket, uint32_t bytes);

/// Return errors that the server and its clients print in the same words.
Status portTaken(std::string_view place);
Status noAnswer(std::string_view place, std::chrono::milliseconds patience);
Status otherSecret(int rank, std::string_view address, std::string_view place);
Status notReached(std::string_view place, std::string_view ranks,
                  std::chrono::milliseconds patience);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUSPROTOCOL_H
