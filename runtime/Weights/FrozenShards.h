// SPDX-License-Identifier: MIT

// Loads fsdp shards (qlora_parameter::piece in ABI/module.h) and
// slices (::slices) into arenas that have no space for a complete tensor. A
// shard consists of byte ranges of the complete tensor (WholeTensor.h).
//
// A rank reads its shard itself if the shard is contiguous in the file and not
// quantized. Other shards need the complete tensor: double quantization depends
// on all scales of a tensor, and a column shard has a part of each row. If each
// of N ranks loaded every tensor, the work would be done N times. So ranks
// process these tensors together, N per round. Rank r loads tensor r into host
// memory, and sends the other ranks their shards, some MiB at a time:
//
//   rank 0 loads w0   ->   w0[0] w0[1] w0[2]         (3 ranks)
//   rank 1 loads w1   ->   w1[0] w1[1] w1[2]
//   rank 2 loads w2   ->   w2[0] w2[1] w2[2]
//                           to     to    to
//                         rank 0 rank 1 rank 2
//
// In addition to its arena, a rank needs memory for one complete tensor at a
// time and for buffers of kExchangedBytes.

#ifndef QLORA_RUNTIME_WEIGHTS_FROZENSHARDS_H
#define QLORA_RUNTIME_WEIGHTS_FROZENSHARDS_H

#include <cstdint>
#include <functional>
#include <span>

#include "runtime/Device/Collectives.h"
#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/WholeTensor.h"

namespace qlora {

/// Maximum bytes, for all shards together, that a rank exchanges at a time.
inline constexpr uint64_t kExchangedBytes = uint64_t{8} << 20;

inline bool hasParts(const qlora_parameter &parameter) {
  return parameter.piece != 0 || parameter.slices != 0;
}

/// Returns whether the shard must be copied from the complete tensor.
bool isCutFromWhole(const qlora_parameter &parameter);

/// Reads this rank's shard of a parameter if isCutFromWhole() is false.
Status readPart(const LoadedModule &module, const ParameterSources &sources,
                const qlora_parameter &parameter, ArenaSink &arena);

/// Fills shards for which isCutFromWhole() is true. All ranks of `holders` must
/// pass the parameters in the same order. Calls `filled` after each parameter.
Status
exchangeParts(const LoadedModule &module, const ParameterSources &sources,
              Collectives &holders,
              std::span<const qlora_parameter *const> parameters,
              ArenaSink &arena,
              const std::function<void(const qlora_parameter &)> &filled);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENSHARDS_H
