// SPDX-License-Identifier: MIT

// What other programs load, and what not: one table of rules for all commands
// that export or check. Facts about vLLM and llama.cpp were read in their
// sources (docs/check.md names the places).
//
//   for (const Finding &finding : findingsFor(ExportTarget::kVllm, facts))
//     fmt::print("{}. Fix: {}\n", finding.why, finding.todo);

#ifndef QLORA_TOOLS_QLORA_TARGETRULES_H
#define QLORA_TOOLS_QLORA_TARGETRULES_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "tools/qlora/ExportFacts.h"

namespace qlora {

/// kVllm and kLlamaCpp load the adapter together with its base, kOllama the
/// merged model.
enum class ExportTarget { kPeft, kVllm, kLlamaCpp, kOllama };

/// "peft", "vllm", "llama.cpp", "ollama", in the order of ExportTarget.
const std::vector<std::string> &exportTargetNames();

/// Returns kInvalidArgument, with the nearest name, if there is no such target.
StatusOr<ExportTarget> parseExportTarget(const std::string &name);

enum class Fit {
  kYes,
  kNote, ///< it loads, but the user must know something
  kNo,
};

struct Finding {
  Fit fit; ///< kNote or kNo
  std::string why;
  std::string todo; ///< one remedy
};

/// Returns all rules of the target that apply, those with kNo first. Empty: the
/// target loads the model, or the model with its adapter.
std::vector<Finding> findingsFor(ExportTarget target, const ExportFacts &facts);

/// Returns what llama.cpp cannot compute of a merged model (kNo), or computes
/// differently (kNote).
std::vector<Finding> ggufFindings(const ExportFacts &facts);

/// Returns the worst of the findings; kYes if there are none.
Fit worstFit(const std::vector<Finding> &findings);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TARGETRULES_H
