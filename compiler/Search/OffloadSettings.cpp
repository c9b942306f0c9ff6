// SPDX-License-Identifier: MIT

// Names of --offload, and combinations that are refused.

#include "compiler/Search/PlanSettings.h"

#include "compiler/Support/TargetTraits.h"

namespace qlora {

Status fillOffload(const Options &o, CompileOptions &c) {
  c.offloadEmbedding = o.text("offload_embedding");
  for (const std::string &name : o.names("offload")) {
    if (name == "embedding" && c.offloadEmbedding == "false")
      return Status::invalid("--offload embedding conflicts with "
                             "--offload-embedding false; remove one");
    if (name == "embedding")
      c.offloadEmbedding = "true";
    else if (name == "base")
      c.offloadBase = true;
    else if (name == "optimizer")
      c.lower.offloadStates = true;
    else if (name == "activations")
      c.offloadActivations = true;
    else
      return Status::invalid("--offload: '{}' is not supported; choose from: "
                             "activations, base, embedding, optimizer",
                             name);
  }
  return Status::ok();
}

Status checkOffload(const PlanSettings &settings) {
  const CompileOptions &c = settings.compile;
  const auto traits = targetTraits(c.target);
  const bool hasOneMemory = traits && !traits->offloadsTables;
  if ((c.offloadBase || c.lower.offloadStates || c.offloadActivations) &&
      hasOneMemory)
    return Status::invalid(
        "--offload needs --target cuda: a CPU has one memory; remove it");
  if (c.offloadEmbedding == "true" && hasOneMemory)
    return Status::invalid("--offload-embedding true needs --target cuda: a "
                           "CPU has one memory; remove it");
  if (c.offloadActivationsPolicy == "all" && !c.offloadActivations)
    return Status::invalid("--offload-activations-policy all needs --offload "
                           "activations; add that");
  if (c.offloadActivations && c.mesh.pp > 1)
    return Status::invalid("--offload activations does not work with "
                           "--parallel {} yet; remove one",
                           settings.options.text("parallel"));
  if (c.offloadBase && c.trained.all && c.trained.unfrozen == "[]")
    return Status::invalid("--offload base moves frozen weights, but "
                           "--finetuning-type full has none; remove it");
  return Status::ok();
}

} // namespace qlora
