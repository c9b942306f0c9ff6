// SPDX-License-Identifier: MIT

// The bases that an adapter can be merged into, and the choice among them. If
// the training quantized the base, there are two candidates: the adapter added
// to the files' values, and to the values that the training computed with. Both
// are written and measured, and the better one is kept.

#ifndef QLORA_TOOLS_QLORA_EXPORTCANDIDATES_H
#define QLORA_TOOLS_QLORA_EXPORTCANDIDATES_H

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Export/ExportReport.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Export/StagedFolder.h"
#include "tools/qlora/ExportJob.h"
#include "tools/qlora/LossMeter.h"

namespace qlora {

/// Returns the bases to try, according to --merge-into.
StatusOr<std::vector<BaseChoice>> choicesOf(const ExportJob &job);

/// "the base's files" or "the dequantized base".
const char *titleOf(BaseChoice choice);

/// "into the base's files and the dequantized base; the better one is kept".
std::string planOf(const std::vector<BaseChoice> &choices);

/// A merged model that was written.
struct Candidate {
  BaseChoice choice;
  StagedFolder folder;
  Artefact artefact;
};

/// How a form writes and measures a merged model.
struct CandidateForm {
  std::string type; ///< of the weights, for people: "Q4_K_M"
  bool isQuantized = false;
  /// Why its loss differs: "rounding of the merged weights to F16".
  std::string cause;
  std::function<Status(const MergedModel &model, BaseChoice choice,
                       const std::string &folder)>
      write;
  std::function<StatusOr<double>(LossMeter &meter, const MergedModel &model,
                                 BaseChoice choice, const std::string &folder)>
      measure;
};

/// Writes the merged model for each base of --merge-into into a staged folder,
/// in the first form, and measures it. Returns the one with the smallest loss.
/// Adds all to the report, the best one first, and says in `sentence` which
/// base it has. The other forms are only measured, for the report.
StatusOr<Candidate> writeBest(const ExportJob &job,
                              std::optional<LossMeter> &meter,
                              const std::vector<CandidateForm> &forms,
                              ExportReport &report, std::string &sentence);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORTCANDIDATES_H
