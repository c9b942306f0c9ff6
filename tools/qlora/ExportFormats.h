// SPDX-License-Identifier: MIT

// The forms that `qlora export` writes, and what several of them need. To add a
// form: a row of kExportFormats in Export.cpp, its name among the choices of
// --to there, and its function.

#ifndef QLORA_TOOLS_QLORA_EXPORTFORMATS_H
#define QLORA_TOOLS_QLORA_EXPORTFORMATS_H

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Export/ExportReport.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Export/StagedFolder.h"
#include "tools/qlora/ExportJob.h"
#include "tools/qlora/LossMeter.h"
#include "tools/qlora/TargetRules.h"

namespace qlora {

struct ExportFormat {
  std::string_view name; ///< value of --to
  /// Values of --outtype, separated by spaces.
  std::string_view types;
  /// Writes job.output and its proofs, and prints what it did.
  Status (*run)(const ExportJob &job);
};

Status exportMerged(const ExportJob &job); ///< ExportMerged.cpp
Status exportPeft(const ExportJob &job);   ///< ExportPeft.cpp
Status exportGguf(const ExportJob &job); ///< ExportGguf.cpp; ollama too
Status exportGgufLora(const ExportJob &job); ///< ExportGgufLora.cpp


/// Refuses the first finding that does not fit. Appends what the others say to
/// `notes`.
Status checkFindings(const ExportJob &job, const std::vector<Finding> &findings,
                     std::vector<std::string> &notes);

/// Returns a report with the names of base and adapter, and with notes: clauses
/// without a period.
ExportReport startReport(const ExportJob &job,
                         const std::vector<std::string> &notes = {});

/// Opens the meter, and measures the losses before and after training. Returns
/// nothing with --no-verify.
StatusOr<std::optional<LossMeter>> startMeter(const ExportJob &job,
                                              ExportReport &report);

/// Lets the form's reader read `path` (read_back.py) and measure its loss.
/// Returns kInvalidArgument if the reader cannot load it, or reads other
/// values. `form`: "merged", "peft", "gguf" or "gguf-lora"; `more`: further
/// words for the script.
StatusOr<ReaderResult> readBack(const ExportJob &job, const LossMeter &meter,
                                const std::string &form,
                                const std::string &path,
                                const std::vector<std::string> &more = {});

/// Writes the digests of a file's tensors for read_back.py. Returns its flag.
StatusOr<std::string>
writeDigests(const LossMeter &meter,
             const std::map<std::string, std::string> &digests);

/// Prints the table and the warnings, and how to load the result.
void printReport(const ExportJob &job, const ExportReport &report);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORTFORMATS_H
