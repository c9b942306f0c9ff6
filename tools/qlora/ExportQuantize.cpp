// SPDX-License-Identifier: MIT

// Chooses weights, and writes quantization_config as bitsandbytes,
// llm-compressor and gpt-oss's files have it.

#include "tools/qlora/ExportQuantize.h"

#include <algorithm>
#include <vector>

#include "frontend/DecoderWeights.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"

namespace qlora {

using nlohmann::ordered_json;

static constexpr const char *kDouble = "bnb_4bit_use_double_quant";

/// Returns the format of --quantize; null for none.
static const StoredFormat *formatOf(const ExportJob &job) {
  return storedFormat(std::string_view(job.own.text("quantize")));
}

bool isQuantizing(const ExportJob &job) { return formatOf(job); }

Status checkQuantize(const ExportJob &job) {
  const StoredFormat *const format = formatOf(job);
  if (job.own.boolean(kDouble) && (!format || format->dtype != QLORA_DTYPE_NF4))
    return Status::invalid("--bnb-4bit-use-double-quant is for NF4, but "
                           "--quantize is {}. Fix: --quantize nf4",
                           job.own.text("quantize"));
  if (!format)
    return Status::ok();
  if (job.format != "merged")
    return Status::invalid("--quantize {} does not fit --to {}. Fix: --to "
                           "merged",
                           format->name, job.format);
  const Family &family = *job.config.family;
  if (format->dtype == QLORA_DTYPE_MXFP4 && !family.experts.areStacked)
    return Status::invalid("--quantize mxfp4 is for the experts of gpt-oss, "
                           "but the model is a {}. Fix: --quantize nf4",
                           family.architecture);
  if (format->dtype == QLORA_DTYPE_FP8 &&
      family.layout == LinearLayout::kInOut)
    return Status::invalid("--quantize fp8 needs linears of torch, but those "
                           "of {} are transformers' Conv1D, which "
                           "compressed-tensors does not quantize. Fix: "
                           "--quantize nf4",
                           family.architecture);
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// Weights
//===----------------------------------------------------------------------===//

namespace {
/// Lists the weights that a format quantizes.
class WeightChoice {
public:
  WeightChoice(const MergedModel &model, WeightQuantization &how)
      : model(model), how(how) {}

  Status addLinear(const LinearWeight &linear, const Family &family);
  Status addExperts(const StackedWeight &experts);

private:
  StatusOr<const MergedTensor *> find(const std::string &name) const;

  const MergedModel &model;
  WeightQuantization &how;
};
} // namespace

StatusOr<const MergedTensor *>
WeightChoice::find(const std::string &name) const {
  for (const std::string &spelling : spellings(name))
    if (const MergedTensor *tensor = model.find(spelling))
      return tensor;
  return Status::error(StatusCode::kInternal,
                       "the merged model has no tensor '{}'", name);
}

Status WeightChoice::addLinear(const LinearWeight &linear,
                               const Family &family) {
  if (linear.module.empty())
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const MergedTensor *tensor, find(linear.weight.name));
  how.weights.emplace(tensor->name, family.layout == LinearLayout::kInOut);
  return Status::ok();
}

Status WeightChoice::addExperts(const StackedWeight &experts) {
  QLORA_ASSIGN_OR_RETURN(const MergedTensor *tensor, find(experts.name));
  const int64_t inputs = tensor->shape[tensor->shape.size() - 2];
  if (inputs % how.format->leastBlock != 0)
    return Status::invalid("--quantize {}: '{}' has {} inputs, which is no "
                           "multiple of the format's blocks of {}. Fix: "
                           "--quantize nf4",
                           how.format->name, tensor->name, inputs,
                           how.format->leastBlock);
  how.weights.emplace(tensor->name, /*isTurned=*/true);
  return Status::ok();
}

static Status chooseWeights(const MergedModel &model, const ModelConfig &config,
                            const DecoderWeights &weights,
                            WeightQuantization &how) {
  WeightChoice choice(model, how);
  for (const LayerWeights &layer : weights.layers) {
    if (how.format->dtype == QLORA_DTYPE_MXFP4) {
      QLORA_RETURN_IF_ERROR(choice.addExperts(layer.experts->gateUp));
      QLORA_RETURN_IF_ERROR(choice.addExperts(layer.experts->down));
      continue;
    }
    std::vector<const LinearWeight *> linears = {&layer.attentionOutput,
                                                 &layer.mlpOutput};
    for (const auto *some : {&layer.queryKeyValue, &layer.mlpInput})
      for (const LinearWeight &linear : *some)
        linears.push_back(&linear);
    if (layer.sharedGate)
      linears.push_back(&*layer.sharedGate);
    for (const LinearWeight *linear : linears)
      QLORA_RETURN_IF_ERROR(choice.addLinear(*linear, *config.family));
  }
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// quantization_config
//===----------------------------------------------------------------------===//

static void addOnce(std::vector<std::string> &names, std::string name) {
  if (std::ranges::find(names, name) == names.end())
    names.push_back(std::move(name));
}

/// Returns the paths of modules that are not quantized: the LM head, modules of
/// other parts of a multimodal model, routers and experts. Routers and experts
/// have other paths in older versions of transformers.
static std::vector<std::string> skippedModules(const ModelConfig &config) {
  const ModuleNames &names = config.family->modules;
  const Experts &experts = config.family->experts;
  std::vector<std::string> skipped = {config.modulePath(names.head)};
  if (config.wrapper)
    for (const std::string_view other : config.wrapper->others)
      for (const char *prefix : {"", "model."})
        skipped.push_back(fmt::format("{}{}", prefix, other));
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if (config.experts.count &&
        config.experts.layers[static_cast<size_t>(layer)])
      for (const std::string_view path :
           {experts.routerModule, experts.router, experts.module, experts.each})
        if (!path.empty())
          addOnce(skipped, fmt::format("{}.{}.{}",
                                       config.modulePath(names.layers), layer,
                                       path));
  return skipped;
}

static const char *torchType(SafetensorsDtype type) {
  return type == SafetensorsDtype::kF16    ? "float16"
         : type == SafetensorsDtype::kBF16 ? "bfloat16"
                                           : "float32";
}

static ordered_json bitsandbytesConfig(const ModelConfig &config,
                                       const WeightQuantization &how,
                                       SafetensorsDtype type) {
  return {{"_load_in_4bit", true},
          {"_load_in_8bit", false},
          {"bnb_4bit_compute_dtype", torchType(type)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", how.format->name},
          {kDouble, how.doubleQuant},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skippedModules(config)},
          {"llm_int8_threshold", 6.0},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"quant_method", "bitsandbytes"}};
}

/// Returns the scheme that vLLM and llm-compressor call FP8_DYNAMIC.
static ordered_json compressedConfig(const ModelConfig &config) {
  const auto argumentsOf = [](const char *strategy, bool isDynamic) {
    return ordered_json{{"dynamic", isDynamic},
                        {"num_bits", 8},
                        {"strategy", strategy},
                        {"symmetric", true},
                        {"type", "float"}};
  };
  std::vector<std::string> ignored = skippedModules(config);
  if (config.wrapper)
    for (const std::string_view other : config.wrapper->others)
      ignored.push_back(fmt::format("re:.*{}.*", other));
  if (config.experts.count)
    ignored.push_back(R"(re:.*\.experts\..*)");
  return {{"config_groups",
           {{"group_0",
             {{"format", "float-quantized"},
              {"input_activations", argumentsOf("token", true)},
              {"output_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights", argumentsOf("channel", false)}}}}},
          {"format", "float-quantized"},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

static ordered_json microscalingConfig(const ModelConfig &config) {
  const ModuleNames &names = config.family->modules;
  const std::string layers = config.modulePath(names.layers) + ".*.";
  const std::string attention(
      names.attentionOutput.substr(0, names.attentionOutput.rfind('.')));
  return {{"modules_to_not_convert",
           {layers + attention,
            layers + std::string(config.family->experts.routerModule),
            config.modulePath(names.embedding),
            config.modulePath(names.head)}},
          {"quant_method", "mxfp4"}};
}

StatusOr<std::optional<WeightQuantization>>
quantizationOf(const ExportJob &job, const MergedModel &model) {
  WeightQuantization how;
  how.format = formatOf(job);
  if (!how.format)
    return std::optional<WeightQuantization>();
  how.doubleQuant = job.own.boolean(kDouble);
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config,
                         readHfConfig(model.base().folder()));
  std::vector<std::string> unused;
  QLORA_ASSIGN_OR_RETURN(const DecoderWeights weights,
                         findWeights(config, model.base(), unused));
  QLORA_RETURN_IF_ERROR(chooseWeights(model, config, weights, how));
  const SafetensorsDtype type = job.weightType().value_or(model.dtype());
  how.config = how.format->dtype == QLORA_DTYPE_FP8 ? compressedConfig(config)
               : how.format->dtype == QLORA_DTYPE_MXFP4
                   ? microscalingConfig(config)
                   : bitsandbytesConfig(config, how, type);
  return std::optional(std::move(how));
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

std::string describeQuantization(const ExportJob &job,
                                 const WeightQuantization &how) {
  const std::string count =
      formatCounted(std::ssize(how.weights), "weight");
  if (how.format->dtype == QLORA_DTYPE_MXFP4)
    return fmt::format("{} of experts are in MXFP4.", count);
  std::string text =
      how.format->dtype == QLORA_DTYPE_FP8
          ? fmt::format("{} of linears are in FP8 (E4M3, a scale per row), in "
                        "the form of compressed-tensors. vLLM and transformers "
                        "also round the inputs of linears to FP8, token by "
                        "token.",
                        count)
          : fmt::format("{} of linears are in bitsandbytes' NF4{}.", count,
                        how.doubleQuant ? ", with double quantization" : "");
  if (job.config.experts.count)
    text += " The experts are not quantized, because transformers quantizes "
            "only linears.";
  return text;
}

} // namespace qlora
