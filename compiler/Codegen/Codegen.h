// SPDX-License-Identifier: MIT

// From a planned program to files: the kernels as text, and train.so.

#ifndef QLORA_COMPILER_CODEGEN_CODEGEN_H
#define QLORA_COMPILER_CODEGEN_CODEGEN_H

#include <string>
#include <vector>

#include "compiler/Codegen/KernelSpelling.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/Base/Progress.h"

namespace qlora {

struct CodegenOptions {
  /// cpu or cuda.
  std::string target = "cpu";
  /// `--march`: x86-64-v2, x86-64-v3, x86-64-v4, or native for the highest
  /// of them that this machine has.
  std::string march = "native";
  /// Compiled kernels are kept here; empty for $XDG_CACHE_HOME/qlora/kernels
  /// (~/.cache without it).
  std::string cacheFolder;
  bool useCache = true;
  /// For CudaTarget::parseArchs; empty: no device code, for a plan.
  std::vector<std::string> cudaArchs;
  /// A path or a name; empty for nvcc.
  std::string cudaCompiler;
  /// Called as files of kernels are compiled; `total` is 0 if none has to be.
  ProgressListener progress;
};

/// The dialect of C++ that a target's kernels are printed in; null where there
/// is no target of that name.
const KernelSpelling *spellingOf(llvm::StringRef target);

/// Writes every generated kernel, in the order of the module, as one source
/// that includes what they need. The same module gives the same text. Errors
/// are diagnostics of the kernel.
llvm::LogicalResult printKernels(mlir::ModuleOp module,
                                 const KernelSpelling &spelling,
                                 llvm::raw_ostream &stream);

/// Compiles the kernels, writes the tables and links both to `outputPath`: of one
/// module, or of those of all stages of a pipeline, in order. The file is
/// replaced as a whole or left as it was. The same modules, flags and compiler
/// give the same bytes. Errors are diagnostics of the module.
///
/// Discardable attributes of the module: `program.config` and `program.plan`
/// (strings, JSON objects; "{}" without) become config_json and plan_json.
llvm::LogicalResult emitTrainSo(llvm::ArrayRef<mlir::ModuleOp> stages,
                                const CodegenOptions &options,
                                llvm::StringRef outputPath);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_CODEGEN_H
