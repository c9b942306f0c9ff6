// SPDX-License-Identifier: MIT

// `qlora export --to merged`: a Hugging Face folder with the adapter merged
// into its weights. If the training quantized the base, there are two
// candidates: the adapter added to the files' values, and to the values that
// the training computed with. Both are written and measured, and the better one
// is kept. With --quantize, each is quantized, and the better one is chosen
// then.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Export/MergedFolder.h"
#include "tools/qlora/ExportFormats.h"
#include "tools/qlora/ExportQuantize.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

static const char *titleOf(BaseChoice choice) {
  return choice == BaseChoice::kFiles ? "the base's files"
                                      : "the dequantized base";
}

static std::string typeName(const ExportJob &job, const MergedModel &model) {
  return std::string(
      safetensorsDtypeName(job.weightType().value_or(model.dtype())));
}

/// Returns the bases to try, according to --merge-into.
static StatusOr<std::vector<BaseChoice>> choicesOf(const ExportJob &job) {
  const std::string wanted = job.own.text("merge_into");
  std::vector<BaseChoice> choices = job.choices;
  if (wanted != "auto") {
    std::erase_if(choices, [&](BaseChoice choice) {
      return nameOf(choice) != wanted;
    });
    if (choices.empty())
      return Status::invalid("--merge-into {} is not possible here. {} Fix: "
                             "--merge-into {}",
                             wanted,
                             job.missingChoice.empty()
                                 ? "The training did not quantize the base."
                                 : job.missingChoice,
                             nameOf(job.choices.front()));
  }
  if (choices.size() > 1 && !job.own.boolean("verify"))
    return Status::invalid("--no-verify cannot choose between the values of "
                           "the base's files and the dequantized ones. Fix: "
                           "--merge-into dequantized");
  return choices;
}

using Quantization = std::optional<WeightQuantization>;

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
  std::string into;
  for (const BaseChoice choice : choices)
    into += (into.empty() ? "" : " and ") + std::string(titleOf(choice));
  fmt::print("base     {}, {}\n"
             "adapter  {}: changes {} of {} tensors\n"
             "merge    into {}{}\n"
             "{}write    {} in {} to {}\n"
             "memory   {} for weights (largest tensor: {})\n",
             job.baseName, typeName(job, model), shownPath(job.run), adapted,
             model.tensors().size(), into,
             choices.size() > 1 ? "; the better one is kept" : "",
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

static StatusOr<MergedCandidate>
writeCandidate(const ExportJob &job, const MergedModel &model,
               BaseChoice choice, const Quantization &quantization) {
  QLORA_ASSIGN_OR_RETURN(
      StagedFolder folder,
      StagedFolder::create(job.output, job.own.boolean("overwrite")));
  QLORA_RETURN_IF_ERROR(writeMergedFolder(model, folder.path(),
                                          requestFor(job, quantization)));
  const std::string type = quantization
                               ? std::string(quantization->format->title)
                               : typeName(job, model);
  Artefact artefact;
  artefact.name = fmt::format("adapter added to {}, {}", titleOf(choice), type);
  artefact.cause =
      fmt::format("{} of the merged weights to {}{}",
                  quantization ? "quantization" : "rounding", type,
                  quantization && quantization->format->dtype == QLORA_DTYPE_FP8
                      ? " (in readers also of activations)"
                      : "");
  if (choice == BaseChoice::kFiles && job.trainsQuantized())
    artefact.cause = "the training computed with the dequantized base" +
                     (quantization ? ", and " + artefact.cause : "");
  return MergedCandidate{choice, std::move(folder), std::move(artefact)};
}

/// Says which base the adapter was added to, and by how much it is better.
static std::string sentenceOf(const ExportJob &job,
                              const std::vector<MergedCandidate> &all) {
  const MergedCandidate &best = all.front();
  std::string text = best.choice == BaseChoice::kFiles
                         ? "It was added to the weights of the base's files"
                         : "It was added to the dequantized base, the values "
                           "that the training computed with";
  if (all.size() > 1)
    text += fmt::format(
        ". Its loss is {:.5f} lower than if it were added to {}",
        *all[1].artefact.loss - *best.artefact.loss, titleOf(all[1].choice));
  text += ".";
  return job.missingChoice.empty() ? text : text + " " + job.missingChoice;
}

/// Opens the program whose runs quantize the base, if a choice needs it.
static StatusOr<std::optional<LoadedModule>>
openProgram(const ExportJob &job, const std::vector<BaseChoice> &choices,
            std::optional<LossMeter> &meter) {
  if (job.config.storedFormat ||
      std::ranges::count(choices, BaseChoice::kDequantized) == 0)
    return std::optional<LoadedModule>();
  std::string path;
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(path, meter->trainedProgram());
  } else {
    QLORA_ASSIGN_OR_RETURN(LossMeter unused,
                           LossMeter::create(job, /*needsData=*/false));
    QLORA_ASSIGN_OR_RETURN(path, unused.trainedProgram());
  }
  QLORA_ASSIGN_OR_RETURN(LoadedModule program, LoadedModule::open(path));
  return std::optional(std::move(program));
}

