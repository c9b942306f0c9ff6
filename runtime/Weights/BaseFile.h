// SPDX-License-Identifier: MIT

// A quantised base as a file: the FROZEN arena as it is in memory, so that the
// file is mapped and used in place, and behind it what shows that it is whole.
//
//   0             the arena
//   next page     head: magic, version, bytes of the arena and of a chunk, key
//                 checksums u64, one for each chunk of the arena
//                 checksum u64 of the head and the checksums
//
// The part behind the arena is written last: a file that was not finished has
// none. Numbers are those of the machine; a file of another byte order has
// another version.
//
// The checksum is XXH3, as fast as memory. It finds damage, not malice.

#ifndef QLORA_RUNTIME_WEIGHTS_BASEFILE_H
#define QLORA_RUNTIME_WEIGHTS_BASEFILE_H

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// Bytes with a checksum of their own: what is read or written at a time.
inline constexpr uint64_t kBaseChunk = uint64_t{4} << 20;

inline constexpr uint64_t baseChunks(uint64_t arenaBytes) {
  return (arenaBytes + kBaseChunk - 1) / kBaseChunk;
}

/// Of a whole file, for an arena of so many bytes.
uint64_t baseFileBytes(uint64_t arenaBytes);
/// Where the part behind the arena starts.
uint64_t baseTrailerOffset(uint64_t arenaBytes);

uint64_t baseChecksum(std::span<const uint8_t> bytes);

/// The part behind the arena. `key` is a ContentHash.
std::vector<uint8_t> baseTrailer(std::string_view key, uint64_t arenaBytes,
                                 std::span<const uint64_t> checksums);

/// Reads the whole of an open file, on the threads of this process. kDataLoss,
/// with the reason, where it is not the base of that key and size to the bit.
Status verifyBase(int descriptor, std::string_view key, uint64_t arenaBytes);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BASEFILE_H
