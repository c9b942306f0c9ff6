// SPDX-License-Identifier: MIT

// Checks constraints between the options of adapters.

#include "runtime/Options/AdapterOptions.h"

namespace qlora {

bool leavesResidual(std::string_view init) {
  return init.starts_with("pissa") || init == "olora";
}

bool startsAtFactors(std::string_view init) {
  return leavesResidual(init) || init == "loftq";
}

/// Checks LoftQ's options. Refuses more than one iteration: further iterations
/// change the base, so the adapter would not fit the original model's NF4.
static Status validateLoftq(const Options &o) {
  const bool isLoftq = o.text("init_lora_weights") == "loftq";
  const auto given = o.numberMap("loftq_config");
  if (!given.empty() && !isLoftq)
    return Status::invalid("{} needs {} loftq; add that, or remove it",
                           o.spelling("loftq_config"),
                           o.spelling("init_lora_weights"));
  if (isLoftq && !o.boolean("load_in_4bit"))
    return Status::invalid("{} loftq starts from the quantization error of 4 "
                           "bits; add --load-in-4bit",
                           o.spelling("init_lora_weights"));
  for (const auto &[name, value] : given)
    if (value != (name == "loftq_bits" ? 4 : 1) ||
        (name != "loftq_bits" && name != "loftq_iter"))
      return Status::invalid(
          "{}: '{}: {}' is not supported; use loftq_bits 4 and loftq_iter 1",
          o.spelling("loftq_config"), name, value);
  return Status::ok();
}

/// Checks options that conflict with special initializations of A and B.
static Status validateInit(const Options &o) {
  const std::string init = o.text("init_lora_weights");
  const bool isPlain = init == "true" || init == "false";
  if (!isPlain && o.boolean("lora_bias"))
    return Status::invalid("{} needs {} true or false, as in PEFT, but got {}",
                           o.spelling("lora_bias"),
                           o.spelling("init_lora_weights"), init);
  if (startsAtFactors(init) && !o.value("target_parameters").empty())
    return Status::invalid(
        "{} conflicts with {} {}; use {} true", o.spelling("target_parameters"),
        o.spelling("init_lora_weights"), init, o.spelling("init_lora_weights"));
  return validateLoftq(o);
}

/// Refuses lora_alpha 0: with a scale of 0, A and B would get no gradient.
static Status validateAlpha(const Options &o) {
  if (o.text("finetuning_type") == "full")
    return Status::ok();
  if (o.number("lora_alpha") == 0)
    return Status::invalid("{} is 0, so the adapter is multiplied by alpha / "
                           "rank = 0 and does not train. Fix: {} {}",
                           o.spelling("lora_alpha"), flagSpelling("lora_alpha"),
                           2 * o.integer("lora_r"));
  for (const auto &[name, alpha] : o.numberMap("lora_alpha_pattern"))
    if (alpha == 0)
      return Status::invalid("{}: the alpha of '{}' is 0, so its adapters do "
                             "not train. Fix: exclude it with {} {}",
                             o.spelling("lora_alpha_pattern"), name,
                             flagSpelling("exclude_modules"), name);
  return Status::ok();
}

/// Refuses an empty list of modules, except in a program that only generates,
/// which then has no adapter.
static Status validateTargets(const Options &o) {
  const auto &targets = o.value("lora_target_modules");
  if (!targets.is_array() || !targets.empty() ||
      o.text("entries") == "generate")
    return Status::ok();
  return Status::invalid("{}: expects at least one module",
                         o.spelling("lora_target_modules"));
}

std::string_view beyondPlainLora(const Options &options) {
  const Options initial;
  for (const char *name : {"use_dora", "lora_bias", "bias", "modules_to_save",
                           "target_parameters", "trainable_token_indices"})
    if (options.value(name) != initial.value(name))
      return name;
  return {};
}

Status validateAdapter(const Options &o) {
  QLORA_RETURN_IF_ERROR(validateTargets(o));
  QLORA_RETURN_IF_ERROR(validateAlpha(o));
  const bool isDora = o.boolean("use_dora"), hasBias = o.boolean("lora_bias");
  const std::string kind = o.spelling(isDora ? "use_dora" : "lora_bias");
  if ((isDora || hasBias) && !o.value("target_parameters").empty())
    return Status::invalid("{0} conflicts with {1}: PEFT supports {0} for "
                           "modules, not for parameters; remove one",
                           kind, o.spelling("target_parameters"));
  if (isDora && hasBias)
    return Status::invalid("{} conflicts with {}, as in PEFT; remove one",
                           o.spelling("lora_bias"), kind);
  return validateInit(o);
}

} // namespace qlora
