// SPDX-License-Identifier: MIT

// The forms that `qlora export` writes, and what several of them need. To add a
// form: a row of kExportFormats in Export.cpp, its name among the choices of
// --to there, and its function.

#ifndef QLORA_TOOLS_QLORA_EXPORTFORMATS_H
#define QLORA_TOOLS_QLORA_EXPORTFORMATS_H

#include <optional>
#include <string>
#include <string_view>

#include "runtime/Base/Status.h"
#include "runtime/Export/ExportReport.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Export/StagedFolder.h"
#include "tools/qlora/ExportJob.h"
#include "tools/qlora/LossMeter.h"

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

/// Returns a report with the names of base and adapter.
ExportReport startReport(const ExportJob &job);

/// Opens the meter, and measures the losses before and after training. Returns
/// nothing with --no-verify.
StatusOr<std::optional<LossMeter>> startMeter(const ExportJob &job,
                                              ExportReport &report);

/// A merged model that was written as a Hugging Face folder.
struct MergedCandidate {
  BaseChoice choice;
  StagedFolder folder;
  Artefact artefact;
};

/// Writes the merged model for each base of --merge-into into a staged folder,
/// and measures it. Returns the one with the smallest loss. Adds all to the
/// report, the best one first, and says in `sentence` which base it has.
StatusOr<MergedCandidate> writeBestMerged(const ExportJob &job,
                                          std::optional<LossMeter> &meter,
                                          ExportReport &report,
                                          std::string &sentence);

/// Lets transformers or PEFT read `folder` (read_back.py) and measure its loss.
/// Returns kInvalidArgument if the reader cannot load it, or reads other
/// values. `form`: "merged" or "peft".
StatusOr<ReaderResult> readBack(const ExportJob &job, const LossMeter &meter,
                                const std::string &form,
                                const std::string &folder);

/// Prints the table and the warnings, and how to load the result.
void printReport(const ExportJob &job, const ExportReport &report);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORTFORMATS_H
