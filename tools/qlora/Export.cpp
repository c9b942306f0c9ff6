// SPDX-License-Identifier: MIT

// The command line of `qlora export`, and its table of forms.

#include "tools/qlora/Export.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/Base/JsonText.h"
#include "tools/qlora/ExportFormats.h"
#include "tools/qlora/ExportQuantize.h"
#include "tools/qlora/Tools.h"

namespace qlora {

static const OptionRow kExportOptions[] = {
    {"to", OptionType::kChoice, "merged", kRun, "Export",
     "form to write. merged: the base with the adapter added to its weights, a "
     "Hugging Face folder; peft: the adapter alone; gguf: the merged model as "
     "a file for llama.cpp; ollama: that file and a Modelfile; gguf-lora: the "
     "adapter alone as a file for llama.cpp", "",
     "merged peft gguf ollama gguf-lora"},
    {"output", OptionType::kPath, "", kRun, "Export",
     "folder to write; empty: RUN_DIR, with form and --quantize at its end",
     "o"},
    {"outtype", OptionType::kChoice, "auto", kRun, "Export",
     "type of the weights. auto: with --to merged the base's 16-bit type, else "
     "bf16; with gguf f16; with ollama q4_k_m; with gguf-lora f32. Types that "
     "begin with q are only for gguf and ollama", "",
     "auto bf16 f16 f32 q8_0 q5_k_m q4_k_m q4_0"},
    {"quantize", OptionType::kChoice, "none", kRun, "Export",
     "with --to merged: format to quantize the merged weights to. nf4: of "
     "bitsandbytes; fp8: of compressed-tensors, a scale per row; mxfp4: the "
     "experts of gpt-oss", "", "none nf4 fp8 mxfp4"},
    {"bnb_4bit_use_double_quant", OptionType::kBool, "false", kRun, "Export",
     "with --quantize nf4: quantize the scales of blocks too"},
    {"base", OptionType::kString, "", kRun, "Export",
     "model to add the adapter to, a folder or a name on the hub: the one that "
     "the adapter was trained on, in 16 bits; empty: the run's"},
    {"merge_into", OptionType::kChoice, "auto", kRun, "Export",
     "values of the base to add the adapter to. files: those of the base's "
     "files; dequantized: those that a quantized training computed with; auto: "
     "the ones with the smaller loss", "", "auto files dequantized"},
    {"max_shard_size", OptionType::kSize, "5GB", kRun, "Export",
     "with --to merged: largest file of weights; a larger tensor gets a file "
     "of its own", "", "", 1},
    {"validation_file", OptionType::kPath, "", kRun, "Export",
     "data to measure losses on; empty: the run's validation data, else a "
     "share of its training data"},
    {"verify", OptionType::kBool, "true", kRun, "Export",
     "measure the loss of what is written, and let its reader load it; false: "
     "write it unmeasured"},
    {"reader_python", OptionType::kPath, "", kRun, "Export",
     "Python with the program that reads the result: torch, transformers and "
     "peft, or for GGUF files gguf and llama_cpp; empty: QLORA_READER_PYTHON, "
     "else python3"},
    {"overwrite", OptionType::kBool, "false", kRun, "Export",
     "replace an earlier export in the output folder"},
    {"dry_run", OptionType::kBool, "false", kRun, "Export",
     "print the plan, and write nothing"},
};

/// Types of a merged model in a GGUF file.
static constexpr const char *kGgufTypes =
    "auto bf16 f16 f32 q8_0 q5_k_m q4_k_m q4_0";

static constexpr ExportFormat kExportFormats[] = {
    {"merged", "auto bf16 f16 f32", exportMerged},
    {"peft", "auto", exportPeft},
    {"gguf", kGgufTypes, exportGguf},
    {"ollama", kGgufTypes, exportGguf},
    {"gguf-lora", "auto f32 f16 bf16", exportGgufLora},
};

const Tool &exportTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora export RUN_DIR --to FORM [options]\n"
               "\n"
               "Writes the adapter of RUN_DIR in another form, and proves "
               "what it wrote: the\n"
               "loss on the validation data is measured here and by the "
               "form's reader. RUN_DIR\n"
               "is an output folder of qlora train, one of its checkpoints, "
               "or a PEFT adapter.\n",
      .input = "RUN_DIR",
      .common = {"to", "output", "outtype", "quantize", "base", "merge_into",
                 "validation_file", "verify", "overwrite", "dry_run"},
      .example = "  qlora export out/adapter --to merged -o out/model\n",
      .sections = {{kExportOptions, {kRun}, ""}},
      .tables = {kExportOptions}};
  return tool;
}

Status exportRun(std::span<const std::string> words) {
  QLORA_ASSIGN_OR_RETURN(const CommandLine line,
                         parseCommandLine(words, exportTool()));
  if (!line.answer.empty())
    return fmt::print("{}", line.answer), Status::ok();
  Options own{std::span<const OptionRow>(kExportOptions)};
  QLORA_RETURN_IF_ERROR(own.applySettings(line.settings));
  QLORA_ASSIGN_OR_RETURN(const std::string word, onlyInput(line, exportTool()));
  const ExportFormat &format =
      *std::ranges::find(kExportFormats, own.text("to"), &ExportFormat::name);
  const std::string type = own.text("outtype");
  const std::vector<std::string_view> types = splitWords(format.types);
  if (std::ranges::find(types, type) == types.end())
    return Status::invalid("--outtype {} does not fit --to {}. Fix: --outtype "
                           "{}",
                           type, format.name, types.front());
  QLORA_ASSIGN_OR_RETURN(const ExportJob job,
                         ExportJob::find(word, std::move(own)));
  QLORA_RETURN_IF_ERROR(checkQuantize(job));
  QLORA_RETURN_IF_ERROR(
      StagedFolder::check(job.output, job.own.boolean("overwrite")));
  return format.run(job);
}

} // namespace qlora
