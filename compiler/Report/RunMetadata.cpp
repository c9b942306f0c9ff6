// SPDX-License-Identifier: MIT

// Collects metadata from the module's attributes, parameters and options.

#include "compiler/Report/RunMetadata.h"

#include "dialects/Program/Program.h"

#include "runtime/ABI/module.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ParameterCounts.h"
#include "runtime/Options/Options.h"

#include <chrono>
#include <cstdlib>

using namespace mlir;
using namespace qlora;
using json = nlohmann::ordered_json;

/// Returns the time in $SOURCE_DATE_EPOCH, or the current time if it is unset.
static StatusOr<std::chrono::sys_seconds> reportTime() {
  using namespace std::chrono;
  const char *text = std::getenv("SOURCE_DATE_EPOCH");
  if (!text)
    return floor<seconds>(system_clock::now());
  constexpr int64_t kLatest = 253402300799; // end of the year 9999
  int64_t epoch = 0;
  if (StringRef(text).getAsInteger(10, epoch) || epoch < 0 || epoch > kLatest)
    return Status::invalid("SOURCE_DATE_EPOCH has to be a number of seconds "
                           "since 1970, but is '{}'; correct or unset it",
                           text);
  return sys_seconds(seconds(epoch));
}

static std::string dateOf(std::chrono::sys_seconds time) {
  const std::chrono::year_month_day date(
      std::chrono::floor<std::chrono::days>(time));
  return fmt::format("{:04}-{:02}-{:02}", int(date.year()),
                     unsigned(date.month()), unsigned(date.day()));
}

SmallVector<int64_t> qlora::wholeShapeOf(program::ParameterOp parameter) {
  SmallVector<int64_t> shape(parameter.getShape());
  if (parameter.getSlices())
    shape[parameter.getSliceDimension()] *= parameter.getSlices();
  return shape;
}

static void addParameters(ModuleOp program, json &facts) {
  ParameterCounts counts;
  uint64_t quantized = 0;
  json format;
  for (auto parameter : program.getOps<program::ParameterOp>()) {
    const uint64_t elements =
        counts.add(uint32_t(parameter.getRole()), wholeShapeOf(parameter));
    if (parameter.getQuantization() == program::Quantization::None)
      continue;
    quantized += elements;
    format = {{"parameters", quantized},
              {"format", storedFormat(uint32_t(*parameter.getFormat()))->title},
              {"block", parameter.getBlock()},
              {"double_quant", parameter.getDoubleQuant() ||
                                   parameter.getDecodedScales()}};
  }
  facts["parameters"] = counts.base;
  facts["adapters"] = counts.adapters;
  facts["trainable"] = counts.trainable;
  if (quantized > 0)
    facts["quantized"] = format;
}

static void addModel(ModuleOp program, json &facts) {
  json shape = json::object();
  if (auto model = program->getAttrOfType<DictionaryAttr>("model.config"))
    for (NamedAttribute attribute : model) {
      if (auto number = dyn_cast<IntegerAttr>(attribute.getValue()))
        shape[attribute.getName().str()] = number.getInt();
      else if (attribute.getName() == "family")
        facts["family"] = cast<StringAttr>(attribute.getValue()).str();
    }
  facts["shape"] = shape;
}

static void addOptions(const Options &options, json &facts) {
  const Options defaults;
  json all = json::object(), set = json::array();
  for (const OptionRow &row : optionTable()) {
    if (row.scope == OptionScope::kOutput)
      continue;
    all[row.name] = options.value(row.name);
    if (options.value(row.name) != defaults.value(row.name))
      set.push_back(row.name);
  }
  facts["options"] = all;
  facts["set"] = set;
}

/// Returns the device's rates. They are measured, not assumed, if the profile
/// contains rates of single kernels, which --calibrate writes.
static json ratesOf(const DeviceProfile &device) {
  return {{"device", device.cpu},
          {"cores", device.cores},
          {"is_assumed", !device.kernels},
          {"gemm_f32_gflops", device.gemmF32Gflops},
          {"gemm_bf16_gflops", device.gemmBf16Gflops},
          {"copy_gbps", device.copyGbps},
          {"decode_gbps", device.decodeGbps}};
}

StatusOr<std::string> qlora::runMetadata(ModuleOp program,
                                         const DeviceProfile &device) {
  QLORA_ASSIGN_OR_RETURN(const std::chrono::sys_seconds time, reportTime());
  auto config = program->getAttrOfType<StringAttr>("program.config");
  Options options;
  QLORA_RETURN_IF_ERROR(options.applyRecorded(config.getValue()));
  json facts = json::object();
  addModel(program, facts);
  addParameters(program, facts);
  addOptions(options, facts);
  facts["target"] = device.gpu ? "cuda" : "cpu";
  facts["date"] = dateOf(time);
  facts["rates"] = ratesOf(device);
  return dumpJson(facts);
}
