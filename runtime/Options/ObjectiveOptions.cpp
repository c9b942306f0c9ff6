// SPDX-License-Identifier: MIT

// Checks which options work with an objective (rl).

#include "runtime/Options/ObjectiveOptions.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

/// Returns the losses of an objective, the default first. Empty if it has only
/// one loss, which has no name.
static std::vector<std::string_view> lossesOf(std::string_view rl) {
  return splitWords(rl == "dpo"   ? "sigmoid hinge ipo"
                    : rl == "kto" ? "kto apo_zero_unpaired"
                                  : "");
}

std::string lossOf(const std::string &rl, const std::string &lossType) {
  const std::vector<std::string_view> losses = lossesOf(rl);
  if (losses.empty())
    return "";
  return lossType == "auto" ? std::string(losses.front()) : lossType;
}

int64_t Options::linesOfRow() const {
  const bool hasOne =
      text("rl") == "none" || text("loss_type") == "apo_zero_unpaired";
  return hasOne ? 1 : 2;
}

/// Checks that the loss belongs to the objective, and that the batch size is
/// large enough for the loss.
static Status validateLoss(const Options &o) {
  const std::string rl = o.text("rl"), loss = o.text("loss_type");
  const std::vector<std::string_view> losses = lossesOf(rl);
  if (loss != "auto" && !std::ranges::count(losses, loss))
    return Status::invalid(
        "{} {} is not a loss of {} {}; {}", o.spelling("loss_type"), loss,
        o.spelling("rl"), rl,
        losses.empty() ? "remove it"
                       : fmt::format("use {}", fmt::join(losses, " or ")));
  if (loss == "ipo" && o.number("beta") == 0)
    return Status::invalid("{} 0 conflicts with {} ipo, whose target is 1 / (2 "
                           "beta); use more than 0",
                           o.spelling("beta"), o.spelling("loss_type"));
  for (const char *weight : {"desirable_weight", "undesirable_weight"})
    if (rl != "kto" && o.number(weight) != 1)
      return Status::invalid("{} is only for --rl kto; remove it",
                             o.spelling(weight));
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
