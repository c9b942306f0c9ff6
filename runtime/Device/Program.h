// SPDX-License-Identifier: MIT

// Runs the entries of a module for a session: accumulate a micro-batch, update,
// evaluate, read results. Selects the variant according to the micro-batch's
// shape, and maps inputs and results to their arenas.

#ifndef QLORA_RUNTIME_DEVICE_PROGRAM_H
#define QLORA_RUNTIME_DEVICE_PROGRAM_H

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Runs `entry` of the module that `device` has loaded. A GPU may still be
/// working on return, but later calls see the results (Device.h). The last
/// three arguments are those of Device::begin. An error names the entry and the
/// command's index and label; the device is then unusable.
Status runEntry(Device &device, const LoadedModule &module,
                const qlora_entry &entry, const qlora_step_block &step,
                bool onAllRanks = true, bool hasOneSegment = false);

inline constexpr qlora_binding_kind kStatistics[] = {
#define QLORA_STATISTIC(NAME, NUMBER, CASE, WORD) QLORA_RESULT_##NAME,
#include "runtime/ABI/Enums.def"
};
inline constexpr size_t kStatisticCount = std::size(kStatistics);
static_assert(kStatistics[kStatisticCount - 1] - QLORA_RESULT_LOSS_SUM + 1 ==
                  kStatisticCount,
              "statistics are numbered without gaps");

/// Sums over the units of a loss: labelled tokens, pairs of answers, or single
/// answers, depending on the objective of the program.
struct LossSums {
  enum class Of { kTokens, kPairs, kAnswers };

  /// The statistics (Enums.def), in order; 0 for those that the program does
  /// not have. LOSS_SUM includes ROUTER_LOSS here.
  std::array<double, kStatisticCount> values = {};
  /// The statistics that the program has.
  std::bitset<kStatisticCount> present;

  bool has(qlora_binding_kind statistic) const {
    return present[statistic - QLORA_RESULT_LOSS_SUM];
  }
  void setPresent(qlora_binding_kind statistic) {
    present.set(statistic - QLORA_RESULT_LOSS_SUM);
  }
  Of of() const {
    if (has(QLORA_RESULT_RIGHT_PAIRS))
      return Of::kPairs;
    return has(QLORA_RESULT_CHOSEN_COUNT) ? Of::kAnswers : Of::kTokens;
  }
  /// Whether every context-parallel rank has the sums of whole sequences. If
  /// not, each rank has the sums of its own tokens.
  bool isOfSequences() const { return of() != Of::kTokens; }
  double operator[](qlora_binding_kind statistic) const {
    return values[statistic - QLORA_RESULT_LOSS_SUM];
  }
  double &operator[](qlora_binding_kind statistic) {
    return values[statistic - QLORA_RESULT_LOSS_SUM];
  }
  double loss() const { return (*this)[QLORA_RESULT_LOSS_SUM]; }
  double labels() const { return (*this)[QLORA_RESULT_LABEL_COUNT]; }
  double routers() const { return (*this)[QLORA_RESULT_ROUTER_LOSS]; }

  LossSums &operator+=(const LossSums &other);
  LossSums &operator/=(double count);
};

/// Used by the session's thread. `module` and `device` outlive this.
class Program {
public:
  Program(const LoadedModule &module, Device &device);

  /// Runs forward and backward of one micro-batch into the gradient arena.
  /// `mostLabels`: the largest label count of any rank, over whole sequences;
  /// all ranks pass the same value. Empty if ranks run different entries.
  Status accumulate(const MicroBatch &batch, std::optional<int64_t> mostLabels,
                    const qlora_step_block &step);
  /// Runs the last micro-batch of a step, with the reductions over ranks, and
  /// starts to read the step's sums.
  Status accumulateLast(const MicroBatch &batch,
                        std::optional<int64_t> mostLabels,
                        const qlora_step_block &step);
  /// Starts to read a step's sums. Used instead of accumulateLast() if other
  /// code reduces over ranks.
  Status readSums(const MicroBatch &batch);
  /// Sets the TRAINABLE arena to the parameter values that are evaluated and
  /// saved, or back to the values that update() trains. Does nothing if the
  /// program does not distinguish them.
  Status switchTo(qlora_entry_kind kind, const qlora_step_block &step);
  /// Runs one optimizer step and starts to read its gradient norm.
  Status update(const qlora_step_block &step);

  /// Finish started reads, oldest first. finishSums() returns a step's loss and
  /// labels over all micro-batches and ranks, counting ranks with the same data
  /// once. finishNorm() returns the gradient norm before clipping.
  StatusOr<LossSums> finishSums();
  StatusOr<double> finishNorm() { return finishFloat(); }

  /// The program's statistics.
  std::span<const qlora_binding_kind> statistics() const { return sums; }
  /// Whether the loss includes a router loss, which needs `mean_labels`.
  bool hasRouterLoss() const;

  /// Returns this rank's cp shard of each sequence.
  SequenceShard sequenceShard() const;

  /// Runs the forward pass. Adds the sums of this rank's tokens to `sums`, and
  /// sets `correct` to 1 where the target is the argmax. `correct` has all
  /// tokens of the sequences; tokens of other ranks are 0.
  Status evaluate(const MicroBatch &batch, std::optional<int64_t> mostLabels,
                  const qlora_step_block &step, LossSums &sums,
                  std::vector<int32_t> &correct);

private:
  StatusOr<const qlora_entry *> find(qlora_entry_kind kind,
                                     const MicroBatch &batch) const;
  Status writeInputs(const qlora_entry &entry, const MicroBatch &batch);
  int64_t labelsOf(const qlora_entry &entry, const MicroBatch &batch,
                   std::optional<int64_t> mostLabels) const;
  Status readCorrect(const qlora_entry &entry, const MicroBatch &batch,
                     std::vector<int32_t> &correct);
  Status runOn(const qlora_entry &entry, const MicroBatch &batch,
               std::optional<int64_t> mostLabels, const qlora_step_block &step);
  StatusOr<const qlora_binding *> result(const qlora_entry &entry,
                                         qlora_binding_kind kind) const;
  Status startFloat(const qlora_entry &entry, qlora_binding_kind kind);
  StatusOr<double> finishFloat();
  Status startSums(const qlora_entry &entry);
  StatusOr<LossSums> finishFloats();

  const LoadedModule &module;
  Device &device;
  std::vector<qlora_binding_kind> sums; ///< sums of an entry, in reading order
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_PROGRAM_H
