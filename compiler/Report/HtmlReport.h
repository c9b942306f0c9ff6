// SPDX-License-Identifier: MIT

// Writes the report as a page: Page.html with its scripts, and the data as JSON
// in one element:
//
//   {"plan": {...},                  // plan.json
//    "run": {...},                   // RunMetadata.h
//    "categories": ["saved", ...],   // BufferCategory
//    "texts": ["...", ...],          // labels and kernels, by index
//    "entries": [
//      {"kind", "batch", "length", "seconds",
//       "commands": {"kernel": [texts...], "label": [texts...],
//                    "queue": [...], "start": [us...], "end": [us...]},
//       "buffers": {"arena": [0: activation, 1: workspace...],
//                   "label": [texts...], "category": [categories...],
//                   "offset": [...], "bytes": [...],
//                   "first": [commands...], "last": [commands...]},
//       "peak": {"command", "bytes", "by_category": {...}},
//       "collectives": [{"command", "bucket", "bytes"}]}]}
//
// Arrays per column instead of objects per row keep twelve thousand commands
// with nine thousand buffers within a megabyte. The page's content security
// policy forbids it to fetch anything. Names from the model cannot become
// markup: `<` is escaped in the JSON, and the script creates text nodes.

#ifndef QLORA_COMPILER_REPORT_HTMLREPORT_H
#define QLORA_COMPILER_REPORT_HTMLREPORT_H

#include "compiler/Report/EntryTimeline.h"

#include "llvm/Support/JSON.h"

namespace qlora {

/// Returns the page. `plan` is plan.json, and `run` the text of runMetadata().
std::string htmlReport(llvm::json::Value plan, llvm::StringRef run,
                       llvm::ArrayRef<EntryTimeline> timelines);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_HTMLREPORT_H
