// SPDX-License-Identifier: MIT

// The table of schedules: their parameters and the factors of their rates.

#include "runtime/Options/LearningRate.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

#include "runtime/Options/OptionTable.h"
#include "runtime/Options/OptionValue.h"

namespace qlora {

using std::numbers::pi;

/// The factors of the base rate. `s`: steps done.
struct ScheduleFactors {
  using Rate = LearningRate;

  static double rise(const Rate &r, double s) {
    return s / std::max(1.0, double(r.warmup));
  }
  /// Returns how much of the time after the warm-up has passed.
  static double progress(const Rate &r, double s) {
    return (s - double(r.warmup)) / std::max(1.0, double(r.total - r.warmup));
  }
  static double wave(double cycles, double progress) {
    return 0.5 * (1.0 + std::cos(pi * cycles * 2.0 * progress));
  }
  /// Scales a factor in [0, 1] to [least, 1].
  static double above(double least, double factor) {
    return factor * (1 - least) + least;
  }
  static double leastOf(const Rate &r) {
    return r.has("min_lr") ? r.number("min_lr") / r.base
                           : r.number("min_lr_rate");
  }

  static double constant(const Rate &, double) { return 1; }
  static double constantAfterRise(const Rate &r, double s) {
    return s < double(r.warmup) ? rise(r, s) : 1;
  }
  static double linear(const Rate &r, double s) {
    return s < double(r.warmup)
               ? rise(r, s)
               : std::max(0.0, (double(r.total) - s) /
                                   std::max(1.0, double(r.total - r.warmup)));
  }
  static double cosine(const Rate &r, double s) {
    return s < double(r.warmup)
               ? rise(r, s)
               : std::max(0.0, wave(r.number("num_cycles"), progress(r, s)));
  }
  static double cosineWithRestarts(const Rate &r, double s) {
    if (s < double(r.warmup))
      return rise(r, s);
    const double passed = progress(r, s);
    if (passed >= 1)
      return 0;
    const double part = std::fmod(r.number("num_cycles") * passed, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(pi * part)));
  }
  static double cosineWithLeast(const Rate &r, double s) {
    if (s < double(r.warmup))
      return rise(r, s);
    const double factor = wave(r.number("num_cycles"), progress(r, s));
    return std::max(0.0, above(leastOf(r), factor));
  }
  /// The rise starts above 0, and the wave is one step ahead.
  static double cosineWarmupWithLeast(const Rate &r, double s) {
    const double warmup = double(r.warmup);
    if (s < warmup && !r.has("warmup_lr_rate"))
      return (s + 1) / std::max(1.0, warmup);
    if (s < warmup) {
      const double first = r.number("warmup_lr_rate");
      return first + (1 - first) * s / std::max(1.0, warmup - 1);
    }
    const double passed =
        (s - warmup + 1) / std::max(1.0, double(r.total) - warmup);
    const double factor = wave(r.number("num_cycles"), passed);
    return std::max(0.0, above(leastOf(r), factor));
  }
  static double polynomial(const Rate &r, double s) {
    const double end = r.number("lr_end"), warmup = double(r.warmup);
    if (s < warmup)
      return rise(r, s);
    if (s > double(r.total))
      return end / r.base;
    const double left = 1 - (s - warmup) / (double(r.total) - warmup);
    return ((r.base - end) * std::pow(left, r.number("power")) + end) / r.base;
  }
  static double inverseSqrt(const Rate &r, double s) {
    const double warmup = double(r.warmup);
    if (s < warmup)
      return rise(r, s);
    const double scale = r.has("timescale") ? r.number("timescale")
                         : r.warmup > 0     ? warmup
                                            : 10000;
    return 1 / std::sqrt((s + (scale - warmup)) / scale);
  }
  static double stable(const Rate &r, double s) {
    const double warmup = double(r.warmup), decay = r.number("num_decay_steps");
    const double flat = r.has("num_stable_steps") ? r.number("num_stable_steps")
                                                  : double(r.total) - warmup -
                                                        decay;
    const double least = r.number("min_lr_ratio");
    if (s < warmup) {
      const double passed = rise(r, s);
      const std::string &type = r.words.at("warmup_type");
      const double factor = type == "linear" ? passed
                            : type == "cosine"
                                ? 0.5 * (1.0 - std::cos(pi * passed))
                                : 1 - std::sqrt(1 - passed);
      return std::max(0.0, above(least, factor));
    }
    if (s < warmup + flat)
      return 1;
    if (s >= warmup + flat + decay)
      return least;
    const double passed = (s - warmup - flat) / std::max(1.0, decay);
    const std::string &type = r.words.at("decay_type");
    const double factor = type == "linear" ? 1 - passed
                          : type == "cosine"
                              ? wave(r.number("num_cycles"), passed)
                              : 1 - std::sqrt(passed);
    return std::max(0.0, above(least, factor));
  }
  /// RexLR counts steps from 1.
  static double rex(const Rate &r, double s) {
    const double least = leastOf(r), step = s + 1, warmup = double(r.warmup);
    if (step <= warmup)
      return step / warmup;
    const double rest = double(r.total) - warmup;
    if (step - warmup >= rest)
      return least;
    const double z = (rest - (step - warmup)) / rest;
    return least + (1 - least) * (z / (0.1 + 0.9 * z));
  }
};

