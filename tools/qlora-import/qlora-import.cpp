// SPDX-License-Identifier: MIT

// qlora-import: a Hugging Face model folder -> model.mlir.

#include "frontend/DecoderBuilder.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/raw_ostream.h"

#include <CLI/CLI.hpp>

#include <filesystem>

using namespace qlora;

static int fail(const std::string &message) {
  llvm::errs() << "qlora-import: error: " << message << "\n";
  return 1;
}

/// Locations are printed: they are how qloracc's messages name modules.
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

/// A stream that ends with an unread error ends the program.
static llvm::Error writeText(llvm::raw_fd_ostream &os,
                             const std::string &text) {
  os << text;
  os.flush();
  const std::error_code error = os.error();
  os.clear_error();
  return llvm::errorCodeToError(error);
}

/// A pipe or a device is written to.
static llvm::Error writeInPlace(const std::string &path,
                                const std::string &text) {
  std::error_code error;
  llvm::raw_fd_ostream os(path, error);
  return error ? llvm::errorCodeToError(error) : writeText(os, text);
}

/// A file appears whole or not at all.
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

static Status import(const std::string &folder, const std::string &output) {
  QLORA_ASSIGN_OR_RETURN(ModelConfig config, readHfConfig(folder));
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
  return writeOutput(output, printModule(*module));
}

int main(int argc, char **argv) {
  CLI::App app("Turns a Hugging Face model folder (config.json and "
               "safetensors headers) into model.mlir, for qloracc.",
               "qlora-import");
  std::string folder, output = "-";
  app.set_version_flag("--version", "qlora-import " QLORA_VERSION " (MLIR 22)");
  app.add_option("MODEL_DIR", folder, "Hugging Face model folder")->required();
  app.add_option("-o,--output", output, "file to write, - for standard output")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error);
  }
  std::error_code ignored;
  const std::filesystem::path absolute =
      std::filesystem::absolute(folder, ignored).lexically_normal();
  // "x/" and "x" are one folder.
  folder =
      (absolute.has_filename() ? absolute : absolute.parent_path()).string();
  const Status status = import(folder, output);
  return status.isOk() ? 0 : fail(status.message());
}
