// SPDX-License-Identifier: MIT

// report.html: a run on one page, made only from the files in the run's folder
// (RunFolder.h). So the page can be made at any time, also for an interrupted
// run. The page loads nothing and runs no script. It supports phones and
// desktops, light and dark.
//
// Unreadable data does not stop the page: a line that is truncated or not JSON
// is left out and counted, and a value that is not finite is a gap in its
// chart. Names and values from the user are escaped, never markup.

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

/// Returns an HTML page in the style of the report, with a title and `content`.
std::string pageHtml(const std::string &title, const std::string &content);

/// Returns a sentence about the unreadable `lines` of file `name`; "" for 0.
std::string unreadableHtml(const std::string &name, size_t lines);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_REPORTPAGE_H
