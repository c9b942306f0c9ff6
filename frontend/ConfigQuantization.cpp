// SPDX-License-Identifier: MIT

// Readers of `quantization_config`, one per quantization method.

#include "frontend/ConfigQuantization.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include <fmt/ranges.h>

using nlohmann::json;

namespace qlora {

/// Reads the data type of bitsandbytes' weights. The block size and double
/// quantization are properties of each weight's tensors, which are read later.
static Status readBitsandbytes(const JsonFields &quantization,
                               ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(const bool eightBit,
                         quantization.boolean("load_in_8bit", false));
  QLORA_ASSIGN_OR_RETURN(const bool fourBit,
                         quantization.boolean("load_in_4bit", false));
  if (eightBit == fourBit)
    return Status::invalid("quantization_config has load_in_4bit {} and "
                           "load_in_8bit {}; exactly one must be true",
                           fourBit, eightBit);
  config.unquantizedKey = "llm_int8_skip_modules";
  config.storedFormat = storedFormat(QLORA_DTYPE_LLM_INT8);
  if (eightBit)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const std::string type,
                         quantization.string("bnb_4bit_quant_type", "fp4"));
  config.storedFormat = type == "nf4"   ? storedFormat(QLORA_DTYPE_NF4)
                        : type == "fp4" ? storedFormat(QLORA_DTYPE_FP4)
                                        : nullptr;
  if (config.storedFormat)
    return Status::ok();
  return Status::invalid("bnb_4bit_quant_type '{}' is not supported; "
                         "supported: nf4, fp4",
                         type);
}

