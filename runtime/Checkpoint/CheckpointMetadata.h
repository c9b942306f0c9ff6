// SPDX-License-Identifier: MIT

// The identity of a checkpoint, stored in its manifest, and the check whether a
// run can resume from it. There are three kinds of metadata:
//
//   must be equal     model, data, rows per step, and options that change a
//                     step's results: a difference is an error
//   affect rounding   program, backend, ranks, threads: changes are reported
//   free to change    learning rate, schedule and so on: changes are reported
//
// "model" is a digest of the model's identity (ModelIdentity.h) and of a sample
// of its weights. "data" is a digest of all training rows.

#ifndef QLORA_RUNTIME_CHECKPOINT_CHECKPOINTMETADATA_H
#define QLORA_RUNTIME_CHECKPOINT_CHECKPOINTMETADATA_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Arguments of checkpointMetadata().
struct RunMetadata {
  const LoadedModule &module;
  const Options &options;
  const Dataset &data;
  StepShape step;
  int threads = 0;
};

/// Returns the metadata in train.so that affects results.
nlohmann::json modelMetadata(const Options &options);

/// Computes the metadata from a sample of the weights and the complete program.
StatusOr<nlohmann::ordered_json> checkpointMetadata(const RunMetadata &run);

/// Returns the SHA-256 of the adapter from which training started:
///
///   resuming                 the value in `before`, if it has one
///   --adapter-name-or-path   the file's SHA-256; null if it is unreadable
///   without the option       ""
///
/// `before`: the metadata of the checkpoint to resume from; null: none. Refuses
/// an adapter other than the checkpoint's.
StatusOr<nlohmann::ordered_json>
startMetadata(const Options &options, const nlohmann::ordered_json *before);

/// Returns whether a program option changes only memory use and the grouping of
/// computations, so that results differ only by rounding.
bool decidesPlanAlone(std::string_view option);

/// Checks whether a run with metadata `own` can resume from the checkpoint
/// called `checkpoint` in errors, with metadata `before`. Appends to `remarks`.
Status compareMetadata(const std::string &checkpoint,
                       const nlohmann::ordered_json &before,
                       const nlohmann::ordered_json &own,
                       std::vector<std::string> &remarks);

/// Returns the number of micro-batches that each rank accumulates. `before`:
/// the metadata of the checkpoint to resume from; null: none. A resumed run
/// keeps the checkpoint's rows per step. Refuses options that ask for other
/// rows per step, but accepts unchanged options with another number of ranks.
StatusOr<int64_t> accumulationFor(const nlohmann::ordered_json &before,
                                  const Options &options, int64_t ranks,
                                  std::vector<std::string> &remarks);

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_CHECKPOINTMETADATA_H
