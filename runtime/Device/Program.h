// SPDX-License-Identifier: MIT

// One entry on a device, and the entries of a module as the four things a session does: accumulate a
// micro-batch, update, evaluate, read results. Chooses the compiled variant
// by the micro-batch's length and knows where inputs and results live.

#ifndef QLORA_RUNTIME_DEVICE_PROGRAM_H
#define QLORA_RUNTIME_DEVICE_PROGRAM_H

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Device/MicroBatch.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Runs `entry` of the module that `device` has loaded and waits for it
/// (Device::begin has the last three). An error says the entry, the number of
/// the command and its label; the device is then unusable.
Status runEntry(Device &device, const LoadedModule &module,
                const qlora_entry &entry, const qlora_step_block &step,
                bool onAllRanks = true, bool hasOneSegment = false);

/// Sums over the labelled tokens of micro-batches, or over pairs of answers or
/// single ones where the program was compiled for them.
struct LossSums {
  enum class Of { kTokens, kPairs, kAnswers };

  double loss = 0;   ///< with that of routers, where they have one
  double labels = 0; ///< or pairs, or answers
  Of of = Of::kTokens;
  /// From QLORA_RESULT_CHOSEN_REWARDS to QLORA_RESULT_DIVERGENCE; 0 what the
  /// program does not have.
  std::array<double, 7> preferences = {};
  double routers = 0; ///< of the loss, that of routers

  /// Of lines, each rank that shares them finds all of it; else what is of its
  /// own tokens.
  bool isOfLines() const { return of != Of::kTokens; }
  double preference(qlora_binding_kind kind) const {
    return preferences[kind - QLORA_RESULT_CHOSEN_REWARDS];
  }

  LossSums &operator+=(const LossSums &other);
  LossSums &operator/=(double count);
};

/// Used by the session's thread. `module` and `device`, which has loaded it,
/// outlive this.
class Program {
public:
  Program(const LoadedModule &module, Device &device);

  /// Forward and backward of one micro-batch into the gradient arena.
  /// `mostLabels`: of the rank that has most, known to all of them alike, of
  /// whole lines; or nothing, where ranks run other entries.
  Status accumulate(const MicroBatch &batch, std::optional<int64_t> mostLabels,
                    const qlora_step_block &step);
  /// The last one of a step: with the sums over ranks, and with a read of the
  /// step's sums.
  Status accumulateLast(const MicroBatch &batch,
                        std::optional<int64_t> mostLabels,
                        const qlora_step_block &step);
  /// A read of the sums alone, of the entry that would be last; in place of its
  /// own where the sums over ranks are made elsewhere.
  Status readSums(const MicroBatch &batch);
  /// TRAINABLE := what is evaluated and saved, or again what is trained; nothing
  /// where these are the same.
  Status switchTo(qlora_entry_kind kind, const qlora_step_block &step);
  /// One optimizer step, with a read of its norm.
  Status update(const qlora_step_block &step);

  /// The reads that were started, which have to be finished in their order:
  /// loss and labels of a step, over all its micro-batches and ranks, where the
  /// ranks with the same rows count as one; the norm of its gradient before
  /// clipping.
  StatusOr<LossSums> finishSums();
  StatusOr<double> finishNorm() { return finishFloat(); }

  /// Whether a step needs the labels that its micro-batches have on average.
  bool hasRouterLoss() const;

  /// Which part of each line is this rank's.
  LinePart linePart() const;

  /// Forward only. Of this rank's tokens: `sums`, and `correct`, 1 where the
  /// target is the argmax; it has the tokens of all, and 0 for the others'.
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
  std::vector<qlora_binding_kind> sums; ///< that entries have, in order
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_PROGRAM_H