/// A schedule. `parameters`: "name=default", or "name=" if the parameter has no
/// default, separated by spaces; words have their choices, "name=first|second".
struct ScheduleRow {
  const char *name, *parameters;
  LearningRate::Factor factor;
};

static constexpr ScheduleRow kSchedules[] = {
    {"constant", "", ScheduleFactors::constant},
    {"constant_with_warmup", "", ScheduleFactors::constantAfterRise},
    {"linear", "", ScheduleFactors::linear},
    {"cosine", "num_cycles=0.5", ScheduleFactors::cosine},
    {"cosine_with_restarts", "num_cycles=1",
     ScheduleFactors::cosineWithRestarts},
    {"cosine_with_min_lr", "num_cycles=0.5 min_lr= min_lr_rate=",
     ScheduleFactors::cosineWithLeast},
    {"cosine_warmup_with_min_lr",
     "num_cycles=0.5 min_lr= min_lr_rate= warmup_lr_rate=",
     ScheduleFactors::cosineWarmupWithLeast},
    {"polynomial", "lr_end=1e-7 power=1", ScheduleFactors::polynomial},
    {"inverse_sqrt", "timescale=", ScheduleFactors::inverseSqrt},
    {"warmup_stable_decay",
     "num_decay_steps= num_stable_steps= warmup_type=linear|cosine|1-sqrt "
     "decay_type=cosine|linear|1-sqrt min_lr_ratio=0 num_cycles=0.5",
     ScheduleFactors::stable},
    {"rex", "min_lr_rate=0", ScheduleFactors::rex},
};

static const ScheduleRow &rowOf(const Options &options) {
  const auto row = std::ranges::find(
      kSchedules, options.text("lr_scheduler_type"), &ScheduleRow::name);
  assert(row != std::end(kSchedules) && "a choice without a row");
  return *row;
}

/// A parameter's name, and its default or its choices.
struct ScheduleParameter {
  std::string_view name, rest;

  bool isWord() const { return rest.find('|') != rest.npos; }
  std::string_view initial() const { return rest.substr(0, rest.find('|')); }
};

static std::vector<ScheduleParameter> parametersOf(const ScheduleRow &row) {
  std::vector<ScheduleParameter> parameters;
  for (const std::string_view word : splitWords(row.parameters)) {
    const size_t equals = word.find('=');
    parameters.push_back({word.substr(0, equals), word.substr(equals + 1)});
  }
  return parameters;
}

static StatusOr<double> numberOf(std::string_view text) {
  QLORA_ASSIGN_OR_RETURN(const double number, parseNumber<double>(text));
  if (number < 0)
    return Status::invalid("expects at least {}, but got {}", 0, text);
  return number;
}

