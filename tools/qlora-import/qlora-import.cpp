// SPDX-License-Identifier: MIT

// qlora-import: a Hugging Face model folder -> model.mlir.

#include "frontend/DecoderBuilder.h"
#include "frontend/ModelFolder.h"
#include "runtime/Base/Amounts.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Options/CommandLine.h"
#include "tools/qlora-import/ImporterOptions.h"

#include "llvm/Support/Error.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"

#include <unistd.h>

#include <filesystem>

using namespace qlora;

static Tool importer() {
  return {.version = "qlora-import " QLORA_VERSION " (MLIR 22)\n",
          .usage = "usage: qlora-import MODEL_DIR [-o model.mlir]\n"
                   "\n"
                   "Turns a Hugging Face model folder (config.json and\n"
                   "*.safetensors) into the model.mlir that qloracc compiles.\n"
                   "Reads only the headers of the weights.\n",
          .input = "MODEL_DIR",
          .common = {"output"},
          .example = "  hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B\n"
                     "  qlora-import Qwen3-0.6B -o model.mlir\n",
          .sections = {{kImporterOptions, {}, ""}},
          .tables = {kImporterOptions}};
}

static int fail(const std::string &message) {
  llvm::errs() << "qlora-import: error: " << message << "\n";
  return 1;
}

/// Prints locations too: qloracc's messages take module names from them.
static std::string printModule(mlir::ModuleOp module) {
  mlir::OpPrintingFlags flags;
  flags.enableDebugInfo(/*enable=*/true, /*prettyForm=*/false);
  flags.printNameLocAsPrefix();
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, flags);
  stream << "\n";
  return text;
}

/// Writes the text. Returns the stream's error and clears it, because
/// raw_fd_ostream aborts the program for an error that was not cleared.
static llvm::Error writeText(llvm::raw_fd_ostream &os,
                             const std::string &text) {
  os << text;
  os.flush();
  const std::error_code error = os.error();
  os.clear_error();
  return llvm::errorCodeToError(error);
}

/// Writes to an existing pipe or device, or to standard output.
static llvm::Error writeInPlace(const std::string &path,
                                const std::string &text) {
  std::error_code error;
  llvm::raw_fd_ostream os(path, error);
  return error ? llvm::errorCodeToError(error) : writeText(os, text);
}

/// Writes the complete file, or none after an error.
static llvm::Error writeWhole(const std::string &path,
                              const std::string &text) {
  return llvm::writeToOutput(path, [&](llvm::raw_ostream &os) {
    return writeText(static_cast<llvm::raw_fd_ostream &>(os), text);
  });
}

static Status writeOutput(const std::string &path, const std::string &text) {
  std::error_code ignored;
  const bool inPlace =
      path == "-" || (std::filesystem::exists(path, ignored) &&
                      !std::filesystem::is_regular_file(path, ignored));
  llvm::Error error =
      inPlace ? writeInPlace(path, text) : writeWhole(path, text);
  if (!error)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted, "cannot write '{}': {}",
                       path, llvm::toString(std::move(error)));
}

static std::string typeName(mlir::Type type) {
  if (auto stored = llvm::dyn_cast<model::QuantizedType>(type))
    return storedFormat(stored.getFormat())->name;
  return type.isBF16() ? "bfloat16" : type.isF16() ? "float16" : "float32";
}

/// Returns "LlamaForCausalLM, 16 layers, 1.2 B parameters (bfloat16, 2.3 GiB)".
static std::string summaryOf(const ModelConfig &config, const ModelFiles &files,
                             mlir::ModuleOp module) {
  uint64_t count = 0, bytes = 0;
  std::string names;
  for (auto parameter : module.getOps<model::ParameterOp>()) {
    mlir::RankedTensorType type = parameter.getTensorType();
    count += type.getNumElements();
    std::string name = typeName(type.getElementType());
    if (names.find(name) == std::string::npos)
      names += (names.empty() ? "" : ", ") + name;
  }
  for (const std::string &name : files.tensorNames())
    bytes += files.find(name).tensor->byteCount();
  return fmt::format("{}, {} layers, {} parameters ({}, {})",
                     config.family->architecture, config.layers,
                     formatParameters(count), names, formatBytes(bytes));
}

/// Returns the values of flags that override keys of config.json.
static nlohmann::json givenKeys(const Options &options) {
  nlohmann::json given = nlohmann::json::object();
  for (const OptionRow &row : kImporterOptions)
    if (row.name != std::string_view("output") && options.isGiven(row.name))
      given[row.name] = options.value(row.name);
  return given;
}

/// Imports `folder`, an absolute path.
static Status import(const std::string &folder, const std::string &output,
                     const nlohmann::json &given) {
  QLORA_ASSIGN_OR_RETURN(ModelConfig config, readHfConfig(folder, given));
  QLORA_RETURN_IF_ERROR(checkTraining(config));
  QLORA_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(folder));
  std::vector<std::string> warnings = std::move(config.warnings);
  QLORA_ASSIGN_OR_RETURN(const DecoderWeights weights,
                         findWeights(config, files, warnings));
  for (const std::string &warning : warnings)
    llvm::errs() << "qlora-import: warning: " << warning << "\n";

  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<model::ModelDialect, mlir::func::FuncDialect>();
  mlir::OwningOpRef<mlir::ModuleOp> module =
      buildDecoder(context, config, weights, folder);
  if (mlir::failed(mlir::verify(*module)))
    return Status::error(StatusCode::kInternal,
                         "the module made of '{}' is not valid", folder);
  QLORA_RETURN_IF_ERROR(writeOutput(output, printModule(*module)));
  (output == "-" ? llvm::errs() : llvm::outs())
      << summaryOf(config, files, *module) << " -> "
      << (output == "-" ? "standard output" : output) << "\n";
  return Status::ok();
}

static Status run(std::span<const std::string> words) {
  const Tool tool = importer();
  QLORA_ASSIGN_OR_RETURN(const CommandLine line, parseCommandLine(words, tool));
  Options options(kImporterOptions);
  QLORA_RETURN_IF_ERROR(options.applySettings(line.settings));
  if (!line.answer.empty())
    return llvm::outs() << line.answer, Status::ok();
  QLORA_ASSIGN_OR_RETURN(const std::string folder, onlyInput(line, tool));
  const std::string output = options.text("output");
  if (!options.isGiven("output") && isatty(STDOUT_FILENO))
    return Status::invalid("no output is named: add -o model.mlir, or -o - to "
                           "see it here");
  if (output != "-")
    QLORA_RETURN_IF_ERROR(checkOutputFile(output));
  QLORA_RETURN_IF_ERROR(checkModelFolder(folder));
  return import(absolutePath(folder), output, givenKeys(options));
}

int main(int argc, char **argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const Status status = run(words);
  return status.isOk() ? 0 : fail(status.message());
}