/// Checks that `key` is missing or that its value is in `choices`, ignoring
/// case.
static Status needChoice(const JsonFields &quantization, const char *key,
                         std::initializer_list<const char *> choices) {
  QLORA_ASSIGN_OR_RETURN(std::string value,
                         quantization.string(key, *choices.begin()));
  std::ranges::transform(value, value.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  if (std::ranges::find(choices, value) != choices.end())
    return Status::ok();
  return Status::invalid("quantization_config has {} '{}'; supported: {}", key,
                         value, fmt::join(choices, ", "));
}

static Status readMicroscaling(const JsonFields &, ModelConfig &config) {
  config.unquantizedKey = "modules_to_not_convert";
  config.storedFormat = storedFormat(QLORA_DTYPE_MXFP4);
  return Status::ok();
}

// FP8 -------------------------------------------------------------------------

/// Checks that a block shape is missing or [128, 128]. No published model has
/// another one.
static Status needTiles(const JsonFields &quantization, const char *key) {
  const json *shape = quantization.find(key);
  if (!shape || *shape == json::array({128, 128}))
    return Status::ok();
  return Status::invalid("{} {} is not supported; supported: [128, 128] or "
                         "none",
                         key, shortDump(*shape));
}

/// Warns that activations are not rounded to FP8, unlike in other programs.
static void warnOfActivations(const std::string &scheme, ModelConfig &config) {
  config.warnings.push_back(fmt::format(
      "weights are used as stored in FP8, but activations are not rounded to "
      "FP8 (activation scheme '{}')",
      scheme));
}

static Status readFp8(const JsonFields &quantization, ModelConfig &config) {
  config.unquantizedKey = quantization.find("ignored_layers")
                              ? "ignored_layers"
                              : "modules_to_not_convert";
  config.storedFormat = storedFormat(QLORA_DTYPE_FP8);
  QLORA_ASSIGN_OR_RETURN(const std::string scheme,
                         quantization.string("activation_scheme", "dynamic"));
  warnOfActivations(scheme, config);
  QLORA_RETURN_IF_ERROR(needChoice(quantization, "fmt", {"e4m3"}));
  QLORA_RETURN_IF_ERROR(needChoice(quantization, "scale_fmt", {"float"}));
  return needTiles(quantization, "weight_block_size");
}

static Status checkCompressedGroup(const json &group) {
  const json none = json::object();
  const json &weights = group.is_object() ? group.value("weights", none) : none;
  if (!weights.is_object() || weights.value("type", json()) != "float" ||
      weights.value("num_bits", json()) != 8)
    return Status::invalid("compressed-tensors weights {} are not supported; "
                           "supported: type float with num_bits 8",
                           shortDump(weights));
  return needTiles(JsonFields(weights), "block_structure");
}

/// Reads compressed-tensors' FP8 settings. Ignores its list of quantized
/// linears, because the files' tensors show which linears are quantized.
static Status readCompressed(const JsonFields &quantization,
                             ModelConfig &config) {
  config.unquantizedKey = "ignore";
  config.storedFormat = storedFormat(QLORA_DTYPE_FP8);
  QLORA_RETURN_IF_ERROR(
      needChoice(quantization, "format", {"float-quantized"}));
  const json *groups = quantization.find("config_groups");
  if (!groups || !groups->is_object())
    return Status::invalid("quantization_config has no config_groups");
  for (const json &group : *groups)
    QLORA_RETURN_IF_ERROR(checkCompressedGroup(group));
  warnOfActivations("of config_groups", config);
  return Status::ok();
}

// GPTQ and AWQ ----------------------------------------------------------------

static Status readIntegers(const JsonFields &quantization, ModelConfig &config,
                           bool hasEightBits) {
  config.unquantizedKey = "modules_to_not_convert";
  QLORA_ASSIGN_OR_RETURN(const int64_t bits,
                         quantization.integer("bits", 1, 4));
  if (bits != 4 && (bits != 8 || !hasEightBits))
    return Status::invalid("quantization_config has bits {}; supported: {}",
                           bits, hasEightBits ? "4, 8" : "4");
  config.storedFormat =
      storedFormat(bits == 4 ? QLORA_DTYPE_INT4 : QLORA_DTYPE_INT8);
  const char *key = quantization.find("q_group_size") ? "q_group_size"
                                                      : "group_size";
  QLORA_ASSIGN_OR_RETURN(config.storedBlock,
                         quantization.integer(key, -1, 128));
  return Status::ok();
}

static Status readGptq(const JsonFields &quantization, ModelConfig &config) {
  for (const char *key : {"checkpoint_format", "format"})
    QLORA_RETURN_IF_ERROR(needChoice(quantization, key, {"gptq", "gptq_v2"}));
  QLORA_RETURN_IF_ERROR(readIntegers(quantization, config, true));
  // These keys select the quantized modules in a syntax that is not supported.
  // Instead, every linear with quantized tensors is quantized.
  for (const char *key : {"modules_in_block_to_quantize", "dynamic"})
    config.isChosenByFiles |= quantization.find(key) != nullptr;
  return Status::ok();
}

static Status readAwq(const JsonFields &quantization, ModelConfig &config) {
  for (const char *key : {"version", "format"})
    QLORA_RETURN_IF_ERROR(needChoice(quantization, key, {"gemm"}));
  if (const json *backend = quantization.find("backend");
      backend && *backend == "llm-awq")
    return Status::invalid("backend 'llm-awq' is not supported; supported: "
                           "AWQ's version gemm");
  return readIntegers(quantization, config, false);
}

namespace {
struct QuantizationMethod {
  const char *name;
  Status (*read)(const JsonFields &, ModelConfig &);
};
} // namespace

static constexpr QuantizationMethod kMethods[] = {
    {"bitsandbytes", readBitsandbytes}, {"mxfp4", readMicroscaling},
    {"fp8", readFp8},                   {"fbgemm_fp8", readFp8},
    {"compressed-tensors", readCompressed},
    {"gptq", readGptq},                 {"awq", readAwq}};

Status readQuantization(const JsonFields &fields, ModelConfig &config) {
  const json *object = fields.find("quantization_config");
  if (!object)
    return Status::ok();
  if (!object->is_object())
    return Status::invalid("'quantization_config' is {}; expected an object",
                           shortDump(*object));
  const JsonFields quantization(*object);
  QLORA_ASSIGN_OR_RETURN(const std::string method,
                         quantization.string("quant_method", "bitsandbytes"));
  const auto known = std::ranges::find(kMethods, method,
                                       &QuantizationMethod::name);
  if (known == std::end(kMethods))
    return Status::invalid("quantization method '{}' is not supported; "
                           "supported are bitsandbytes, mxfp4, fp8, "
                           "fbgemm_fp8, compressed-tensors (FP8), gptq and "
                           "awq; or use the unquantized model",
                           method);
  QLORA_RETURN_IF_ERROR(known->read(quantization, config));
  QLORA_ASSIGN_OR_RETURN(config.unquantizedModules,
                         quantization.strings(config.unquantizedKey));
  return Status::ok();
}

} // namespace qlora
