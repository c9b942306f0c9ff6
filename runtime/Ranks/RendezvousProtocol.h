// SPDX-License-Identifier: MIT

// How the ranks of a job find each other: rank 0 serves two exchanges over TCP.
// In the first each rank gives a few bytes, and is given those of the rank
// after it, once all are there. With that the ranks become a ring (Ring.h),
// which carries all else; in the second each says that it is one.
//
// In the place of its bytes a rank may say why it cannot take part. That, and
// what the server sees (a rank does not come, is there twice, has another
// version), is told to all: every host shows the same line.
//
// A connection starts with proof of the job's secret, from both sides, over 32
// random bytes of each. The secret itself never travels. Without the right
// proof the connection is closed. Who speaks like a rank, but has another
// secret, is most likely one: if ranks are missing a few seconds later, the
// start is given up and says so. A stranger can keep a job from starting, as
// it could by a flood of connections; it cannot join, nor disturb one that
// runs. Integers are little endian:
//
//   server: 8 bytes of kMagic, random bytes
//   client: 8 bytes of kMagic, u32 rank, random bytes, proof
//   server: proof
//   twice:
//   client: its numbers, version and host (Request), text
//   server: u8 0, u32 bytes, what it is given | u8 1, u32, why not

#ifndef QLORA_RUNTIME_RANKS_RENDEZVOUSPROTOCOL_H
#define QLORA_RUNTIME_RANKS_RENDEZVOUSPROTOCOL_H

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// How long a connection may take to prove the secret, from its beginning. It
/// holds up nobody: see ConnectionLoop.h.
inline constexpr std::chrono::milliseconds kHandshakeTimeout =
    std::chrono::seconds(10);

/// Random bytes, or the HMAC-SHA256 of some under the job's secret.
using Digest = std::array<unsigned char, 32>;
StatusOr<Digest> randomDigest();
/// That somebody who knows the secret says `role` of what was drawn.
Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &drawn);
/// The same over what both ends of a connection have drawn.
Digest proofOf(std::string_view secret, std::string_view role,
               const Digest &ofServer, const Digest &ofClient);
inline constexpr std::string_view kClientRole = "rank";
inline constexpr std::string_view kServerRole = "rendezvous";
/// In a time that does not tell where they differ.
bool isSame(const Digest &a, const Digest &b);

/// What a server says first. Another program's first words are others.
inline constexpr std::array<char, 8> kRendezvousMagic = {'q', 'l', 'o', 'r',
                                                         'a', 'r', 'z', '2'};
struct RendezvousHello {
  std::array<char, 8> magic = kRendezvousMagic;
  Digest drawn{};
};
/// What a client says first.
struct RendezvousGreeting {
  std::array<char, 8> magic = kRendezvousMagic;
  uint32_t rank = 0;
  Digest drawn{}, proof{};
};
/// Before the value that a client gives, or why it gives none.
struct RendezvousRequest {
  uint32_t ranks = 0, isFailure = 0, bytes = 0;
  std::array<char, 32> version{};
  std::array<char, 64> host{};
};
/// Before the text of an answer.
struct [[gnu::packed]] RendezvousAnswer {
  uint8_t isRefused;
  uint32_t bytes;
};

/// Of a value, or of why there is none.
inline constexpr uint32_t kMaxRendezvousText = 4096;
StatusOr<std::string> receiveText(const FileDescriptor &socket, uint32_t bytes);

/// What a server and its clients say alike, so that it is one line everywhere.
Status portTaken(std::string_view place);
Status saysNothing(std::string_view place, std::chrono::milliseconds patience);
Status otherSecret(int rank, std::string_view address, std::string_view place);
Status notReached(std::string_view place, std::string_view ranks,
                  std::chrono::milliseconds patience);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUSPROTOCOL_H
