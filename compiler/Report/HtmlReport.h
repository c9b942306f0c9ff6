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
// Columns instead of rows keep twelve thousand commands with nine thousand
// buffers within a megabyte. The page fetches nothing, which its own policy
// forbids. Names of the model are data: `<` is escaped in the JSON, and the
// script creates text nodes from them, never markup.

#ifndef QLORA_COMPILER_REPORT_HTMLREPORT_H
#define QLORA_COMPILER_REPORT_HTMLREPORT_H

#include "compiler/Report/EntryTimeline.h"

#include "llvm/Support/JSON.h"

namespace qlora {

/// `run`: JSON of runMetadata.
std::string htmlReport(llvm::json::Value plan, llvm::StringRef run,
                       llvm::ArrayRef<EntryTimeline> timelines);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_HTMLREPORT_H
