// SPDX-License-Identifier: MIT

// The tables of targets and of rules.

#include "tools/qlora/TargetRules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "frontend/Families.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

const std::vector<std::string> &exportTargetNames() {
  static const std::vector<std::string> names = {"peft", "vllm", "llama.cpp",
                                                 "ollama"};
  return names;
}

StatusOr<ExportTarget> parseExportTarget(const std::string &name) {
  const auto &names = exportTargetNames();
  const auto found = std::ranges::find(names, name);
  if (found != names.end())
    return static_cast<ExportTarget>(found - names.begin());
  const std::string nearest = nearestName(name, names);
  return Status::invalid("'{}' is not a target; {}", name,
                         nearest.empty()
                             ? fmt::format("there are: {}",
                                           fmt::join(names, ", "))
                             : fmt::format("did you mean '{}'?", nearest));
}

namespace {

/// Returns what vLLM supports of the model: no adapters if it has no record.
VllmSupport vllmOf(const ExportFacts &facts) {
  const auto family = findFamily({facts.architecture}, "");
  return family.isOk() ? family.value()->vllm : VllmSupport{.lora = false};
}

/// vLLM's choices of --max-lora-rank (vllm/config/lora.py, MaxLoRARanks).
constexpr std::array<int64_t, 9> kVllmRanks = {1,   8,   16,  32, 64,
                                               128, 256, 320, 512};
constexpr int64_t kVllmDefaultRank = 16;

/// Returns vLLM's smallest --max-lora-rank for this rank; 0: there is none.
int64_t vllmRank(const ExportFacts &facts) {
  const auto found = std::ranges::lower_bound(kVllmRanks, facts.rank);
  return found == kVllmRanks.end() ? 0 : *found;
}

/// A rule: if `applies`, the targets do not load the adapter or the model, or
/// load it with a note. `{NAME}` in the texts is a fact (textOf()).
struct TargetRule {
  unsigned targets; ///< a bit for each, from bit()
  Fit fit;
  bool (*applies)(const ExportFacts &facts);
  const char *why, *todo;
};

constexpr unsigned bit(ExportTarget target) {
  return 1u << static_cast<unsigned>(target);
}

constexpr unsigned kPeft = bit(ExportTarget::kPeft);
constexpr unsigned kVllm = bit(ExportTarget::kVllm);
constexpr unsigned kLlamaCpp = bit(ExportTarget::kLlamaCpp);
constexpr unsigned kOllama = bit(ExportTarget::kOllama);

constexpr const char *kMerge =
    "qlora export RUN --to merged, and load that model";
constexpr const char *kMergeGguf = "qlora export RUN --to gguf";
constexpr const char *kLoraGguf = "qlora export RUN --to gguf-lora";

using Facts = ExportFacts;
constexpr Fit kNo = Fit::kNo, kNote = Fit::kNote;

// One row per fact. Rules of adapters test isAdapter themselves only if their
// fact may be set without an adapter.
constexpr TargetRule kRules[] = {
    // Full fine-tuning.
    {kPeft, kNo, [](const Facts &f) { return !f.isAdapter; },
     "all weights are trained, so there is no adapter",
     "load the output folder with transformers"},
    // The model's family.
    {kVllm, kNo,
     [](const Facts &f) { return f.isAdapter && !vllmOf(f).lora; },
     "vLLM has no LoRA for {architecture}", kMerge},
    // Kinds of adapters.
    {kVllm, kNo, [](const Facts &f) { return f.usesDora; }, "vLLM has no DoRA",
     kMerge},
    {kLlamaCpp, kNo, [](const Facts &f) { return f.usesDora; },
     "llama.cpp's adapters have no DoRA", kMergeGguf},
    {kVllm, kNo, [](const Facts &f) { return !f.savedModules.empty(); },
     "vLLM refuses modules_to_save ({modules})", kMerge},
    {kLlamaCpp, kNo, [](const Facts &f) { return !f.savedModules.empty(); },
     "llama.cpp's adapters have no modules_to_save ({modules})", kMergeGguf},
    {kVllm, kNo, [](const Facts &f) { return f.trainsTokens; },
     "vLLM refuses trainable_token_indices", kMerge},
    {kLlamaCpp, kNo, [](const Facts &f) { return f.trainsTokens; },
     "llama.cpp's adapters have no trainable_token_indices", kMergeGguf},
    {kPeft, kNote, [](const Facts &f) { return f.trainsTokens; },
     "trainable_token_indices need PEFT 0.15 or newer",
     "pip install -U peft"},
    {kVllm, kNo, [](const Facts &f) { return f.trainsBiases; },
     "vLLM refuses trained biases", kMerge},
    {kLlamaCpp, kNo, [](const Facts &f) { return f.trainsBiases; },
     "llama.cpp's adapters have no biases", kMergeGguf},
    {kVllm | kLlamaCpp, kNo,
     [](const Facts &f) { return f.needsChangedBase; },
     "init_lora_weights changed the base, so the adapter does not belong to "
     "the original one",
     "convert it with path_initial_model_for_weight_conversion of PEFT"},
    {kPeft, kNote, [](const Facts &f) { return f.needsChangedBase; },
     "init_lora_weights changes the base while PEFT loads the adapter",
     "load it on a base that is not quantized"},
    // Adapted modules.
    {kVllm, kNo,
     [](const Facts &f) {
       return f.adaptsStackedExperts && !vllmOf(f).stackedExperts;
     },
     "vLLM has adapters of single experts of {architecture}, but no "
     "target_parameters",
     kMerge},
    {kPeft, kNote, [](const Facts &f) { return f.adaptsStackedExperts; },
     "target_parameters need PEFT 0.17 or newer", "pip install -U peft"},
    {kVllm, kNote,
     [](const Facts &f) { return f.adaptsEmbedding || f.adaptsHead; },
     "only some models of vLLM have adapters of the embedding or the LM head",
     "if vLLM refuses the module: qlora export RUN --to merged"},
    {kLlamaCpp, kNo, [](const Facts &f) { return f.isTied && f.adaptsHead; },
     "the LM head is tied to the embedding, so GGUF files have none to adapt",
     kMergeGguf},
    {kLlamaCpp, kNo,
     [](const Facts &f) { return f.isTied && f.adaptsEmbedding; },
     "the LM head is tied to the embedding, so llama.cpp would apply the "
     "embedding's adapter to it too",
     kMergeGguf},
    // Numbers.
    {kVllm, kNo, [](const Facts &f) { return f.isAdapter && !vllmRank(f); },
     "rank {rank} is above vLLM's maximum of {vllmMost}", kMerge},
    {kVllm, kNote,
     [](const Facts &f) { return vllmRank(f) > kVllmDefaultRank; },
     "rank {rank} is above vLLM's default of {vllmDefault}",
     "vllm serve ... --max-lora-rank {vllmRank}"},
    {kVllm, kNote, [](const Facts &f) { return f.hasPatterns; },
     "older versions of vLLM ignore patterns of rank and alpha, and scale some "
     "modules wrongly",
     "compare answers with those of qlora generate"},
    {kLlamaCpp, kNote,
     [](const Facts &f) { return f.usesRslora || f.hasAlphaPattern; },
     "convert_lora_to_gguf.py ignores rsLoRA and patterns of alpha: it scales "
     "all modules by alpha / rank",
     kLoraGguf},
    {kLlamaCpp, kNote,
     [](const Facts &f) { return f.isAdapter && f.linearsAreInOut; },
     "convert_lora_to_gguf.py transposes adapters of {architecture} wrongly",
     kLoraGguf},
    {kLlamaCpp, kNote, [](const Facts &f) { return f.adaptsStackedExperts; },
     "convert_lora_to_gguf.py has no target_parameters", kLoraGguf},
    // Files.
    {kPeft | kVllm | kLlamaCpp, kNo,
     [](const Facts &f) { return !f.unknownTensor.empty(); },
     "the tensor '{tensor}' has no name of a PEFT adapter",
     "save the adapter again with save_pretrained of PEFT"},
    {kOllama, kNote, [](const Facts &f) { return f.isAdapter; },
     "ollama loads the merged model, because its engine has no adapters",
     "qlora export RUN --to ollama"},
};

} // namespace

