// SPDX-License-Identifier: MIT

// Which sinks (MetricsSink.h) a run's options ask for.

#ifndef QLORA_RUNTIME_WATCH_SINKS_H
#define QLORA_RUNTIME_WATCH_SINKS_H

#include <cstdint>

#include "runtime/Base/Options.h"
#include "runtime/Watch/Metrics.h"

namespace qlora {

/// trainer_log.jsonl, and what --report-to names. `doneSteps`: by the run that
/// this one goes on with, whose event files' folder is used again.
Status attachSinks(Metrics &metrics, const Options &options, int64_t doneSteps,
                   int64_t totalSteps);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_SINKS_H
