// SPDX-License-Identifier: MIT

// Parses the names and checks the shapes of an adapter's tensors.

#include "runtime/Export/AdapterChanges.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "runtime/Base/JsonText.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/AdapterTargets.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/ModelFiles.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

std::string BaseShapes::resolve(const std::string &name) const {
  std::vector<std::string> names = {name};
  for (const auto &[module, inFiles] : renamed) {
    const std::string path = "." + module + ".";
    if (const size_t at = name.find(path); at != name.npos)
      names.push_back(std::string(name).replace(at + 1, module.size(),
                                                inFiles));
  }
  for (const std::string &candidate : names)
    for (const std::string &spelling : spellings(candidate))
      if (all.contains(spelling))
        return spelling;
  return {};
}

/// Removes `part` if the text contains it, at its end or before a dot.
static void dropPart(std::string &text, std::string_view part) {
  for (size_t at = text.find(part); at != text.npos;
       at = text.find(part, at + 1)) {
    const size_t end = at + part.size();
    if (end != text.size() && text[end] != '.')
      continue;
    text.erase(at, part.size());
    return;
  }
}

namespace {

enum class TensorRole { kA, kB, kBias, kMagnitude, kTokens, kWhole };

struct RoleSuffix {
  std::string_view suffix;
  TensorRole role;
  bool isEmbedding;
};

constexpr RoleSuffix kSuffixes[] = {
    {".lora_A.weight", TensorRole::kA, false},
    {".lora_B.weight", TensorRole::kB, false},
    {".lora_B.bias", TensorRole::kBias, false},
    {".lora_embedding_A", TensorRole::kA, true},
    {".lora_embedding_B", TensorRole::kB, true},
    {".lora_magnitude_vector", TensorRole::kMagnitude, false},
    {".lora_magnitude_vector.weight", TensorRole::kMagnitude, false},
    {".token_adapter.trainable_tokens_delta", TensorRole::kTokens, true},
};

/// The tensors of one adapted module.
struct ModuleTensors {
  TensorChange of;
  bool isEmbedding = false;
  std::string first; ///< name of a tensor, for messages
};

/// Builds AdapterChanges.
class Reader {
public:
  Reader(const std::string &folder, const SafetensorsFile &file,
         const Options &options, const BaseShapes &base,
         const BaseForm &form)
      : folder(folder), file(file), options(options), base(base), form(form) {}

  Status run();
  std::map<std::string, TensorChange, std::less<>> changes;

private:
  Status parseOptions();
  Status add(const SafetensorsTensor &tensor);
  Status addWhole(const SafetensorsTensor &tensor, std::string name);
  Status finish(const std::string &path, ModuleTensors &module);
  Status finishLinear(const std::string &path, ModuleTensors &module);
  Status finishTokens(const std::string &weight, ModuleTensors &module);
  Status finishExperts(const std::string &path, ModuleTensors &module);
  Status addExperts(const std::string &parameter, const TensorChange &change);
  int64_t countExperts(const std::string &parameter) const;
  StatusOr<std::string> expertParameter(const std::string &path) const;
  Status misfit(const SafetensorsTensor &tensor, const std::string &name,
                const std::vector<int64_t> &expected) const;
  Status stranger(std::string_view tensor, const std::string &name) const;
  double scaleOf(const std::string &path, int64_t rank) const {
    return loraScale(alphas.lookup(path).value_or(options.number("lora_alpha")),
                     rank, options.boolean("use_rslora"));
  }

  const std::string &folder;
  const SafetensorsFile &file;
  const Options &options;
  const BaseShapes &base;
  const BaseForm &form;
  ValuePatterns alphas;
  std::optional<Targets> parameters; ///< target_parameters
  std::map<std::string, ModuleTensors> modules; ///< by path in the model
};

} // namespace

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

Status Reader::misfit(const SafetensorsTensor &tensor, const std::string &name,
                      const std::vector<int64_t> &expected) const {
  return Status::invalid(
      "'{}': tensor '{}' has shape {}, but the base's '{}' needs {}. Fix: "
      "--base DIR, the model that the adapter was trained on",
      file.path(), tensor.name, formatShape(tensor.shape), name,
      formatShape(expected));
}

