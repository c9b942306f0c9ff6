// SPDX-License-Identifier: MIT

// `--dump FILE`: what a step computes on the way, for comparison with other
// implementations. One safetensors file with
//
//   logits                f32 [batch, length, vocabulary] of micro-batch 0
//                         before step 1
//   grad.<PEFT's name>    f32, gradient of the mean loss of step 1, after the
//                         sum over ranks and before clipping
//   dropout.<PEFT's path of an adapted module>
//                         u8 [micro-batches, rows, columns of its input], 1
//                         where its adapter's input is kept in step 1. In the
//                         global order of micro-batches, over all ranks and
//                         accumulations; rows are those of the step's longest
//                         micro-batch, B T, and a shorter one has the first
//   dropout.<path>.op     i64 [1], with which Kernels/Math/Philox.h draws the
//                         masks of any other micro-batch
//   <weight>.packed, .absmax, .quant_map [, .nested_absmax,
//   .nested_quant_map, .nested_offset], .dequantized
//                         of each weight kept in 4 bits, named as
//                         bitsandbytes names them; only the last where ranks
//                         have slices of it
//
// Step 1 is the first that has a labelled token. dropout.* are there where the
// adapters have dropout (DropoutMasks.h); logits are those of evaluation, which
// has none.
//
// It holds all of this in memory: it is for small models.

#ifndef QLORA_RUNTIME_SESSION_DUMP_H
#define QLORA_RUNTIME_SESSION_DUMP_H

#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Session/Run.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Rank 0's, which others help to fill where each has a part of the base or of what
/// is trained.
class Dump {
public:
  /// Before step 1, with what is there by then; nothing where `path` is empty, and
  /// on ranks that have nothing to add.
  static StatusOr<std::optional<Dump>> open(const std::string &path,
                                            const Run &run);

  /// After ACCUMULATE_LAST of step 1; `labels`: of the whole step.
  Status takeGradients(const Run &run);
  /// `step`: from 0, the one whose gradients are taken.
  Status takeDropout(const Run &run, int64_t step);
  /// On rank 0 alone.
  Status write();

private:
  Dump(std::string path, bool isWritten)
      : path(std::move(path)), isWritten(isWritten) {}
  Status takeLogits(const Run &run);
  Status takeWeights(const Run &run);
  Status takeStages(const Run &run);
  Status takeItem(Collectives &ranks, int of, const std::string &name,
                  const SafetensorsItem *own);
  Status takeSlices(const Run &run, const qlora_parameter &parameter,
                    std::span<const uint8_t> own);
  void add(std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape,
           std::span<const uint8_t> bytes);
  void addWeight(const qlora_parameter &parameter,
                 std::span<const uint8_t> bytes);

  const std::string path;
  const bool isWritten;
  std::list<std::vector<uint8_t>> storage; ///< what the items point to
  std::vector<SafetensorsItem> items;
};

/// The token, among those of whole lines, that a row of logits is of. Ranks of
/// `parts` parts of lines have one each, one after the other; rows are those of
/// the rank `first`, and behind them those of the ranks that follow it.
int64_t tokenOfRow(int64_t row, const BatchShape &shape, int64_t parts,
                   int64_t first);

/// The slices that ranks have of a parameter, as the whole of which they are:
/// its segments, one after the other, have a part of each rank.
std::vector<uint8_t> joinSlices(const LoadedModule &module,
                                const qlora_parameter &parameter,
                                std::span<const std::vector<uint8_t>> slices);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_DUMP_H
