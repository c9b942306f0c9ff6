// SPDX-License-Identifier: MIT

// Finds the weights, decomposes them, and subtracts B A from the weights.

#include "runtime/Weights/WeightFactors.h"

#include <charconv>
#include <optional>

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Options/AdapterOptions.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/ParameterInit.h"
#include "runtime/Weights/ParameterWeight.h"
#include "runtime/Weights/WholeTensor.h"

namespace qlora {

using nlohmann::json;

static constexpr int64_t kElementsAtOnce = int64_t{1} << 22;
static constexpr std::string_view kEndOfA = ".lora_A.weight";

static bool isComplete(const json &entry) {
  return entry.is_object() && entry.contains("scale") &&
         entry["scale"].is_number() && entry.contains("turned") &&
         entry["turned"].is_boolean() && entry.contains("weight") &&
         entry["weight"].is_string();
}

Status LoraInitFactors::find(const LoadedModule &module, const json &factors) {
  const auto damaged = [&](std::string_view what) {
    return Status::dataLoss("'{}': its list of decomposed weights {}; compile "
                            "it again",
                            module.path(), what);
  };
  if (!factors.is_object())
    return damaged("is not an object");
  for (const auto &[name, entry] : factors.items()) {
    if (!name.ends_with(kEndOfA) || !isComplete(entry))
      return damaged("has an incomplete entry '" + name + "'");
    const std::string path = name.substr(0, name.size() - kEndOfA.size());
    const WeightFactors found = {
        module.parameterOfModel(entry["weight"].get<std::string>()),
        module.parameter(name), module.parameter(path + ".lora_B.weight"),
        entry["scale"].get<double>(), entry["turned"].get<bool>()};
    if (!found.weight || !found.a || !found.b || found.weight->rank != 2 ||
        found.a->rank != 2 || found.b->rank != 2 ||
        found.a->shape[0] != found.b->shape[1])
      return damaged("names weights that the program does not have");
    for (const qlora_parameter *parameter : {found.weight, found.a, found.b})
      byName[parameter->name] = all.size();
    all.push_back(found);
  }
  return Status::ok();
}

/// Reads the weight as f32, in the orientation of its file.
static StatusOr<std::vector<float>> readWeight(const ModelFiles &model,
                                               const WeightFactors &of) {
  const int64_t out = of.b->shape[0], in = of.a->shape[1];
  const int64_t shape[] = {of.isTransposed ? in : out,
                           of.isTransposed ? out : in};
  QLORA_ASSIGN_OR_RETURN(
      const FileWeight weight,
      FileWeight::find(&model, of.weight->name, shape,
                       static_cast<qlora_dtype>(of.weight->file_dtype)));
  std::vector<float> values(static_cast<size_t>(out * in));
  std::vector<uint8_t> window;
  for (int64_t first = 0; first < out * in; first += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, out * in - first);
    window.resize(static_cast<size_t>(count) * weightBytes(weight.dtype));
    QLORA_RETURN_IF_ERROR(weight.read(first, window));
    weightsToFloat(weight.dtype, window.data(), count, values.data() + first);
  }
  return values;
}

/// Replaces a weight by its quantization error W - Q(W), [out, in].
static Status takeQuantized(const WeightFactors &of, WholeMatrix &w,
                            std::vector<float> &values) {
  const qlora_parameter weight = wholeOf(*of.weight);
  if (weight.quantization == QLORA_QUANTIZATION_NONE)
    return Status::invalid("init_lora_weights loftq: --load-in-4bit does not "
                           "quantize '{}', so it has no quantization error; "
                           "remove its module from lora_target_modules",
                           weight.name);
  if (w.isTransposed) {
    std::vector<float> turned(values.size());
    turnWeights(QLORA_DTYPE_F32,
                reinterpret_cast<const uint8_t *>(values.data()), w.columns,
                w.rows, reinterpret_cast<uint8_t *>(turned.data()));
    values = std::move(turned);
    w = {values, w.rows, w.columns};
  }
  const auto elements = static_cast<int64_t>(values.size());
  const StoredLayout layout = layoutOf(weight);
  std::vector<uint8_t> packed(static_cast<size_t>(layout.bytes));
  quantizeStored(layout, values.data(), packed.data());
  std::vector<float> decoded(values.size());
  StoredWeight::of(layout, w.columns)
      .decode(packed.data(), 0, elements, QLORA_DTYPE_F32, decoded.data());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] -= decoded[i];
  return Status::ok();
}

/// Returns N of "pissa_niter_N", or nothing for other names.
static std::optional<int64_t> iterationsOf(std::string_view init) {
  int64_t iterations = 0;
  constexpr std::string_view kStart = "pissa_niter_";
  if (!init.starts_with(kStart))
    return std::nullopt;
  init.remove_prefix(kStart.size());
  std::from_chars(init.data(), init.data() + init.size(), iterations);
  return iterations;
}