Status Reader::stranger(std::string_view tensor,
                        const std::string &name) const {
  return Status::invalid("'{}': tensor '{}' needs '{}', which the base does "
                         "not have. Fix: --base DIR, the model that the "
                         "adapter was trained on",
                         file.path(), tensor, name);
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

Status Reader::parseOptions() {
  std::string error;
  if (!alphas.parse(dumpJson(options.value("lora_alpha_pattern")), error))
    return Status::invalid("'{}': alpha_pattern: {}", folder, error);
  const auto &targets = options.value("target_parameters");
  if (!targets.empty() &&
      !parameters.emplace().parse(dumpJson(targets), error))
    return Status::invalid("'{}': target_parameters: {}", folder, error);
  return Status::ok();
}

/// Refuses NaN and infinity.
static Status checkFinite(const SafetensorsFile &file,
                          const SafetensorsTensor &tensor) {
  constexpr int64_t kWindow = int64_t{1} << 18;
  QLORA_ASSIGN_OR_RETURN(const FileWeight weight,
                         FileWeight::of(file, tensor, tensor.shape));
  const int64_t size = weightBytes(weight.dtype);
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  for (int64_t first = 0; first < tensor.elementCount(); first += kWindow) {
    const int64_t count = std::min(kWindow, tensor.elementCount() - first);
    bytes.resize(static_cast<size_t>(count * size));
    values.resize(static_cast<size_t>(count));
    QLORA_RETURN_IF_ERROR(weight.read(first, bytes));
    weightsToFloat(weight.dtype, bytes.data(), count, values.data());
    for (const float value : values)
      if (!std::isfinite(value))
        return Status::invalid("'{}': tensor '{}' has the value {}. Fix: use "
                               "an earlier checkpoint of the run",
                               file.path(), tensor.name, value);
  }
  return Status::ok();
}

Status Reader::addWhole(const SafetensorsTensor &tensor, std::string name) {
  dropPart(name, ".base_layer");
  dropPart(name, ".modules_to_save");
  const std::string inBase = base.resolve(name);
  if (inBase.empty())
    return stranger(tensor.name, name);
  if (tensor.shape != base.shapeOf(inBase))
    return misfit(tensor, inBase, base.shapeOf(inBase));
  changes[inBase].replacement = &tensor;
  return Status::ok();
}

Status Reader::add(const SafetensorsTensor &tensor) {
  QLORA_RETURN_IF_ERROR(checkFinite(file, tensor));
  if (!tensor.name.starts_with(kPeftPrefix))
    return Status::invalid("'{}': tensor '{}' does not start with '{}', so it "
                           "is not PEFT's. Fix: save the adapter with PEFT",
                           file.path(), tensor.name, kPeftPrefix);
  const std::string name = tensor.name.substr(kPeftPrefix.size());
  for (const RoleSuffix &known : kSuffixes) {
    if (!name.ends_with(known.suffix))
      continue;
    ModuleTensors &module =
        modules[name.substr(0, name.size() - known.suffix.size())];
    module.isEmbedding |= known.isEmbedding;
    module.first = tensor.name;
    TensorChange &of = module.of;
    (known.role == TensorRole::kA           ? of.a
     : known.role == TensorRole::kB         ? of.b
     : known.role == TensorRole::kBias      ? of.bias
     : known.role == TensorRole::kMagnitude ? of.magnitude
                                            : of.tokens) = &tensor;
    return Status::ok();
  }
  if (name.find(".lora_") != name.npos)
    return Status::invalid("'{}': tensor '{}' is of a form that cannot be "
                           "merged. Fix: merge this adapter with PEFT",
                           file.path(), tensor.name);
  return addWhole(tensor, name);
}

//===----------------------------------------------------------------------===//
// Modules
//===----------------------------------------------------------------------===//

/// Trained tokens.
Status Reader::finishTokens(const std::string &weight, ModuleTensors &module) {
  const std::vector<int64_t> &shape = base.shapeOf(weight);
  const SafetensorsTensor &tokens = *module.of.tokens;
  const std::vector<int64_t> ids = options.lengths("trainable_token_indices");
  const std::vector<int64_t> expected = {std::ssize(ids), shape.back()};
  if (tokens.shape != expected)
    return misfit(tokens, weight, expected);
  for (const int64_t id : ids)
    if (id < 0 || id >= shape.front())
      return Status::invalid("'{}': trainable_token_indices has {}, but the "
                             "base has {} tokens. Fix: --base DIR, the model "
                             "that the adapter was trained on",
                             folder, id, shape.front());
  changes[weight].tokens = &tokens;
  changes[weight].tokenIds = ids;
  return Status::ok();
}

Status Reader::finishLinear(const std::string &path, ModuleTensors &module) {
  const std::string weight = base.resolve(path + ".weight");
  if (weight.empty())
    return stranger(module.first, path + ".weight");
  const std::vector<int64_t> &shape = base.shapeOf(weight);
  if (module.of.tokens)
    return finishTokens(weight, module);
  TensorChange &change = module.of;
  change.isInOut = module.isEmbedding || form.linearsAreInOut;
  if (shape.size() != 2)
    return misfit(*change.a, weight, shape);
  const int64_t out = shape[change.isInOut ? 1 : 0];
  const int64_t in = shape[change.isInOut ? 0 : 1];
  const int64_t rank = change.a->shape[0];
  if (change.a->shape[1] != in)
    return misfit(*change.a, weight, {rank, in});
  if (change.b->shape != std::vector{out, rank})
    return misfit(*change.b, weight, {out, rank});
  if (change.magnitude && change.magnitude->elementCount() != out)
    return misfit(*change.magnitude, weight, {out});
  change.scale = scaleOf(path, rank);
  if (const SafetensorsTensor *bias = std::exchange(change.bias, nullptr)) {
    const std::string inBase = base.resolve(path + ".bias");
    if (inBase.empty())
      return Status::invalid(
          "'{}': tensor '{}' is a bias, but '{}' has none, so the adapter "
          "cannot be merged. Fix: use it unmerged",
          file.path(), bias->name, path);
    if (bias->shape != base.shapeOf(inBase))
      return misfit(*bias, inBase, base.shapeOf(inBase));
    changes[inBase].bias = bias;
    changes[inBase].scale = change.scale;
  }
  change.replacement = changes[weight].replacement;
  changes[weight] = change;
  return Status::ok();
}

Status Reader::finish(const std::string &path, ModuleTensors &module) {
  const TensorChange &of = module.of;
  if (!of.tokens && (!of.a || !of.b || of.a->shape.size() != 2 ||
                     of.b->shape.size() != 2 || of.a->shape[0] == 0))
    return Status::invalid("'{}': tensor '{}' lacks its other matrix, or is "
                           "not a matrix. Fix: save the adapter again",
                           file.path(), module.first);
  const bool isOfExperts =
      path.ends_with(".experts") || path.ends_with(".experts.base_layer");
  return parameters && isOfExperts ? finishExperts(path, module)
                                   : finishLinear(path, module);
}

//===----------------------------------------------------------------------===//
// Experts
//===----------------------------------------------------------------------===//

/// Returns the path of the parameter that PEFT's wrapper at `path` adapts. If
/// two parameters of a module are adapted, the second one wraps the first.
StatusOr<std::string> Reader::expertParameter(const std::string &path) const {
  constexpr std::string_view kInner = ".base_layer";
  std::string module = path;
  const bool isInner = module.ends_with(kInner);
  if (isInner)
    module.resize(module.size() - kInner.size());
  const std::string first = module + ".gate_up_proj";
  const std::string second = module + ".down_proj";
  const bool hasTwo = isInner || modules.contains(path + std::string(kInner));
  if (hasTwo)
    return isInner ? first : second;
  if (parameters->matches(first) == parameters->matches(second))
    return Status::invalid("'{}': target_parameters does not say whether "
                           "'{}' adapts gate_up_proj or down_proj. Fix: save "
                           "the adapter again",
                           folder, path);
  return parameters->matches(first) ? first : second;
}

/// Whether a tensor [out, in] or [n, out, in] has the sizes of the product, of
/// whose outputs it has one of `parts` equal parts.
static bool fitsExperts(const TensorChange &change,
                        const std::vector<int64_t> &shape, int64_t parts) {
  const int64_t out = shape[shape.size() - (change.isInOut ? 1 : 2)];
  const int64_t in = shape[shape.size() - (change.isInOut ? 2 : 1)];
  return in == change.a->shape[1] && out * parts == change.b->shape[0];
}

/// Returns the names of the tensors of one expert that are stacked to the
/// parameter: gate and up, or down.
static std::vector<std::string> ofExpert(const BaseForm &form,
                                         const std::string &parameter,
                                         int64_t expert) {
  const size_t dot = parameter.rfind('.');
  const auto nameOf = [&](size_t projection) {
    return fmt::format("{}.{}.{}.weight", parameter.substr(0, dot), expert,
                       form.projections[projection]);
  };
  if (parameter.substr(dot + 1) == "down_proj")
    return {nameOf(2)};
  return {nameOf(0), nameOf(1)};
}

/// Adds the change of experts that have tensors of their own.
Status Reader::addExperts(const std::string &parameter,
                          const TensorChange &change) {
  for (int64_t expert = 0; expert < change.experts; ++expert) {
    const std::vector<std::string> names = ofExpert(form, parameter, expert);
    const int64_t parts = std::ssize(names);
    for (int64_t part = 0; part < parts; ++part) {
      const std::string &wanted = names[static_cast<size_t>(part)];
      const std::string name = base.resolve(wanted);
      if (name.empty())
        return stranger(change.a->name, wanted);
      TensorChange of = change;
      of.firstExpert = expert;
      of.firstOutput = part * (change.b->shape[0] / parts);
      of.isInOut = false;
      if (base.shapeOf(name).size() != 2 ||
          !fitsExperts(of, base.shapeOf(name), parts))
        return misfit(*change.b, name, base.shapeOf(name));
      changes[name] = of;
    }
  }
  return Status::ok();
}

/// Returns the number of experts that have tensors of their own.
int64_t Reader::countExperts(const std::string &parameter) const {
  int64_t count = 0;
  while (!base.resolve(ofExpert(form, parameter, count).front()).empty())
    ++count;
  return count;
}

Status Reader::finishExperts(const std::string &path, ModuleTensors &module) {
  QLORA_ASSIGN_OR_RETURN(const std::string parameter, expertParameter(path));
  TensorChange change = module.of;
  change.isInOut = form.expertsAreInOut;
  const int64_t columns = change.b->shape[1];
  if (columns != change.a->shape[0])
    return misfit(*change.b, parameter,
                  {change.b->shape[0], change.a->shape[0]});
  const std::string stacked = base.resolve(parameter);
  if (!stacked.empty()) {
    const std::vector<int64_t> &shape = base.shapeOf(stacked);
    if (shape.size() != 3 || shape[0] == 0 || columns % shape[0] != 0 ||
        !fitsExperts(change, shape, 1))
      return misfit(*change.a, stacked, shape);
    change.experts = shape[0];
  } else {
    change.experts = countExperts(parameter);
    if (change.experts == 0)
      return stranger(module.first, parameter);
    if (columns % change.experts != 0)
      return misfit(*change.b, parameter,
                    {change.b->shape[0], change.experts});
  }
  change.scale = scaleOf(parameter, columns / change.experts);
  if (stacked.empty())
    return addExperts(parameter, change);
  changes[stacked] = change;
  return Status::ok();
}

Status Reader::run() {
  QLORA_RETURN_IF_ERROR(parseOptions());
  for (const SafetensorsTensor &tensor : file.tensors())
    QLORA_RETURN_IF_ERROR(add(tensor));
  for (auto &[path, module] : modules)
    QLORA_RETURN_IF_ERROR(finish(path, module));
  if (changes.empty())
    return Status::invalid("'{}' has no adapter", file.path());
  return Status::ok();
}

StatusOr<AdapterChanges> AdapterChanges::read(const std::string &folder,
                                              const BaseShapes &base,
                                              const BaseForm &form) {
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(folder));
  Options options;
  QLORA_RETURN_IF_ERROR(options.applySettings(settings));
  QLORA_RETURN_IF_ERROR(checkAdapterOptions(folder, options));
  if (changesBase(folder))
    return Status::invalid("'{}': init_lora_weights changed the weights of the "
                           "base, so the adapter cannot be added to it. Fix: "
                           "export the finished run, whose adapter is for the "
                           "original base",
                           folder);
  QLORA_ASSIGN_OR_RETURN(
      SafetensorsFile opened,
      SafetensorsFile::open(folder + "/" + kAdapterWeights));
  // Tensors keep their addresses when the file moves.
  Reader reader(folder, opened, options, base, form);
  QLORA_RETURN_IF_ERROR(reader.run());
  return AdapterChanges{std::move(opened), std::move(reader.changes)};
}

} // namespace qlora
