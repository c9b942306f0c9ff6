// SPDX-License-Identifier: MIT

// Creates the metrics sinks (MetricsSink.h) that a run's options request.

#ifndef QLORA_RUNTIME_WATCH_SINKS_H
#define QLORA_RUNTIME_WATCH_SINKS_H

#include <cstdint>

#include "runtime/Options/Options.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

/// Attaches trainer_log.jsonl and the sinks of --report-to. `doneSteps`: steps
/// of the resumed run, if any; its TensorBoard folder is used again.
Status attachSinks(Metrics &metrics, const Options &options, int64_t doneSteps,
                   int64_t totalSteps);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_SINKS_H
