// SPDX-License-Identifier: MIT

// The order in which the stages of a pipeline compute the chunks of a batch,
// and in which they send each other the results.
//
//   1F1B           after one forward per later stage, a stage alternates one
//                  forward and one backward. So it holds at most that many
//                  chunks' activations plus one, however many chunks there are
//                  (Narayanan et al., 2019: PipeDream-Flush)
//   interleaved    a stage has V virtual stages (parts): of S stages, stage s
//                  has the parts s, s + S, ... of S V. At start and end, stages
//                  wait for each other a V-th as long, for V times the
//                  transfers. Megatron-LM's order (Narayanan et al., 2021)
//   GPipe          all forwards, then all backwards (Huang et al., 2019)
//
// A send waits until its peer receives, and a stage makes its transfers one
// after the other. To avoid deadlocks, all transfers have one global order, of
// which each stage executes its own: the first never waits for a later one. The
// order comes from a simulated run whose backwards take twice a forward's time.

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

/// Returns all turns of a stage. A transfer comes after the computation of what
/// is sent, and before the computation that runs during the transfer.
std::vector<PipelineTurn> pipelineOrder(const PipelineForm &form,
                                        int64_t stage);

/// Returns the number of chunks whose activations a stage holds at the same
/// time. Counted in parts, and rounded up to whole chunks.
int64_t chunksInFlight(const PipelineForm &form, int64_t stage);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_PIPELINEORDER_H
