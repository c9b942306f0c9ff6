// SPDX-License-Identifier: MIT

// Reads plain LoRA adapters, and joins their matrices.

#include "runtime/Session/AdapterChoice.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Options/AdapterTargets.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

namespace fs = std::filesystem;

static constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

/// Splits NAME=DIR. A path with an equal sign has a slash before it, or exists.
static NamedAdapter parseAdapter(const std::string &text) {
  const size_t equal = text.find('=');
  std::error_code ignored;
  if (equal != text.npos && text.find('/') > equal &&
      !fs::exists(text, ignored))
    return {text.substr(0, equal), text.substr(equal + 1)};
  const fs::path path = fs::path(text).lexically_normal();
  const fs::path last =
      path.has_filename() ? path.filename() : path.parent_path().filename();
  return {last.string(), text};
}

StatusOr<std::vector<NamedAdapter>>
parseAdapters(std::span<const std::string> texts) {
  std::vector<NamedAdapter> adapters;
  for (const std::string &text : texts) {
    NamedAdapter adapter = parseAdapter(text);
    if (adapter.name.empty() || adapter.folder.empty())
      return Status::invalid("--adapter '{}' names no folder or no adapter. "
                             "Fix: --adapter NAME=DIR",
                             text);
    if (std::ranges::count(adapters, adapter.name, &NamedAdapter::name) > 0)
      return Status::invalid("--adapter: two adapters are called '{}'. Fix: "
                             "--adapter NAME=DIR with other names",
                             adapter.name);
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

//===----------------------------------------------------------------------===//
// Plain adapters
//===----------------------------------------------------------------------===//

/// Returns the options of an adapter folder, if they are those of plain LoRA.
static StatusOr<Options> plainOptions(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(const auto settings, adapterSettings(folder));
  Options options;
  QLORA_RETURN_IF_ERROR(options.applySettings(settings));
  QLORA_RETURN_IF_ERROR(checkAdapterOptions(folder, options));
  if (const std::string_view name = beyondPlainLora(options); !name.empty())
    return Status::invalid(
        "'{}': {} is {}, but rows can choose only plain LoRA adapters. Fix: "
        "use this adapter alone",
        folder, name, dumpJson(options.value(name)));
  if (changesBase(folder))
    return Status::invalid("'{}': init_lora_weights changes the weights of the "
                           "base, which other adapters need unchanged. Fix: "
                           "use this adapter alone",
                           folder);
  return options;
}

StatusOr<PlainAdapter> readPlainAdapter(const std::string &folder) {
  QLORA_ASSIGN_OR_RETURN(Options options, plainOptions(folder));
  QLORA_ASSIGN_OR_RETURN(
      SafetensorsFile opened,
      SafetensorsFile::open(folder + "/" + kAdapterWeights));
  PlainAdapter adapter{std::move(options), std::move(opened)};
  const SafetensorsFile &file = adapter.file;
  for (const SafetensorsTensor &tensor : file.tensors()) {
    std::string_view name = tensor.name;
    const bool isA = name.ends_with(kA);
    if ((!isA && !name.ends_with(kB)) || tensor.shape.size() != 2)
      return Status::invalid("'{}': tensor '{}' is not the A or B of a linear, "
                             "but rows can choose only plain LoRA adapters. "
                             "Fix: use this adapter alone",
                             file.path(), name);
    name.remove_suffix(kA.size());
    const SafetensorsTensor *other =
        file.find(fmt::format("{}{}", name, isA ? kB : kA));
    if (!other || other->shape.size() != 2 ||
        other->shape[isA ? 1 : 0] != tensor.shape[isA ? 0 : 1])
      return Status::invalid("'{}': tensor '{}' lacks its other matrix, or "
                             "their ranks differ. Fix: save the adapter again",
                             file.path(), tensor.name);
    adapter.targets.emplace(name.substr(name.rfind('.') + 1));
    if (isA)
      adapter.rank = std::max(adapter.rank, tensor.shape[0]);
  }
  if (adapter.rank == 0)
    return Status::invalid("'{}' has no adapter", file.path());
  return adapter;
}

//===----------------------------------------------------------------------===//
// Loading
//===----------------------------------------------------------------------===//

namespace {
/// An open adapter folder.
struct OpenAdapter {
  PlainAdapter plain;
  ValuePatterns alphas;
  std::set<std::string, std::less<>> taken = {}; ///< tensors of the program

  static StatusOr<OpenAdapter> open(const NamedAdapter &source);
  double scaleOf(std::string_view module, int64_t rank) const;
  Status read(const LoadedModule &module, const qlora_parameter &parameter,
              int64_t index, std::span<float> out);
  Status checkAllTaken() const;
};

/// A matrix of an adapter in a file, as f32.
struct Matrix {
  std::vector<float> values;
  int64_t rows = 0, columns = 0;
};
} // namespace

StatusOr<OpenAdapter> OpenAdapter::open(const NamedAdapter &source) {
  QLORA_ASSIGN_OR_RETURN(PlainAdapter plain, readPlainAdapter(source.folder));
  ValuePatterns alphas;
  std::string error;
  if (!alphas.parse(dumpJson(plain.options.value("lora_alpha_pattern")),
                    error))
    return Status::invalid("'{}': alpha_pattern: {}", source.folder, error);
  return OpenAdapter{std::move(plain), std::move(alphas)};
}

/// `module`: path of the base's module, without PEFT's prefix.
double OpenAdapter::scaleOf(std::string_view module, int64_t rank) const {
  return loraScale(alphas.lookup(std::string(module))
                       .value_or(plain.options.number("lora_alpha")),
                   rank, plain.options.boolean("use_rslora"));
}

static StatusOr<Matrix> readMatrix(const SafetensorsFile &file,
                                   const SafetensorsTensor &tensor) {
  QLORA_ASSIGN_OR_RETURN(const FileWeight weight,
                         FileWeight::of(file, tensor, tensor.shape));
  Matrix matrix{{}, tensor.shape[0], tensor.shape[1]};
  std::vector<uint8_t> bytes(tensor.byteCount());
  QLORA_RETURN_IF_ERROR(weight.read(0, bytes));
  matrix.values.resize(static_cast<size_t>(tensor.elementCount()));
  weightsToFloat(weight.dtype, bytes.data(), tensor.elementCount(),
                 matrix.values.data());
  return matrix;
}

/// Refuses a matrix that does not fit the parameter's [rows, N, columns].
static Status checkShape(const SafetensorsFile &file,
                         const SafetensorsTensor &tensor,
                         const qlora_parameter &parameter, bool isA) {
  const int64_t most = parameter.shape[isA ? 0 : 2];
  const int64_t rank = tensor.shape[isA ? 0 : 1];
  const int64_t width = tensor.shape[isA ? 1 : 0];
  if (width != parameter.shape[isA ? 2 : 0])
    return Status::invalid(
        "'{}': tensor '{}' has shape {}, but the base needs a width of {}. "
        "Fix: use an adapter of this base model",
        file.path(), tensor.name, formatShape(tensor.shape),
        parameter.shape[isA ? 2 : 0]);
  if (rank > most)
    return Status::invalid("'{}': tensor '{}' has rank {}, but the program was "
                           "compiled for {}. Fix: compile with "
                           "--max-lora-rank {}",
                           file.path(), tensor.name, rank, most, rank);
  return Status::ok();
}

/// Writes the adapter's matrix to out[:, index]; `out` is the parameter.
Status OpenAdapter::read(const LoadedModule &module,
                         const qlora_parameter &parameter, int64_t index,
                         std::span<float> out) {
  const SafetensorsFile &file = plain.file;
  const SafetensorsTensor *tensor =
      findAdapterTensor(module, file, parameter);
  if (!tensor)
    return Status::ok(); // a module of other adapters
  taken.insert(tensor->name);
  const std::string_view name = parameter.name;
  const bool isA = name.ends_with(kA);
  QLORA_RETURN_IF_ERROR(checkShape(file, *tensor, parameter, isA));
  QLORA_ASSIGN_OR_RETURN(const Matrix matrix, readMatrix(file, *tensor));
  const size_t modulePath = name.size() - kPeftPrefix.size() - kB.size();
  const auto scale =
      isA ? 1.0F
          : static_cast<float>(scaleOf(
                name.substr(kPeftPrefix.size(), modulePath), matrix.columns));
  for (int64_t row = 0; row < matrix.rows; ++row)
    for (int64_t column = 0; column < matrix.columns; ++column)
      out[static_cast<size_t>(
          (row * parameter.shape[1] + index) * parameter.shape[2] + column)] =
          scale *
          matrix.values[static_cast<size_t>(row * matrix.columns + column)];
  return Status::ok();
}

Status OpenAdapter::checkAllTaken() const {
  for (const SafetensorsTensor &tensor : plain.file.tensors())
    if (!taken.contains(tensor.name))
      return Status::invalid(
          "'{}': the program has no place for tensor '{}'. Fix: use an adapter "
          "of this base model, or compile with --lora-target-modules that "
          "names its module",
          plain.file.path(), tensor.name);
  return Status::ok();
}

Status loadAdapterChoice(const LoadedModule &module,
                         std::span<const NamedAdapter> adapters,
                         Device &device) {
  std::vector<OpenAdapter> opened;
  for (const NamedAdapter &source : adapters) {
    QLORA_ASSIGN_OR_RETURN(OpenAdapter adapter, OpenAdapter::open(source));
    opened.push_back(std::move(adapter));
  }
  std::vector<float> values;
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    if (parameter->rank != 3 ||
        parameter->shape[1] < std::ssize(adapters))
      return Status::dataLoss("parameter '{}' does not fit {} adapters. Fix: "
                              "compile the program again",
                              parameter->name, adapters.size());
    values.assign(parameter->bytes / sizeof(float), 0);
    for (size_t i = 0; i < opened.size(); ++i)
      QLORA_RETURN_IF_ERROR(opened[i].read(module, *parameter,
                                           static_cast<int64_t>(i), values));
    QLORA_RETURN_IF_ERROR(device.write(
        parameter->arena, parameter->offset,
        {reinterpret_cast<const uint8_t *>(values.data()), parameter->bytes}));
  }
  for (const OpenAdapter &adapter : opened)
    QLORA_RETURN_IF_ERROR(adapter.checkAllTaken());
  return Status::ok();
}

} // namespace qlora
