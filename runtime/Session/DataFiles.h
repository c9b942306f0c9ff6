// SPDX-License-Identifier: MIT

// From the option train_file or validation_file to a dataset.

#ifndef QLORA_RUNTIME_SESSION_DATAFILES_H
#define QLORA_RUNTIME_SESSION_DATAFILES_H

#include <memory>
#include <string>

#include "runtime/Core/Options.h"
#include "runtime/Core/Status.h"
#include "runtime/Session/Dataset.h"
#include "runtime/Session/Metrics.h"
#include "runtime/Session/Program.h"
#include "runtime/Session/RankGroup.h"

namespace qlora {

struct DataRequest {
  const Options &options;
  const CompiledVariants &variants;
  const std::string &outputFolder; ///< its .cache/ keeps tokenised JSONL
  const nlohmann::json &vocabSize; ///< as recorded in the module
};

/// Opens the file that `option` names. All ranks call it: rank 0 tokenises
/// JSONL while the others wait, so ranks on other machines need to see the
/// same output folder. `metrics` (null on other ranks) hears what qlora-data
/// cut or left out.
StatusOr<std::unique_ptr<Dataset>> openDataFile(const DataRequest &request,
                                                const std::string &option,
                                                RankGroup &group,
                                                Metrics *metrics);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_DATAFILES_H
