// SPDX-License-Identifier: MIT

// Interface for further outputs of a run's metrics. A sink that fails is
// reported once, and the run continues without it.

#ifndef QLORA_RUNTIME_WATCH_METRICSSINK_H
#define QLORA_RUNTIME_WATCH_METRICSSINK_H

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"

namespace qlora {

class MetricsSink {
public:
  virtual ~MetricsSink() = default;
  /// Receives the values of a line of metrics.jsonl (Metrics.h).
  virtual Status log(const nlohmann::ordered_json &values) = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_METRICSSINK_H
