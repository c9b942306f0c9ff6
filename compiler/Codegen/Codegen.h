// SPDX-License-Identifier: MIT

// Writes a planned program to files: the kernels as text, and train.so.

#ifndef QLORA_COMPILER_CODEGEN_CODEGEN_H
#define QLORA_COMPILER_CODEGEN_CODEGEN_H

#include <string>
#include <vector>

#include "compiler/Codegen/KernelSpelling.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/Base/Progress.h"

namespace qlora {

struct CodegenOptions {
  /// Target of the kernels: cpu or cuda.
  std::string target = "cpu";
  /// `--march`: x86-64-v2, x86-64-v3 or x86-64-v4, or native for the highest
  /// of these levels that this machine has.
  std::string march = "native";
  /// Folder of cached kernels. Empty: $XDG_CACHE_HOME/qlora/kernels, or
  /// ~/.cache/qlora/kernels if the variable is not set.
  std::string cacheFolder;
  bool useCache = true;
  /// GPU architectures, as in CudaTarget::parseArchs. If empty, train.so gets
  /// no device code: its plan can be read, but it cannot run.
  std::vector<std::string> cudaArchs;
  /// Path or name of the CUDA compiler. Empty: nvcc.
  std::string cudaCompiler;
  /// Called as kernel files are compiled. `total` is 0 if all files are cached.
  ProgressListener progress;
};

/// Returns the C++ dialect that a target's kernels are printed in, or null for
/// an unknown target.
const KernelSpelling *spellingOf(llvm::StringRef target);

/// Writes all generated kernels, in module order, as one source file that
/// includes the header they need. The output is deterministic. Errors are
/// diagnostics of the kernel op.
llvm::LogicalResult printKernels(mlir::ModuleOp module,
                                 const KernelSpelling &spelling,
                                 llvm::raw_ostream &stream);

/// Compiles the kernels, writes the tables, and links both to `outputPath`.
/// Takes one module, or one per pipeline stage, in order. Replaces the file
/// atomically. The same modules, flags and compiler give the same bytes. Errors
/// are diagnostics of the module.
///
/// The module's discardable attributes `program.config` and `program.plan`
/// (JSON objects as strings, default "{}") become `config_json` and `plan_json`
/// of qlora_module.
llvm::LogicalResult emitTrainSo(llvm::ArrayRef<mlir::ModuleOp> stages,
                                const CodegenOptions &options,
                                llvm::StringRef outputPath);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_CODEGEN_H
