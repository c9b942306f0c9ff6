// SPDX-License-Identifier: MIT

// Checks which options work together. AdapterOptions.cpp and
// ObjectiveOptions.cpp check those of adapters and of objectives.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/Base/JsonText.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/AdapterTargets.h"
#include "runtime/Options/LearningRate.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Refuses adapter options and quantized weights if full fine-tuning is on.
static Status validateFull(const Options &o) {
  const bool isPartial = !o.value("unfrozen_parameters").empty();
  if (o.text("finetuning_type") != "full")
    return isPartial ? Status::invalid("{} needs {} full; add that, or remove "
                                       "it",
                                       o.spelling("unfrozen_parameters"),
                                       o.spelling("finetuning_type"))
                     : Status::ok();
  ParameterPatterns patterns;
  std::string error;
  if (!patterns.parse(dumpJson(o.value("unfrozen_parameters")), error))
    return Status::invalid("{}: {}", o.spelling("unfrozen_parameters"), error);
  const auto refuse = [&](const char *name) {
    return Status::invalid("{} conflicts with {} full, which trains the "
                           "model's own weights; remove one",
                           o.spelling(name), o.spelling("finetuning_type"));
  };
  for (const char *name :
       {"load_in_4bit", "load_in_8bit", "use_dora", "lora_bias", "use_rslora"})
    if (o.boolean(name))
      return refuse(name);
  if (o.text("quant_method") != "none")
    return refuse("quant_method");
  for (const char *name :
       {"modules_to_save", "target_parameters", "trainable_token_indices"})
    if (!o.value(name).empty())
      return refuse(name);
  if (!o.text("adapter_name_or_path").empty())
    return refuse("adapter_name_or_path");
  if (o.number("loraplus_lr_ratio") != 1)
    return refuse("loraplus_lr_ratio");
  if (o.text("bias") != "none")
    return refuse("bias");
  return Status::ok();
}

/// Checks that the rate is constant, as schedule-free AdamW's averages assume.
static Status validateScheduleFree(const Options &o) {
  if (o.text("optim") != "schedule_free_adamw")
    return Status::ok();
  if (o.text("lr_scheduler_type") != "constant")
    return Status::invalid("{} schedule_free_adamw needs {} constant, as it "
                           "has its own warmup, but got {}",
                           o.spelling("optim"), o.spelling("lr_scheduler_type"),
                           o.text("lr_scheduler_type"));
  if (o.number("adam_beta1") == 0)
    return Status::invalid("{} schedule_free_adamw needs {} above 0",
                           o.spelling("optim"), o.spelling("adam_beta1"));
  return Status::ok();
}

