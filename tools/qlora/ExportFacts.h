// SPDX-License-Identifier: MIT

// Facts about a model and its adapter that decide which programs can load them.
// They come from the options of a training that has not begun, or from the
// files of a finished adapter.

#ifndef QLORA_TOOLS_QLORA_EXPORTFACTS_H
#define QLORA_TOOLS_QLORA_EXPORTFACTS_H

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/HfConfig.h"
#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

struct ExportFacts {
  std::string architecture; ///< transformers' class of the text model
  bool isTied = false;      ///< embedding and LM head are one tensor
  bool linearsAreInOut = false; ///< weights are [in, out]: Conv1D
  /// Why llama.cpp cannot compute the model, with a remedy; empty: it can.
  std::string ggufRefusal;
  std::vector<std::string> ggufWarnings; ///< what llama.cpp ignores

  /// Whether an adapter is trained. Else all weights are, and the fields below
  /// do not apply.
  bool isAdapter = true;
  int64_t rank = 0; ///< the largest
  bool hasPatterns = false;     ///< modules differ in rank or alpha
  bool hasAlphaPattern = false; ///< modules differ in alpha
  bool usesRslora = false;
  bool usesDora = false;
  bool trainsBiases = false; ///< of the model or of B
  bool trainsTokens = false; ///< rows of the embedding
  bool adaptsEmbedding = false;
  bool adaptsHead = false;
  bool adaptsStackedExperts = false; ///< target_parameters
  std::vector<std::string> savedModules; ///< trained in full
  /// Whether the folder's init_lora_weights changes the base, as in PEFT's
  /// PiSSA. Adapters that qlora writes never need that.
  bool needsChangedBase = false;
  std::string unknownTensor; ///< a name that is not PEFT's; empty: none
};

/// Returns the facts of a training with these options.
StatusOr<ExportFacts> factsOfTraining(const Options &options,
                                      const ModelConfig &config);

/// Returns the facts of an adapter folder. `config`: of its base.
StatusOr<ExportFacts> factsOfAdapter(const std::string &folder,
                                     const ModelConfig &config);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORTFACTS_H