static std::string textOf(const char *text, const ExportFacts &facts) {
  return fmt::format(fmt::runtime(text),
                     fmt::arg("architecture", facts.architecture),
                     fmt::arg("rank", facts.rank),
                     fmt::arg("vllmRank", vllmRank(facts)),
                     fmt::arg("vllmDefault", kVllmDefaultRank),
                     fmt::arg("vllmMost", kVllmRanks.back()),
                     fmt::arg("tensor", facts.unknownTensor),
                     fmt::arg("modules", fmt::join(facts.savedModules, ", ")));
}

std::vector<Finding> ggufFindings(const ExportFacts &facts) {
  std::vector<Finding> findings;
  const std::string &refusal = facts.ggufRefusal;
  // The remedy follows the first semicolon.
  const size_t end = refusal.find("; ");
  if (!refusal.empty())
    findings.push_back({Fit::kNo, refusal.substr(0, end),
                        end == refusal.npos ? kMerge
                                            : refusal.substr(end + 2)});
  for (const std::string &warning : facts.ggufWarnings)
    findings.push_back({Fit::kNote, warning,
                        "compare answers with those of qlora generate"});
  return findings;
}

std::vector<Finding> findingsFor(ExportTarget target,
                                 const ExportFacts &facts) {
  std::vector<Finding> findings;
  if ((bit(target) & (kLlamaCpp | kOllama)) != 0)
    findings = ggufFindings(facts);
  for (const TargetRule &rule : kRules)
    if ((rule.targets & bit(target)) != 0 && rule.applies(facts))
      findings.push_back(
          {rule.fit, textOf(rule.why, facts), textOf(rule.todo, facts)});
  std::ranges::stable_sort(findings, std::ranges::greater(), &Finding::fit);
  return findings;
}

Fit worstFit(const std::vector<Finding> &findings) {
  Fit worst = Fit::kYes;
  for (const Finding &finding : findings)
    worst = std::max(worst, finding.fit);
  return worst;
}

} // namespace qlora