Status Options::validate() const {
  if (!contradictions.empty())
    return contradictions.begin()->second;
  QLORA_RETURN_IF_ERROR(LearningRate::check(*this));
  int64_t evalBatch = integer("per_device_eval_batch_size");
  int64_t trainBatch = integer("per_device_train_batch_size");
  if (evalBatch != 0 && evalBatch != trainBatch)
    return Status::invalid(
        "{} ({}) must be 0 or equal {} ({}): evaluation uses the training "
        "batch size",
        spelling("per_device_eval_batch_size"), evalBatch,
        spelling("per_device_train_batch_size"), trainBatch);
  const std::string resume = text("resume_from_checkpoint");
  if (!resume.empty() && resume != "false" && boolean("overwrite_output_dir"))
    return Status::invalid(
        "{} resumes from files that {} would overwrite; remove one",
        spelling("resume_from_checkpoint"), spelling("overwrite_output_dir"));
  for (const std::string &name : names("report_to"))
    if (name != "tensorboard" && name != "none")
      return Status::invalid(
          "{}: '{}' is not supported; tensorboard is, and Weights & Biases "
          "reads its files: wandb sync --sync-tensorboard",
          spelling("report_to"), name);
  if (value("gradient_accumulation_steps") == "auto" &&
      integer("global_batch_size") == 0)
    return Status::invalid(
        "{} auto is computed from --global-batch-size; add that",
        spelling("gradient_accumulation_steps"));
  QLORA_RETURN_IF_ERROR(validateData());
  QLORA_RETURN_IF_ERROR(validateAdapter(*this));
  QLORA_RETURN_IF_ERROR(validateFull(*this));
  QLORA_RETURN_IF_ERROR(validateObjective(*this));
  QLORA_RETURN_IF_ERROR(validateScheduleFree(*this));
  if (boolean("load_in_4bit") && boolean("load_in_8bit"))
    return Status::invalid("{} conflicts with {}; remove one",
                           spelling("load_in_4bit"), spelling("load_in_8bit"));
  for (const char *name : {"load_in_4bit", "load_in_8bit"})
    if (boolean(name) && text("quant_method") != "none")
      return Status::invalid(
          "{} conflicts with {} {}: the base has one format; remove one",
          spelling(name), spelling("quant_method"), text("quant_method"));
  if (boolean("quantize_moe_experts") && boolean("load_in_8bit"))
    return Status::invalid(
        "{} conflicts with {}, which does not quantize experts; remove one",
        spelling("quantize_moe_experts"), spelling("load_in_8bit"));
  int64_t block = integer("bnb_4bit_blocksize");
  if ((block & (block - 1)) != 0)
    return Status::invalid(
        "{}: expects a power of two from 64 to 4096, but got {}",
        spelling("bnb_4bit_blocksize"), block);
  for (const auto &[name, rank] : numberMap("lora_rank_pattern"))
    if (rank != std::floor(rank))
      return Status::invalid("{}: '{}' expects an integer, but got {}",
                             spelling("lora_rank_pattern"), name, rank);
  return Status::ok();
}

Status Options::validateData() const {
  if (text("packing_strategy") != "bfd" && !boolean("packing"))
    return Status::invalid("{} {} needs {}; add that, or remove it",
                           spelling("packing_strategy"),
                           text("packing_strategy"), flagSpelling("packing"));
  const double size = number("val_set_size");
  if (size >= 1 && size != std::floor(size))
    return Status::invalid(
        "{}: expects a fraction below 1 or a number of rows, but got {}",
        spelling("val_set_size"), size);
  if (size > 0 && !paths("validation_file").empty())
    return Status::invalid("{} conflicts with {}, which takes validation rows "
                           "from the training data; remove one",
                           spelling("validation_file"),
                           spelling("val_set_size"));
  static constexpr std::string_view kForms[] = {
      "text",          "completion",   "chat",         "alpaca",
      "turns",         "alpaca-chat",  "alpaca-phi",   "alpaca-chatml",
      "jeopardy",      "chatml-ultra", "llama3-ultra"};
  const std::vector<std::string> forms = names("row_format");
  for (const std::string &form : forms)
    if (std::ranges::find(kForms, form) == std::end(kForms))
      return Status::invalid("{}: '{}' is not a row format; choose from: {}",
                             spelling("row_format"), form,
                             fmt::join(kForms, ", "));
  if (std::ranges::count(forms, "alpaca") && std::ranges::count(forms, "turns"))
    return Status::invalid(
        "{}: 'alpaca' and 'turns' both read rows of 'instruction' and "
        "'output'; remove one",
        spelling("row_format"));
  for (const std::string_view style : std::span(kForms).subspan(5))
    if (forms.size() > 1 && std::ranges::count(forms, style))
      return Status::invalid("{}: '{}' is for data of that form only; remove "
                             "the others, or train on one data set",
                             spelling("row_format"), style);
  const auto columns = textMap("dataset_columns");
  if (const auto text = columns.find("text");
      text != columns.end() && this->text("dataset_text_field") != "text" &&
      this->text("dataset_text_field") != text->second)
    return Status::invalid(
        "{} reads text from column '{}', but {} from '{}'; remove one",
        spelling("dataset_columns"), text->second,
        spelling("dataset_text_field"), this->text("dataset_text_field"));
  return Status::ok();
}

} // namespace qlora
