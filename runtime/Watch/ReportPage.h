// SPDX-License-Identifier: MIT

// report.html: a run on one page, from what is in its folder alone
// (RunFolder.h), so that it can be made again at any
// time, of a run that was broken off too. The page loads nothing and runs no
// script; it is for a phone and a desktop, light and dark.
//
// It is made of whatever can be read: a line that is cut or no JSON is left
// out and counted, and a number that is not finite is a gap in its chart. Names
// and values of the user's are text in it, never markup.

#ifndef QLORA_RUNTIME_WATCH_REPORTPAGE_H
#define QLORA_RUNTIME_WATCH_REPORTPAGE_H

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Watch/RunFolder.h"

namespace qlora {

inline constexpr const char *kReportFile = "report.html";

std::string reportPage(const RunFolder &run);

/// Writes it into the folder of a run, in place of an older one. kNotFound: it
/// has no metrics.jsonl.
Status writeReport(const std::string &folder);

/// A whole page with the style of these, and `content` below its title.
std::string pageHtml(const std::string &title, const std::string &content);

/// A sentence where lines of `name` cannot be read.
std::string unreadableHtml(const std::string &name, size_t lines);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_REPORTPAGE_H
