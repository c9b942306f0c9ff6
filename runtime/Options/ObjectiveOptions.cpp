// SPDX-License-Identifier: MIT

// Checks which options work with an objective (rl).

#include "runtime/Options/ObjectiveOptions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

/// Returns the words of an objective's losses, the default first. Empty if it
/// has only one loss, which has no name.
static std::vector<std::string_view> wordsOf(std::string_view rl) {
  if (rl == "none")
    return {"nll", "dft"};
  if (rl == "kto")
    return {"kto", "apo_zero_unpaired"};
  static constexpr std::pair<std::string_view, std::string_view> kPairLosses[] =
      {
#define QLORA_PAIR_LOSS(WORD, OBJECTIVES, ...) {#WORD, OBJECTIVES},
#include "runtime/ABI/PairLosses.def"
      };
  std::vector<std::string_view> words;
  for (const auto &[word, objectives] : kPairLosses)
    if (std::ranges::count(splitWords(objectives), rl))
      words.push_back(word);
  return words;
}

nlohmann::ordered_json lossOf(const std::string &rl,
                              const nlohmann::ordered_json &lossType) {
  const std::vector<std::string_view> words = wordsOf(rl);
  if (words.empty())
    return "";
  // auto, or the default of earlier versions, which was one word for all.
  if (lossType.is_string() && !std::ranges::count(words, lossType))
    return words.front();
  return lossType;
}

WeightedLosses lossesOf(const Options &o) {
  const nlohmann::ordered_json value =
      lossOf(o.text("rl"), o.value("loss_type"));
  WeightedLosses losses;
  if (value.is_array())
    losses.words = value;
  else if (value != "")
    losses.words.push_back(value);
  losses.weights = o.value("loss_weights").get<std::vector<double>>();
  losses.weights.resize(losses.words.size(), 1);
  if (o.text("rl") == "cpo" && o.number("cpo_alpha") != 0) {
    losses.words.emplace_back("sft");
    losses.weights.push_back(o.number("cpo_alpha"));
  }
  return losses;
}

bool changesTokenLoss(const Options &o) {
  return lossesOf(o).has("dft") || o.number("label_smoothing_factor") != 0;
}

int64_t Options::linesOfRow() const {
  const bool hasOne =
      text("rl") == "none" || value("loss_type") == "apo_zero_unpaired";
  return hasOne ? 1 : 2;
}

/// Checks that the losses belong to the objective, and the weights to them.
static Status validateLossTypes(const Options &o) {
  const std::string rl = o.text("rl"), option = o.spelling("loss_type");
  const std::vector<std::string_view> words = wordsOf(rl);
  const nlohmann::ordered_json &value = o.value("loss_type");
  const auto given = value.is_array() ? value.get<std::vector<std::string>>()
                                      : std::vector{value.get<std::string>()};
  for (const std::string &loss : given)
    if ((loss != "auto" || given.size() > 1) &&
        !std::ranges::count(words, loss))
      return Status::invalid(
          "{} {} is not a loss of {} {}; {}", option, loss, o.spelling("rl"),
          rl,
          words.empty() ? "remove it"
                        : fmt::format("use {}", fmt::join(words, " or ")));
  if (given.size() > 1 && rl != "dpo")
    return Status::invalid("{} has {} losses, which only {} dpo adds; keep one",
                           option, given.size(), o.spelling("rl"));
  const size_t weights = o.value("loss_weights").size();
  if (weights > 0 && (rl != "dpo" || weights != given.size()))
    return Status::invalid("{} has {} weights, but {} has {} losses of --rl "
                           "dpo; write a weight for each loss",
                           o.spelling("loss_weights"), weights, option,
                           rl == "dpo" ? given.size() : 0);
  return Status::ok();
}

