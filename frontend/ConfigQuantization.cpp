// SPDX-License-Identifier: MIT

// The methods of `quantization_config`, one row each.

#include "frontend/ConfigQuantization.h"

#include <algorithm>
#include <iterator>

using nlohmann::json;

namespace qlora {

/// Of bitsandbytes: what is stored how, block and double quantisation included,
/// is for each weight's tensors to say.
static Status readBitsandbytes(const JsonFields &quantization,
                               ModelConfig &config) {
  QLORA_ASSIGN_OR_RETURN(const bool eightBit,
                         quantization.boolean("load_in_8bit", false));
  QLORA_ASSIGN_OR_RETURN(const bool fourBit,
                         quantization.boolean("load_in_4bit", false));
  if (eightBit == fourBit)
    return Status::invalid("quantization_config has load_in_4bit {} and "
                           "load_in_8bit {}; one of them must be true",
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
  return Status::invalid("bnb_4bit_quant_type '{}' is not supported; nf4 and "
                         "fp4 are",
                         type);
}

static Status readMicroscaling(const JsonFields &, ModelConfig &config) {
  config.unquantizedKey = "modules_to_not_convert";
  config.storedFormat = storedFormat(QLORA_DTYPE_MXFP4);
  return Status::ok();
}

namespace {
struct QuantizationMethod {
  const char *name;
  Status (*read)(const JsonFields &, ModelConfig &);
};
} // namespace

static constexpr QuantizationMethod kMethods[] = {
    {"bitsandbytes", readBitsandbytes}, {"mxfp4", readMicroscaling}};

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
                           "supported are bitsandbytes (NF4, FP4, LLM.int8) "
                           "and mxfp4; or take the model that is not quantised",
                           method);
  QLORA_RETURN_IF_ERROR(known->read(quantization, config));
  QLORA_ASSIGN_OR_RETURN(config.unquantizedModules,
                         quantization.strings(config.unquantizedKey));
  return Status::ok();
}

} // namespace qlora