static StatusOr<LowRank> decompose(const WeightFactors &of,
                                   const ModelFiles &model,
                                   const FactorRequest &request) {
  QLORA_ASSIGN_OR_RETURN(std::vector<float> values, readWeight(model, of));
  const int64_t rank = of.a->shape[0];
  WholeMatrix w = {values, of.b->shape[0], of.a->shape[1], of.isTransposed};
  if (request.init == "olora")
    return orthogonalFactors(w, rank);
  if (request.init == "loftq") {
    QLORA_RETURN_IF_ERROR(takeQuantized(of, w, values));
    return largestFactors(w, rank, 1);
  }
  if (const auto iterations = iterationsOf(request.init)) {
    std::vector<float> start(static_cast<size_t>(w.columns * rank));
    drawNormal(request.seed, of.weight->name, start);
    return nearLargestFactors(w, rank, of.scale, *iterations, start);
  }
  return largestFactors(w, rank, of.scale);
}

static std::string toBytes(const LowRank &values) {
  std::string bytes;
  for (const std::vector<float> *part : {&values.a, &values.b})
    bytes.append(reinterpret_cast<const char *>(part->data()),
                 part->size() * sizeof(float));
  return bytes;
}

static Status fromBytes(const std::string &bytes, WeightFactors &to) {
  if (bytes.size() != to.a->bytes + to.b->bytes)
    return Status::error(StatusCode::kAborted,
                         "another rank has PiSSA or OLoRA factors of '{}' for "
                         "another train.so; start all ranks with the same file",
                         to.weight->name);
  const auto *values = reinterpret_cast<const float *>(bytes.data());
  to.values.a.assign(values, values + to.a->bytes / sizeof(float));
  to.values.b.assign(values + to.a->bytes / sizeof(float),
                     values + bytes.size() / sizeof(float));
  return Status::ok();
}

StatusOr<LoraInitFactors> LoraInitFactors::compute(const LoadedModule &module,
                                                   const FactorRequest &request,
                                                   const ModelFiles &model,
                                                   RankGroup &group) {
  LoraInitFactors factors;
  if (request.factors.is_null())
    return factors;
  factors.changesBase = leavesResidual(request.init);
  QLORA_RETURN_IF_ERROR(factors.find(module, request.factors));
  const auto ranks = static_cast<size_t>(group.size());
  const size_t count = factors.all.size();
  for (size_t first = 0; first < count; first += ranks) {
    std::string mine;
    if (const size_t own = first + static_cast<size_t>(group.rank());
        own < count) {
      QLORA_ASSIGN_OR_RETURN(const LowRank values,
                             decompose(factors.all[own], model, request));
      mine = toBytes(values);
    }
    QLORA_ASSIGN_OR_RETURN(const auto told,
                           group.collectives().allGather(mine));
    for (size_t i = 0; i < ranks && first + i < count; ++i)
      QLORA_RETURN_IF_ERROR(fromBytes(told[i], factors.all[first + i]));
    if (request.progress)
      request.progress(std::min(first + ranks, count), count);
  }
  return factors;
}

const WeightFactors *
LoraInitFactors::ofBase(const qlora_parameter &weight) const {
  const auto found = byName.find(std::string_view(weight.name));
  return changesBase && found != byName.end() ? &all[found->second] : nullptr;
}

std::span<const float>
LoraInitFactors::ofAdapter(const qlora_parameter &parameter) const {
  const auto found = byName.find(std::string_view(parameter.name));
  if (found == byName.end())
    return {};
  const WeightFactors &of = all[found->second];
  return parameter.name == std::string_view(of.a->name) ? of.values.a
                                                        : of.values.b;
}

void LoraInitFactors::turnB() {
  for (WeightFactors &of : all)
    for (float &value : of.values.b)
      value = -value;
}

void WeightFactors::subtractFrom(int64_t first, qlora_dtype type,
                                 std::span<uint8_t> elements) const {
  const int64_t rank = a->shape[0], out = b->shape[0], in = a->shape[1];
  const int64_t columns = isTransposed ? out : in;
  const auto count = static_cast<int64_t>(elements.size()) / weightBytes(type);
  const int64_t begin = first / columns,
                end = (first + count - 1) / columns + 1;
  const auto s = static_cast<float>(scale);
  parallelRanges(end - begin, 1, [&](int64_t from, int64_t to) {
    std::vector<float> left(static_cast<size_t>(columns));
    for (int64_t row = begin + from; row < begin + to; ++row) {
      const int64_t low = std::max(first, row * columns) - row * columns;
      const int64_t high =
          std::min(first + count, (row + 1) * columns) - row * columns;
      uint8_t *const at =
          elements.data() + (row * columns + low - first) * weightBytes(type);
      weightsToFloat(type, at, high - low, left.data());
      for (int64_t k = 0; k < rank; ++k)
        for (int64_t c = low; c < high; ++c)
          left[c - low] -=
              isTransposed
                  ? s * values.b[c * rank + k] * values.a[k * in + row]
                  : s * values.b[row * rank + k] * values.a[k * in + c];
      weightsFromFloat(type, left.data(), high - low, at);
    }
  });
}

} // namespace qlora