/// Refuses values that have no effect, or that a loss cannot use.
static Status validateLossValues(const Options &o) {
  struct Owner {
    const char *option;
    double unused;      ///< the option's default
    const char *losses; ///< separated by spaces; empty: any of the objective
    const char *objectives, *words;
  };
  static constexpr Owner kOwners[] = {
      {"desirable_weight", 1, "", "kto", "--rl kto"},
      {"undesirable_weight", 1, "", "kto", "--rl kto"},
      {"cpo_alpha", 1, "", "cpo", "--rl cpo"},
      {"simpo_gamma", 0.5, "simpo", "cpo", "--rl cpo --loss-type simpo"},
      {"discopop_tau", 0.05, "discopop", "dpo", "--loss-type discopop"},
      {"label_smoothing", 0, "exo_pair robust", "dpo cpo",
       "--loss-type exo_pair or robust, and for sigmoid or simpo of --rl cpo"},
      {"label_smoothing_factor", 0, "nll", "none", "--loss-type nll"},
  };
  const std::string rl = o.text("rl");
  const WeightedLosses losses = lossesOf(o);
  const bool smooths =
      rl == "cpo" && (losses.has("sigmoid") || losses.has("simpo"));
  for (const Owner &owner : kOwners) {
    const auto words = splitWords(owner.losses);
    const bool isUsed =
        std::ranges::count(splitWords(owner.objectives), rl) &&
        (words.empty() || std::ranges::any_of(words, [&](auto word) {
           return losses.has(word);
         }));
    if (o.number(owner.option) != owner.unused && !isUsed &&
        !(smooths && owner.option == std::string_view("label_smoothing")))
      return Status::invalid("{} is only for {}; remove it",
                             o.spelling(owner.option), owner.words);
  }
  for (const char *loss : {"ipo", "sppo_hard"})
    if (losses.has(loss) && o.number("beta") == 0)
      return Status::invalid("{} 0 conflicts with {} {}, whose target is 1 / "
                             "(2 beta); use more than 0",
                             o.spelling("beta"), o.spelling("loss_type"), loss);
  const double smoothing = o.number("label_smoothing");
  if (losses.has("exo_pair") && smoothing == 0)
    return Status::invalid("{} exo_pair needs more than 0 as {}; the paper "
                           "recommends 0.001",
                           o.spelling("loss_type"),
                           o.spelling("label_smoothing"));
  if (losses.has("robust") && smoothing == 0.5)
    return Status::invalid("{} 0.5 conflicts with {} robust, which divides by "
                           "1 - 2 x 0.5; use less",
                           o.spelling("label_smoothing"),
                           o.spelling("loss_type"));
  return Status::ok();
}

static Status validateLoss(const Options &o) {
  const std::string rl = o.text("rl");
  QLORA_RETURN_IF_ERROR(validateLossTypes(o));
  QLORA_RETURN_IF_ERROR(validateLossValues(o));
  if (rl == "kto" && o.linesOfRow() == 2 &&
      o.integer("per_device_train_batch_size") < 2)
    return Status::invalid(
        "{} 1 is too small for {} kto: the KL estimate needs answers from "
        "other rows; use 2 or more, or {} apo_zero_unpaired",
        o.spelling("per_device_train_batch_size"), o.spelling("rl"),
        o.spelling("loss_type"));
  return Status::ok();
}

/// Refuses options that put several answers into one sequence. If the base is
/// the reference model, also refuses options that change the base.
Status validateObjective(const Options &o) {
  const std::string rl = o.text("rl");
  const std::string objective = o.spelling("rl") + " " + rl;
  const bool hasReference = rl == "dpo" || rl == "kto";
  QLORA_RETURN_IF_ERROR(validateLoss(o));
  if (rl == "none")
    return Status::ok();
  const auto refuse = [&](const std::string &what, const char *why) {
    return Status::invalid("{} conflicts with {}: {}; remove one", what,
                           objective, why);
  };
  if (o.boolean("packing"))
    return refuse(o.spelling("packing"), "each answer needs its own sequence");
  const std::string excess = o.text("excess_length_strategy");
  if (excess == "split" || excess == "windows")
    return refuse(o.spelling("excess_length_strategy") + " " + excess,
                  "an answer cannot be several rows");
  if (o.text("step_packing") == "true")
    return refuse(o.spelling("step_packing") + " true",
                  "each answer needs its own sequence");
  if (o.text("finetuning_type") == "full")
    return refuse(o.spelling("finetuning_type") + " full",
                  hasReference ? "the reference needs an unchanged base"
                               : "the LM head cannot be trained");
  if (hasReference && !o.value("modules_to_save").empty())
    return refuse(o.spelling("modules_to_save"),
                  "the reference needs an unchanged base");
  if (hasReference && o.text("bias") != "none")
    return refuse(o.spelling("bias") + " " + o.text("bias"),
                  "the reference needs an unchanged base");
  const std::string start = o.text("init_lora_weights");
  if (hasReference && leavesResidual(start))
    return refuse(o.spelling("init_lora_weights") + " " + start,
                  "the reference needs an unchanged base");
  if (o.number("neftune_noise_alpha") != 0)
    return refuse(o.spelling("neftune_noise_alpha"),
                  "its noise would change log-probabilities");
  return Status::ok();
}

Status checkRanksOf(const Options &options, int64_t ranks, int64_t together) {
  if (ranks == together || options.text("rl") != "kto" ||
      options.linesOfRow() == 1)
    return Status::ok();
  return Status::invalid("{} kto does not support {} ranks that compute "
                         "different rows: its KL estimate is a mean over the "
                         "rows of all ranks; use --gpus {}, or compile with "
                         "--loss-type apo_zero_unpaired",
                         options.spelling("rl"), ranks, together);
}

} // namespace qlora
