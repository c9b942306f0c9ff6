// SPDX-License-Identifier: MIT

// The order in which the stages of a pipeline compute the chunks of a batch,
// and in which they send each other the results.
//
//   1F1B           a stage with N later stages first computes N forwards, then
//                  alternates one forward and one backward. It holds the
//                  activations of at most N + 1 chunks, however many there are
//                  (Narayanan et al., 2019: PipeDream-Flush)
//   interleaved    each of S stages has V virtual stages (parts). Stage s has
//                  the virtual stages s, s + S, s + 2 S, ... The idle time at
//                  start and end is V times shorter, for V times the transfers.
//                  Megatron-LM's order (Narayanan et al., 2021)
//   GPipe          all forwards, then all backwards (Huang et al., 2019)
//
// A send waits until its peer receives, and a stage makes one transfer at a
// time. To avoid deadlocks, all transfers of all stages have one global order,
// and each stage makes its transfers in that order. The order comes from a
// simulated run in which a backward takes twice the time of a forward.

#ifndef QLORA_COMPILER_SUPPORT_PIPELINEORDER_H
#define QLORA_COMPILER_SUPPORT_PIPELINEORDER_H

#include <cstdint>
#include <vector>

namespace qlora {

struct PipelineForm {
  int64_t stages = 1;
  int64_t parts = 1;  ///< virtual stages per stage
  int64_t chunks = 1; ///< with several parts, a multiple of the stages
  bool allForwardsFirst = false;
  bool hasBackward = true; ///< false: an evaluation
};

/// One action of a stage, for one chunk and one of the stage's parts.
struct PipelineTurn {
  enum class Kind { kReceive, kCompute, kSend };
  Kind kind;
  bool isBackward;
  int64_t chunk, part;
  bool operator==(const PipelineTurn &) const = default;
};

/// Returns all turns of a stage in order. A send comes after the computation of
/// the values that it sends, and before the stage's next computation.
std::vector<PipelineTurn> pipelineOrder(const PipelineForm &form,
                                        int64_t stage);

/// Returns the number of chunks whose activations a stage holds at the same
/// time. With virtual stages the number is rounded up to whole chunks.
int64_t chunksInFlight(const PipelineForm &form, int64_t stage);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_PIPELINEORDER_H
