// SPDX-License-Identifier: MIT

// Writes the report as a page: Page.html with its scripts, and the data as JSON
// in one element:
//
//   {"plan": {...},   // plan.json
//    "run": {...}}    // RunMetadata.h
//
// The page's content security policy forbids it to fetch anything. Names from
// the model cannot become markup: `<` is escaped in the JSON, and the script
// creates text nodes.

#ifndef QLORA_COMPILER_REPORT_HTMLREPORT_H
#define QLORA_COMPILER_REPORT_HTMLREPORT_H

#include "llvm/ADT/StringRef.h"

#include <string>

namespace qlora {

/// Returns the page. `plan` is the text of plan.json, and `run` the text of
/// runMetadata().
std::string htmlReport(llvm::StringRef plan, llvm::StringRef run);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_HTMLREPORT_H
