// SPDX-License-Identifier: MIT

// Sets and checks the settings of generation.

#include "compiler/Search/PlanSettings.h"

#include "runtime/Options/AdapterOptions.h"

namespace qlora {

/// Checks that a program for generation has rows, and nothing that only
/// training has.
static Status checkEntries(const Options &o, const CompileOptions &c) {
  const std::string given =
      fmt::format("{} {}", o.spelling("entries"), o.text("entries"));
  if (c.generationRows == 0)
    return Status::invalid("{} needs --generation-batch N; add, for example, "
                           "--generation-batch 8",
                           given);
  if (c.trains)
    return Status::ok();
  if (o.text("parallel") != "none")
    return Status::invalid("{} does not work with --parallel {}: generation "
                           "runs on one rank; remove one",
                           given, o.text("parallel"));
  if (o.boolean("auto_find_batch_size"))
    return Status::invalid("{} has no training batch; remove {}", given,
                           o.spelling("auto_find_batch_size"));
  return Status::ok();
}

Status fillGeneration(const Options &o, CompileOptions &c) {
  const std::string entries = o.text("entries");
  c.generationRows = entries == "train" ? 0 : o.integer("generation_batch");
  c.generation.entries = o.integer("generation_length");
  c.prefillTokens =
      std::min<int64_t>(o.integer("prefill_chunk_size"), c.generation.entries);
  c.generation.cacheType = o.text("kv_cache_dtype");
  if (entries == "generate" || entries == "both")
    QLORA_RETURN_IF_ERROR(checkEntries(o, c));
  if (c.generationRows == 0)
    return Status::ok();
  const std::string given = o.spelling("generation_batch");
  if (!usesOnlyFsdpRanks(c.mesh))
    return Status::invalid(
        "{} does not work with --parallel {}; use fsdp, or remove one", given,
        o.text("parallel"));
  if (o.text("rl") != "none")
    return Status::invalid("{} does not work with --rl {}; remove one", given,
                           o.text("rl"));
  return Status::ok();
}

Status fillAdapterChoice(const Options &o, CompileOptions &c) {
  c.stacked.adapters = o.integer("max_loras");
  if (c.stacked.adapters == 0)
    return Status::ok();
  if (c.trains)
    return Status::invalid("{} needs --entries generate; add that",
                           o.spelling("max_loras"));
  if (const std::string_view name = beyondPlainLora(o); !name.empty())
    return Status::invalid("{} is for plain LoRA adapters of modules; remove "
                           "{}, or --max-loras",
                           o.spelling("max_loras"), o.spelling(name));
  c.lora.rank = o.integer("max_lora_rank");
  c.lora.alpha = static_cast<double>(c.lora.rank);
  c.lora.rankPattern = c.lora.alphaPattern = "{}";
  c.lora.rslora = false;
  c.lora.dropout = 0;
  c.lora.initA = c.lora.initB = "zero";
  return Status::ok();
}

} // namespace qlora
