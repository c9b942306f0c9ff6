// SPDX-License-Identifier: MIT

// Calls the checks, cheapest first.

#include "runtime/Session/RunCheck.h"

#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Data/DataFiles.h"
#include "runtime/Session/AnswerScorer.h"
#include "runtime/Session/OutputFolder.h"

namespace qlora {

Status checkRun(const Options &options, bool follows) {
  QLORA_RETURN_IF_ERROR(checkBestModelOptions(options));
  QLORA_RETURN_IF_ERROR(checkAnswerOptions(options));
  QLORA_RETURN_IF_ERROR(checkDataFiles(options, trains(options)));
  if (follows)
    QLORA_RETURN_IF_ERROR(checkOutputFolder(options));
  // A checkpoint already includes the initial adapter.
  const std::string from = options.text("adapter_name_or_path");
  const bool resumes = !options.text("resume_from_checkpoint").empty();
  return from.empty() || resumes ? Status::ok()
                                 : checkAdapterOptions(from, options);
}

} // namespace qlora
