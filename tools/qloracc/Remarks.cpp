// SPDX-License-Identifier: MIT

// Warnings that Hugging Face gives too, and the figures of the summary.

#include "tools/qloracc/Remarks.h"

#include "compiler/Report/RunMetadata.h"
#include "compiler/Schedule/EntryBuffers.h"
#include "compiler/Search/StepPlan.h"
#include "dialects/Model/Model.h"
#include "dialects/Program/Program.h"
#include "runtime/ABI/module.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Module/ParameterCounts.h"

#include "llvm/ADT/StringSet.h"

#include <algorithm>
#include <optional>

using namespace mlir;

namespace qlora {

/// Returns name and value of an option that a stored weight does not satisfy,
/// or empty.
static std::string unmetByStored(const Options &options,
                                 model::QuantizedType type) {
  const StoredFormat &format = *storedFormat(type.getFormat());
  const char *asked = format.bits == 4 ? "load_in_4bit" : "load_in_8bit";
  const char *other = format.bits == 4 ? "load_in_8bit" : "load_in_4bit";
  if (options.isGiven(asked) && !options.boolean(asked))
    return fmt::format("{} false", options.spelling(asked));
  if (options.boolean(other))
    return options.spelling(other);
  if (const std::string method = options.text("quant_method");
      method != "none" && method != format.name)
    return fmt::format("{} {}", options.spelling("quant_method"), method);
  if (format.codedScales != CodedScales::kByChoice)
    return "";
  if (options.isGiven("bnb_4bit_use_double_quant") &&
      options.boolean("bnb_4bit_use_double_quant") != type.getDoubleQuant())
    return fmt::format("--bnb-4bit-use-double-quant {}",
                       !type.getDoubleQuant());
  if (options.isGiven("bnb_4bit_blocksize") &&
      options.integer("bnb_4bit_blocksize") != int64_t(type.getBlock()))
    return fmt::format("--bnb-4bit-blocksize {}",
                       options.integer("bnb_4bit_blocksize"));
  return "";
}

/// Returns a warning, as transformers does, that weights are used as stored.
static std::string storedWarning(ModuleOp model, const Options &options) {
  for (auto parameter : model.getOps<model::ParameterOp>()) {
    auto type = dyn_cast<model::QuantizedType>(
        parameter.getTensorType().getElementType());
    std::string unmet = type ? unmetByStored(options, type) : "";
    if (!unmet.empty())
      return fmt::format(
          "{} has no effect on weights stored in {} bits: they stay {} in "
          "blocks of {} with{} double quantization ('{}')",
          unmet, storedFormat(type.getFormat())->bits,
          storedFormat(type.getFormat())->title, int64_t(type.getBlock()),
          type.getDoubleQuant() ? "" : "out", parameter.getSymName().str());
  }
  return "";
}

/// Returns an attribute of `model.config`, or null.
template <typename Attr> static Attr configured(ModuleOp model, StringRef key) {
  auto config = model->getAttrOfType<DictionaryAttr>("model.config");
  return config ? config.getAs<Attr>(key) : nullptr;
}

static bool isConfigured(ModuleOp model, StringRef key, StringRef value) {
  auto text = configured<StringAttr>(model, key);
  return text && text.getValue() == value;
}

namespace {
/// The tokens of the longest row, and the option that decides them.
struct LongestRow {
  const char *option;
  int64_t tokens;
};
} // namespace

static LongestRow longestRow(const CompilerSettings &settings) {
  const CompileOptions &compile = settings.compile;
  LongestRow longest = {"--max-length", 0};
  for (int64_t length : compile.lengths)
    longest.tokens = std::max(longest.tokens, length);
  if (compile.generationRows > 0 && compile.generation.entries > longest.tokens)
    longest = {"--generation-length", compile.generation.entries};
  return longest;
}

/// Returns max_position_embeddings if the longest row has more tokens.
static std::optional<int64_t> fewPositions(ModuleOp model,
                                           const CompilerSettings &settings) {
  auto positions = configured<IntegerAttr>(model, "max_position_embeddings");
  if (!positions || longestRow(settings).tokens <= positions.getInt())
    return std::nullopt;
  return positions.getInt();
}

std::string positionsError(ModuleOp model, const CompilerSettings &settings) {
  const std::optional<int64_t> positions = fewPositions(model, settings);
  if (!positions || !isConfigured(model, "positions", "learned"))
    return "";
  const auto [option, tokens] = longestRow(settings);
  return fmt::format("{} {} exceeds the {} positions of this model; lower it",
                     option, tokens, *positions);
}

static std::string positionsWarning(ModuleOp model,
                                    const CompilerSettings &settings) {
  const std::optional<int64_t> positions = fewPositions(model, settings);
  if (!positions || isConfigured(model, "rope_type", "dynamic"))
    return "";
  const auto [option, tokens] = longestRow(settings);
  return fmt::format("{} {} exceeds the {} positions of this model "
                     "(max_position_embeddings in config.json): it was not "
                     "trained on later positions",
                     option, tokens, *positions);
}

bool adaptsInOut(ModuleOp model, const Options &options) {
  return isConfigured(model, "linear_layout", "in_out") &&
         options.quantizedFormat().empty();
}

/// Returns a warning about a wrong --fan-in-fan-out. PEFT warns about it, too.
static std::string layoutWarning(ModuleOp model, const Options &options) {
  const bool isInOut = adaptsInOut(model, options);
  if (!options.isGiven("fan_in_fan_out") ||
      options.boolean("fan_in_fan_out") == isInOut)
    return "";
  return fmt::format("--fan-in-fan-out {} does not match the adapted weights, "
                     "which are {}; adapter_config.json will have {}",
                     !isInOut, isInOut ? "[in, out]" : "[out, in]", isInOut);
}

std::vector<std::string> modelWarnings(ModuleOp model,
                                       const CompilerSettings &settings) {
  std::vector<std::string> warnings = {storedWarning(model, settings.options),
                                       positionsWarning(model, settings),
                                       layoutWarning(model, settings.options)};
  std::erase(warnings, "");
  return warnings;
}

std::string arenasText(ModuleOp program) {
  std::string text;
  for (auto arena : program.getOps<program::ArenaOp>())
    text += fmt::format("  {:<24} {:>10}\n",
                        arenaTitle(static_cast<unsigned>(arena.getKind())),
                        formatBytes(arena.getBytes()));
  return text;
}

ModuleOp largestOf(ArrayRef<ModuleOp> programs) {
  return *std::max_element(programs.begin(), programs.end(),
                           [](ModuleOp one, ModuleOp other) {
                             return plannedBytes(one) < plannedBytes(other);
                           });
}

/// Returns the shapes of the entries: "batch 8 x 512 tokens".
static std::string shapesText(const CompileOptions &compile) {
  if (compile.trains)
    return fmt::format("batch {} x {} tokens", compile.batch,
                       fmt::join(compile.lengths, ", "));
  return fmt::format("generates {} x {} tokens", compile.generationRows,
                     compile.generation.entries);
}

std::string compileSummary(ArrayRef<ModuleOp> programs,
                           const CompilerSettings &settings, double seconds) {
  // Count each parameter once: trainable and tied ones are in several stages.
  ModuleOp program = programs.front();
  ParameterCounts counts;
  StringSet<> names;
  for (ModuleOp stage : programs)
    for (auto parameter : stage.getOps<program::ParameterOp>())
      if (names.insert(parameter.getName()).second)
        counts.add(uint32_t(parameter.getRole()), wholeShapeOf(parameter));
  std::string text;
  if (auto config = program->getAttrOfType<DictionaryAttr>("model.config"))
    if (auto family = config.getAs<StringAttr>("family")) {
      StringRef name = family.getValue();
      name.consume_back("ForCausalLM");
      text = name.str() + ", ";
    }
  const ModuleOp largest = largestOf(programs);
  const int64_t hostBytes = plannedHostBytes(largest);
  text += fmt::format(
      "{} parameters, {}, {}, {}plan {}{}, {:.1f} s",
      formatParameters(counts.base),
      settings.compile.trains
          ? fmt::format("{} trainable ({:.2f} %)",
                        formatCount(counts.trainable), counts.trainableShare())
          : fmt::format("{} of adapters", formatCount(counts.trainable)),
      shapesText(settings.compile),
      programs.size() > 1 ? fmt::format("{} stages, ", programs.size()) : "",
      planText(plannedBytes(largest), settings.compile.memoryLimit),
      hostBytes > 0 ? fmt::format(" and {} of pinned host memory",
                                  formatBytes(hostBytes))
                    : "",
      seconds);
  return text;
}

} // namespace qlora