/// Checks one entry of --lr-scheduler-kwargs.
static Status checkParameter(const Options &o, const ScheduleRow &row,
                             const std::string &name, const std::string &text) {
  const auto parameters = parametersOf(row);
  const auto found =
      std::ranges::find(parameters, name, &ScheduleParameter::name);
  const std::string option = o.spelling("lr_scheduler_kwargs");
  if (found == parameters.end()) {
    std::vector<std::string_view> names;
    for (const ScheduleParameter &parameter : parameters)
      names.push_back(parameter.name);
    return Status::invalid("{}: '{}' is no parameter of {}, which has {}",
                           option, name, row.name,
                           names.empty()
                               ? "none"
                               : fmt::format("{}", fmt::join(names, ", ")));
  }
  if (!found->isWord()) {
    const auto number = numberOf(text);
    return number.isOk() ? Status::ok()
                         : Status::invalid("{}: '{}': {}", option, name,
                                           number.status().message());
  }
  std::string choices(found->rest);
  std::ranges::replace(choices, '|', ' ');
  if (std::ranges::count(splitWords(choices), text))
    return Status::ok();
  return Status::invalid("{}: '{}' is {}; choose from: {}", option, name, text,
                         fmt::join(splitWords(choices), ", "));
}

/// Checks what transformers requires of the parameters together.
static Status checkTogether(const Options &o, const ScheduleRow &row) {
  const std::map<std::string, std::string> given =
      o.textMap("lr_scheduler_kwargs");
  const auto parameters = parametersOf(row);
  const auto takes = [&](std::string_view name) {
    return std::ranges::count(parameters, name, &ScheduleParameter::name) > 0;
  };
  const auto needs = [&](const char *what) {
    return Status::invalid("{} {} needs {} in {}",
                           o.spelling("lr_scheduler_type"), row.name, what,
                           o.spelling("lr_scheduler_kwargs"));
  };
  if (takes("min_lr") && given.count("min_lr") == given.count("min_lr_rate"))
    return needs("either min_lr or min_lr_rate");
  if (takes("num_decay_steps") && !given.contains("num_decay_steps"))
    return needs("num_decay_steps");
  const auto end = given.find("lr_end");
  const double last = end == given.end() ? 1e-7 : *numberOf(end->second);
  if (takes("lr_end") && last >= o.number("learning_rate"))
    return Status::invalid("{}: lr_end ({}) must be below {} ({})",
                           o.spelling("lr_scheduler_kwargs"), last,
                           o.spelling("learning_rate"),
                           o.number("learning_rate"));
  return Status::ok();
}

Status LearningRate::check(const Options &options) {
  const ScheduleRow &row = rowOf(options);
  for (const auto &[name, text] : options.textMap("lr_scheduler_kwargs"))
    QLORA_RETURN_IF_ERROR(checkParameter(options, row, name, text));
  return checkTogether(options, row);
}

/// Returns the warm-up steps. `rule` "axolotl" is from
/// _configure_warmup_and_logging() in axolotl's core/builders/base.py.
static int64_t warmupOf(const Options &options, int64_t totalSteps) {
  if (const int64_t steps = options.steps("warmup_steps", totalSteps))
    return steps;
  const double total = double(totalSteps);
  const double ratio = options.number("warmup_ratio");
  if (options.text("warmup_rule") == "transformers")
    return int64_t(std::ceil(total * ratio));
  const int64_t steps = ratio > 0
                            ? int64_t(ratio * total)
                            : std::min<int64_t>(int64_t(0.03 * total), 100);
  return steps == 1 ? 2 : steps;
}

LearningRate::LearningRate(const Options &options, int64_t totalSteps)
    : base(options.number("learning_rate")),
      warmup(warmupOf(options, totalSteps)), total(totalSteps),
      factor(rowOf(options).factor) {
  std::map<std::string, std::string> values =
      options.textMap("lr_scheduler_kwargs");
  for (const ScheduleParameter &parameter : parametersOf(rowOf(options))) {
    const std::string name(parameter.name);
    values.try_emplace(name, parameter.initial());
    if (parameter.isWord())
      words[name] = values[name];
    else if (!values[name].empty())
      numbers[name] = *numberOf(values[name]);
  }
}

double LearningRate::at(int64_t step) const {
  return base * factor(*this, double(step));
}

} // namespace qlora
