// SPDX-License-Identifier: MIT

// The pieces and slices of a base that ranks hold together
// (qlora_parameter::piece and ::slices in ABI/module.h): how each rank's get
// into its arena, which has no room for a whole tensor. Their bytes are those
// of the whole, cut (WholeTensor.h).
//
// What is only copied or converted, and lies together in the file, each rank
// reads for itself, its own elements and no others. What is quantised is one
// tensor to the end (a scale of scales is over all of it), and to do it N times
// over for N ranks would take N times as long; as would reading all rows of a
// file for some columns. So ranks go through these together, N a round: rank r
// makes number r of the round whole, in memory of its own and on the host, and
// tells the others their pieces, some MiB at a time:
//
//   rank 0 makes w0   ->   w0[0] w0[1] w0[2]         (3 ranks)
//   rank 1 makes w1   ->   w1[0] w1[1] w1[2]
//   rank 2 makes w2   ->   w2[0] w2[1] w2[2]
//                           to     to    to
//                         rank 0 rank 1 rank 2
//
// Beside its arena a rank has one whole tensor at a time, and buffers of
// kExchangedBytes.

#ifndef QLORA_RUNTIME_WEIGHTS_FROZENPIECES_H
#define QLORA_RUNTIME_WEIGHTS_FROZENPIECES_H

#include <cstdint>
#include <functional>
#include <span>

#include "runtime/Device/Collectives.h"
#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/Parameters.h"
#include "runtime/Weights/WholeTensor.h"

namespace qlora {

/// Of all pieces that a rank sends or receives at a time, together.
inline constexpr uint64_t kExchangedBytes = uint64_t{8} << 20;

inline bool hasParts(const qlora_parameter &parameter) {
  return parameter.piece != 0 || parameter.slices != 0;
}

/// Whether a rank needs the whole tensor to have its part of it.
bool isCutFromWhole(const qlora_parameter &parameter);

/// Reads this rank's part of a parameter that is not cut from a whole one.
Status readPart(const LoadedModule &module, const ParameterSources &sources,
                const qlora_parameter &parameter, ArenaSink &arena);

/// Fills the parts of parameters that are cut from whole ones, which all ranks
/// of `holders` name in the same order. `filled` hears of each.
Status
exchangeParts(const LoadedModule &module, const ParameterSources &sources,
              Collectives &holders,
              std::span<const qlora_parameter *const> parameters,
              ArenaSink &arena,
              const std::function<void(const qlora_parameter &)> &filled);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_FROZENPIECES_H
