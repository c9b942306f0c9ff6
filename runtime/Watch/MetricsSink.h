// SPDX-License-Identifier: MIT

// Who else wants the numbers of a run, in a form of its own. One that fails is
// said once, and the run goes on without it.

#ifndef QLORA_RUNTIME_WATCH_METRICSSINK_H
#define QLORA_RUNTIME_WATCH_METRICSSINK_H

#include <nlohmann/json.hpp>

#include "runtime/Base/Status.h"

namespace qlora {

class MetricsSink {
public:
  virtual ~MetricsSink() = default;
  /// What a line of metrics.jsonl has (Metrics.h).
  virtual Status log(const nlohmann::ordered_json &values) = 0;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_METRICSSINK_H
