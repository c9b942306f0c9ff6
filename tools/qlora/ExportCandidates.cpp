// SPDX-License-Identifier: MIT

// Writes, measures and compares candidates.

#include "tools/qlora/ExportCandidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace qlora {

const char *titleOf(BaseChoice choice) {
  return choice == BaseChoice::kFiles ? "the base's files"
                                      : "the dequantized base";
}

std::string planOf(const std::vector<BaseChoice> &choices) {
  std::string into;
  for (const BaseChoice choice : choices)
    into += (into.empty() ? "into " : " and ") + std::string(titleOf(choice));
  return into + (choices.size() > 1 ? "; the better one is kept" : "");
}

StatusOr<std::vector<BaseChoice>> choicesOf(const ExportJob &job) {
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

/// Says which base the adapter was added to, and by how much it is better.
static std::string sentenceOf(const ExportJob &job,
                              const std::vector<Candidate> &all) {
  const Candidate &best = all.front();
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
static StatusOr<Candidate> writeOne(const ExportJob &job,
                                    const MergedModel &model, BaseChoice choice,
                                    const CandidateForm &form,
                                    std::optional<LossMeter> &meter) {
  QLORA_ASSIGN_OR_RETURN(
      StagedFolder folder,
      StagedFolder::create(job.output, job.own.boolean("overwrite")));
  QLORA_RETURN_IF_ERROR(form.write(model, choice, folder.path()));
  Artefact artefact;
  artefact.name =
      fmt::format("adapter added to {}, {}", titleOf(choice), form.type);
  artefact.cause = form.cause;
  if (choice == BaseChoice::kFiles && job.trainsQuantized())
    artefact.cause = "the training computed with the dequantized base" +
                     (form.isQuantized ? ", and " + form.cause : "");
  if (meter) {
    QLORA_ASSIGN_OR_RETURN(
        artefact.loss, form.measure(*meter, model, choice, folder.path()));
  }
  return Candidate{choice, std::move(folder), std::move(artefact)};
}

StatusOr<Candidate> writeBest(const ExportJob &job,
                              std::optional<LossMeter> &meter,
                              const std::vector<CandidateForm> &forms,
                              ExportReport &report, std::string &sentence) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<BaseChoice> choices,
                         choicesOf(job));
  QLORA_ASSIGN_OR_RETURN(const std::optional<LoadedModule> program,
                         openProgram(job, choices, meter));
  std::vector<Candidate> all;
  std::vector<Artefact> others;
  for (const BaseChoice choice : choices) {
    QLORA_ASSIGN_OR_RETURN(const MergedModel model,
                           job.open(choice, program ? &*program : nullptr));
    for (size_t i = 1; meter && i < forms.size(); ++i) {
      QLORA_ASSIGN_OR_RETURN(const Candidate other,
                             writeOne(job, model, choice, forms[i], meter));
      others.push_back(other.artefact);
    }
    QLORA_ASSIGN_OR_RETURN(Candidate candidate,
                           writeOne(job, model, choice, forms[0], meter));
    all.push_back(std::move(candidate));
  }
  if (all.size() > 1 && *all[1].artefact.loss < *all[0].artefact.loss)
    std::swap(all[0], all[1]);
  all.front().artefact.isWritten = true;
  for (const Candidate &candidate : all)
    report.artefacts.push_back(candidate.artefact);
  std::ranges::copy(others, std::back_inserter(report.artefacts));
  sentence = sentenceOf(job, all);
  return std::move(all.front());
}

} // namespace qlora
