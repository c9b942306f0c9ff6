// SPDX-License-Identifier: MIT

// The order in which the stages of a pipeline work at chunks of a batch, and in
// which they send each other what these make.
//
//   1F1B           after as many forwards as there are stages behind it, a stage
//                  does one forward and one backward in turn, and so holds no
//                  more than that many chunks' activations, however many chunks
//                  there are (Narayanan et al., 2019: PipeDream-Flush)
//   interleaved    a stage has several parts of the layers, each far from the
//                  next: of S stages with V parts, stage s has the parts s, s + S,
//                  ... of S V. Stages wait a V-th as long for each other at the
//                  beginning and the end, for V times the transfers (Narayanan et
//                  al., 2021: Megatron-LM, of whose schedule it is the order)
//   GPipe          all forwards, then all backwards (Huang et al., 2019)
//
// Who sends waits until the other side receives, and each stage's transfers are
// made one after the other. So the order of all of them is one, and each stage's is
// its part of that: whoever is first in it never waits for a later one. It is that
// of a run in which a backward takes twice a forward's time.

#ifndef QLORA_COMPILER_SUPPORT_PIPELINEORDER_H
#define QLORA_COMPILER_SUPPORT_PIPELINEORDER_H

#include <cstdint>
#include <vector>

namespace qlora {

struct PipelineForm {
  int64_t stages = 1;
  int64_t parts = 1;  ///< of a stage
  int64_t chunks = 1; ///< of more than one part a multiple of the stages
  bool allForwardsFirst = false;
  bool hasBackward = true; ///< no: an evaluation
};

/// What a stage does for one chunk and one of its parts.
struct PipelineTurn {
  enum class Kind { kReceive, kCompute, kSend };
  Kind kind;
  bool isBackward;
  int64_t chunk, part;
  bool operator==(const PipelineTurn &) const = default;
};

/// All turns of a stage. A transfer stands before what happens while it is made, and
/// behind what makes what is sent.
std::vector<PipelineTurn> pipelineOrder(const PipelineForm &form,
                                        int64_t stage);

/// Chunks whose activations a stage holds at the same time, in parts: rounded up
/// to whole ones.
int64_t chunksInFlight(const PipelineForm &form, int64_t stage);

} // namespace qlora

#endif // QLORA_COMPILER_SUPPORT_PIPELINEORDER_H
