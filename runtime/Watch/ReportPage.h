// SPDX-License-Identifier: MIT

// report.html: a run on one page, made only from the files in the run's folder
// (RunFolder.h). So the page can be made at any time, also for an interrupted
// run. Unreadable data does not stop the page: a line that is truncated or not
// JSON is left out and counted, and a value that is not finite is a gap in its
// chart.

#ifndef QLORA_RUNTIME_WATCH_REPORTPAGE_H
#define QLORA_RUNTIME_WATCH_REPORTPAGE_H

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Watch/RunFolder.h"

namespace qlora {

inline constexpr const char *kReportFile = "report.html";

std::string reportPage(const RunFolder &run);

/// Writes the page into the folder of a run, over an older one. kNotFound if
/// the folder has no metrics.jsonl.
Status writeReport(const std::string &folder);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_REPORTPAGE_H
