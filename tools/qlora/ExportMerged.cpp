// SPDX-License-Identifier: MIT

// `qlora export --to merged`: a Hugging Face folder with the adapter merged
// into its weights, which --quantize quantizes.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Export/MergedFolder.h"
#include "tools/qlora/ExportCandidates.h"
#include "tools/qlora/ExportFormats.h"
#include "tools/qlora/ExportQuantize.h"
#include "tools/qlora/Tools.h"

namespace qlora {

using Quantization = std::optional<WeightQuantization>;

static std::string typeName(const ExportJob &job, const MergedModel &model) {
  return std::string(
      safetensorsDtypeName(job.weightType().value_or(model.dtype())));
}

static MergedFolderRequest requestFor(const ExportJob &job,
                                      const Quantization &quantization) {
  MergedFolderRequest request;
  request.type = job.weightType();
  request.mostShardBytes =
      static_cast<uint64_t>(job.own.integer("max_shard_size"));
  request.tokenizer = job.run;
  request.quantization = quantization ? &*quantization : nullptr;
  return request;
}

/// Prints what will be written, and the memory that it takes.
static void printPlan(const ExportJob &job, const MergedModel &model,
                      const std::vector<BaseChoice> &choices,
                      const Quantization &quantization) {
  const MergedFolderRequest request = requestFor(job, quantization);
  const std::vector<Shard> shards = planShards(model, request);
  uint64_t bytes = 0;
  for (const Shard &shard : shards)
    bytes += shard.bytes;
  const auto adapted =
      std::ranges::count_if(model.tensors(), &MergedTensor::isAdapted);
  fmt::print("base     {}, {}\n"
             "adapter  {}: changes {} of {} tensors\n"
             "merge    {}\n"
             "{}write    {} in {} to {}\n"
             "memory   {} for weights (largest tensor: {})\n",
             job.baseName, typeName(job, model), shownPath(job.run), adapted,
             model.tensors().size(), planOf(choices),
             quantization
                 ? fmt::format("quantize {} to {}\n",
                               formatCounted(std::ssize(quantization->weights),
                                             "weight"),
                               quantization->format->title)
                 : std::string(),
             formatBytes(bytes),
             formatCounted(static_cast<int64_t>(shards.size()), "file"),
             shownPath(job.output),
             formatBytes(mergedPeakBytes(model, request.quantization)),
             formatBytes(model.largestBytes()));
  std::fflush(stdout); // before the notes of other tools
}

static StatusOr<double> measureFolder(LossMeter &meter, const MergedModel &,
                                      BaseChoice, const std::string &folder) {
  return meter.ofModel(folder);
}

/// The folder without quantization. `model` is any candidate: all have the same
/// types.
static CandidateForm plainForm(const ExportJob &job, const MergedModel &model) {
  CandidateForm form;
  form.type = typeName(job, model);
  form.cause = "rounding of the merged weights to " + form.type;
  form.write = [&job](const MergedModel &merged, BaseChoice,
                      const std::string &folder) {
    return writeMergedFolder(merged, folder, requestFor(job, {}));
  };
  form.measure = measureFolder;
  return form;
}

static CandidateForm quantizedForm(const ExportJob &job,
                                   const WeightQuantization &quantization) {
  CandidateForm form;
  form.type = quantization.format->title;
  form.isQuantized = true;
  form.cause = fmt::format("quantization of the merged weights to {}{}",
                           form.type,
                           quantization.format->dtype == QLORA_DTYPE_FP8
                               ? " (in readers also of activations)"
                               : "");
  form.write = [&job](const MergedModel &merged, BaseChoice,
                      const std::string &folder) -> Status {
    QLORA_ASSIGN_OR_RETURN(const Quantization of,
                           quantizationOf(job, merged));
    return writeMergedFolder(merged, folder, requestFor(job, of));
  };
  form.measure = measureFolder;
  return form;
}

namespace {
struct MergedPlan {
  std::vector<CandidateForm> forms; ///< the first is written
  std::string quantized; ///< description of the quantization, or empty
};
} // namespace

/// Prints the plan.
static StatusOr<MergedPlan> planMerged(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<BaseChoice> choices,
                         choicesOf(job));
  QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                         job.open(choices.front(), nullptr));
  QLORA_ASSIGN_OR_RETURN(const Quantization quantization,
                         quantizationOf(job, model));
  printPlan(job, model, choices, quantization);
  MergedPlan plan;
  if (quantization) {
    plan.forms.push_back(quantizedForm(job, *quantization));
    plan.quantized = describeQuantization(job, *quantization);
  }
  plan.forms.push_back(plainForm(job, model));
  return plan;
}

static std::string usageOf(const std::string &title) {
  return fmt::format(
      "```python\nfrom transformers import AutoModelForCausalLM, "
      "AutoTokenizer\n\n"
      "model = AutoModelForCausalLM.from_pretrained({0})\n"
      "tokenizer = AutoTokenizer.from_pretrained({0})\n```\n",
      dumpJson(nlohmann::ordered_json(title)));
}

static StatusOr<ReaderResult> readMerged(const ExportJob &job,
                                         const LossMeter &meter,
                                         const std::string &folder) {
  std::vector<std::string> more;
  if (isQuantizing(job)) {
    QLORA_ASSIGN_OR_RETURN(const auto digests, digestsOfDecoded(folder));
    QLORA_ASSIGN_OR_RETURN(const std::string flag,
                           writeDigests(meter, digests));
    more.push_back(flag);
  }
  return readBack(job, meter, "merged", folder, more);
}

Status exportMerged(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(const MergedPlan plan, planMerged(job));
  if (job.own.boolean("dry_run"))
    return Status::ok();
  ExportReport report = startReport(job);
  if (!plan.quantized.empty())
    report.notes.push_back(plan.quantized);
  QLORA_ASSIGN_OR_RETURN(std::optional<LossMeter> meter,
                         startMeter(job, report));
  std::string sentence;
  QLORA_ASSIGN_OR_RETURN(Candidate best,
                         writeBest(job, meter, plan.forms, report, sentence));
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(report.artefacts.front().reader,
                           readMerged(job, *meter, best.folder.path()));
  }
  const std::string title = job.title();
  QLORA_RETURN_IF_ERROR(report.write(best.folder.path()));
  QLORA_RETURN_IF_ERROR(
      replaceWholeFile(best.folder.path() + "/README.md",
                       modelCard(report, {title, "transformers",
                                          usageOf(title), sentence})));
  QLORA_RETURN_IF_ERROR(best.folder.commit());
  printReport(job, report);
  return Status::ok();
}

} // namespace qlora