/// Writes a candidate, and measures its loss unless there is no meter.
static StatusOr<MergedCandidate>
measureCandidate(const ExportJob &job, const MergedModel &model,
                 BaseChoice choice, const Quantization &quantization,
                 std::optional<LossMeter> &meter) {
  QLORA_ASSIGN_OR_RETURN(MergedCandidate candidate,
                         writeCandidate(job, model, choice, quantization));
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(candidate.artefact.loss,
                           meter->ofModel(candidate.folder.path()));
  }
  return candidate;
}

StatusOr<MergedCandidate> writeBestMerged(const ExportJob &job,
                                          std::optional<LossMeter> &meter,
                                          ExportReport &report,
                                          std::string &sentence) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<BaseChoice> choices,
                         choicesOf(job));
  QLORA_ASSIGN_OR_RETURN(const std::optional<LoadedModule> program,
                         openProgram(job, choices, meter));
  std::vector<MergedCandidate> all;
  std::vector<Artefact> unquantized;
  for (const BaseChoice choice : choices) {
    QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                           job.open(choice, program ? &*program : nullptr));
    QLORA_ASSIGN_OR_RETURN(const Quantization quantization,
                           quantizationOf(job, model));
    if (quantization && meter) {
      QLORA_ASSIGN_OR_RETURN(const MergedCandidate measured,
                             measureCandidate(job, model, choice, {}, meter));
      unquantized.push_back(measured.artefact);
    }
    QLORA_ASSIGN_OR_RETURN(
        MergedCandidate candidate,
        measureCandidate(job, model, choice, quantization, meter));
    all.push_back(std::move(candidate));
  }
  if (all.size() > 1 && *all[1].artefact.loss < *all[0].artefact.loss)
    std::swap(all[0], all[1]);
  all.front().artefact.isWritten = true;
  for (const MergedCandidate &candidate : all)
    report.artefacts.push_back(candidate.artefact);
  std::ranges::copy(unquantized, std::back_inserter(report.artefacts));
  sentence = sentenceOf(job, all);
  return std::move(all.front());
}

/// Prints the plan. Returns a description of the quantization.
static StatusOr<std::string> planMerged(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<BaseChoice> choices,
                         choicesOf(job));
  QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                         job.open(choices.front(), nullptr));
  QLORA_ASSIGN_OR_RETURN(const Quantization quantization,
                         quantizationOf(job, model));
  printPlan(job, model, choices, quantization);
  return quantization ? describeQuantization(job, *quantization)
                      : std::string();
}

Status exportMerged(const ExportJob &job) {
  QLORA_ASSIGN_OR_RETURN(const std::string quantized, planMerged(job));
  if (job.own.boolean("dry_run"))
    return Status::ok();
  ExportReport report = startReport(job);
  if (!quantized.empty())
    report.notes.push_back(quantized);
  QLORA_ASSIGN_OR_RETURN(std::optional<LossMeter> meter,
                         startMeter(job, report));
  std::string sentence;
  QLORA_ASSIGN_OR_RETURN(MergedCandidate best,
                         writeBestMerged(job, meter, report, sentence));
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(
        report.artefacts.front().reader,
        readBack(job, *meter, "merged", best.folder.path()));
  }
  const std::string title = fs::path(job.output).filename().string();
  QLORA_RETURN_IF_ERROR(report.write(best.folder.path()));
  QLORA_RETURN_IF_ERROR(
      replaceWholeFile(best.folder.path() + "/README.md",
                       mergedCard(report, title, sentence)));
  QLORA_RETURN_IF_ERROR(best.folder.commit());
  printReport(job, report);
  return Status::ok();
}

} // namespace qlora
