// SPDX-License-Identifier: MIT

// `--dump FILE`: intermediate results of a step, for comparison with other
// implementations. One safetensors file with
//
//   logits                f32 [batch, length, vocabulary] of micro-batch 0
//                         before step 1
//   grad.<PEFT's name>    f32, gradient of the mean loss of step 1, after the
//                         all-reduce and before clipping
//   dropout.<PEFT's path of an adapted module>
//                         u8 [micro-batches, rows, columns of its input]; 1
//                         means that the adapter's input is kept in step 1.
//                         Micro-batches are in global order, over all ranks
//                         and accumulations. rows is B T of the step's longest
//                         micro-batch; a shorter one uses the first rows
//   dropout.<path>.op     i64 [1], the op number with which
//                         Kernels/Math/Philox.h draws the masks
//   <weight>.packed, .absmax, .quant_map [, .nested_absmax,
//   .nested_quant_map, .nested_offset], .dequantized
//                         of each 4-bit weight, with bitsandbytes' names;
//                         only .dequantized if the weight is a slice
//
// Step 1 is the first step with a labelled token. dropout.* exist only if the
// adapters have dropout (DropoutMasks.h). Logits are computed without dropout.
//
// The dump is held in memory, so the option is only for small models.

#ifndef QLORA_RUNTIME_EXTRAS_DUMP_H
#define QLORA_RUNTIME_EXTRAS_DUMP_H

#include <list>
#include <span>
#include <string>
#include <vector>

#include "runtime/Session/RunExtra.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// Collects a dump on rank 0, and on other ranks that hold shards of the base
/// or of trainable parameters.
class Dump : public RunExtra {
public:
  explicit Dump(std::string path) : path(std::move(path)) {}

  /// Takes the logits and weights before step 1.
  Status begin(const Run &run) override;
  /// Adds the gradients and the dropout masks, and writes the file.
  Status firstGradients(const Run &run, int64_t step) override;

private:
  Status takeGradients(const Run &run);
  Status takeDropout(const Run &run, int64_t step);
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
  std::list<std::vector<uint8_t>> storage; ///< owns the bytes of the items
  std::vector<SafetensorsItem> items;
};

/// Returns the index, in complete sequences, of the token to which a row of
/// logits belongs. With context parallelism, the logits have the rows of cp
/// shard `first` of every sequence, then of the next shards in cyclic order.
/// `parts`: number of cp shards.
int64_t tokenOfRow(int64_t row, const BatchShape &shape, int64_t parts,
                   int64_t first);

/// Joins the ranks' slices of a parameter into the complete tensor:
/// each segment of the tensor consists of one range per rank, in rank order.
std::vector<uint8_t> joinSlices(const LoadedModule &module,
                                const qlora_parameter &parameter,
                                std::span<const std::vector<uint8_t>> slices);

} // namespace qlora

#endif // QLORA_RUNTIME_EXTRAS_DUMP_H
