// SPDX-License-Identifier: MIT

// What a checkpoint is of, written into its manifest, and whether a run can go
// on with it. Facts are of three kinds:
//
//   what has to be the same   model, data, the options that decide the numbers
//                             of a step, rows of a step: else it is refused,
//                             with both values
//   what bits depend on       program, backend, ranks, threads: another one is
//                             another rounding, and is said
//   what a user may change    learning rate, schedule and so on: is said
//
// "model" is a digest of what decides the model's numbers (ModelIdentity.h) and
// of a sample of its weights; "data" one of all rows that are trained on.

#ifndef QLORA_RUNTIME_SESSION_CHECKPOINTFACTS_H
#define QLORA_RUNTIME_SESSION_CHECKPOINTFACTS_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// Of this process.
struct RunFacts {
  const LoadedModule &module;
  const Options &options;
  const Dataset &data;
  StepShape step;
  int threads = 0;
};

/// What the program's compiler knew of the model that decides its numbers.
nlohmann::json modelFacts(const Options &options);

/// Reads a little of the model folder's weights, and all of the program.
StatusOr<nlohmann::ordered_json> checkpointFacts(const RunFacts &run);

/// What a training has started from: the SHA-256 of the adapter that
/// --adapter-name-or-path names, "" for none, null if nobody knows. It is that of
/// the checkpoint (`before`, null: nothing is resumed), which has what the adapter
/// has become; a different adapter that is given is refused.
StatusOr<nlohmann::ordered_json>
startFact(const Options &options, const nlohmann::ordered_json *before);

/// Whether an option of a program changes what is in memory or computed together,
/// and no number but by its rounding.
bool decidesPlanAlone(std::string_view option);

/// Whether a run with facts `own` can go on with a checkpoint of `before`,
/// named `checkpoint` in errors; what the user should know of it in `remarks`.
Status compareFacts(const std::string &checkpoint,
                    const nlohmann::ordered_json &before,
                    const nlohmann::ordered_json &own,
                    std::vector<std::string> &remarks);

/// Micro-batches that each rank accumulates: what the options say, or so many
/// that a step has the rows of the checkpoint's (`before`, null: nothing is
/// resumed). Options that say something else are refused, unless they are those
/// of the checkpoint and only the number of ranks is another one.
StatusOr<int64_t> accumulationFor(const nlohmann::ordered_json &before,
                                  const Options &options, int64_t ranks,
                                  std::vector<std::string> &remarks);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_CHECKPOINTFACTS_H
