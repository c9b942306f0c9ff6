// SPDX-License-Identifier: MIT

// The steps of code generation, in order.

#include "compiler/Codegen/Codegen.h"

#include "compiler/Codegen/CpuTarget.h"
#include "compiler/Codegen/EmitModule.h"
#include "compiler/Codegen/Linker.h"
#include "compiler/Codegen/PrintKernel.h"

using namespace mlir;
using namespace qlora;

/// The text of every generated kernel, in order.
static FailureOr<std::vector<std::string>>
printAll(ModuleOp module, const KernelDialect &dialect) {
  std::vector<std::string> functions;
  for (auto kernel : module.getOps<program::KernelOp>()) {
    if (kernel.getOp())
      continue;
    FailureOr<std::string> text = printKernel(kernel, dialect);
    if (failed(text))
      return failure();
    functions.push_back(std::move(*text));
  }
  return functions;
}

LogicalResult qlora::printKernels(ModuleOp module, raw_ostream &stream) {
  FailureOr<std::vector<std::string>> functions =
      printAll(module, hostDialect());
  if (failed(functions))
    return failure();
  stream << "#include \"runtime/Kernels/Rows.h\"\n";
  for (const std::string &function : *functions)
    stream << '\n' << function;
  return success();
}

/// Everything after the texts: what can fail is the machine, not the module.
static Status buildLibrary(const std::vector<std::string> &functions,
                           const std::string &tables, Target &target,
                           const std::string &clang,
                           const std::string &outputPath) {
  QLORA_ASSIGN_OR_RETURN(ScratchFolder folder, ScratchFolder::create());
  QLORA_ASSIGN_OR_RETURN(std::vector<std::string> objects,
                         target.compile(functions, folder));
  objects.push_back(folder.file("module.o"));
  QLORA_RETURN_IF_ERROR(assemble(clang, tables, objects.back(), folder));
  QLORA_ASSIGN_OR_RETURN(std::string library,
                         linkLibrary(objects, folder));
  return replaceFile(outputPath, library);
}

static StatusOr<CpuTarget> makeTarget(const CodegenOptions &options) {
  QLORA_ASSIGN_OR_RETURN(CpuLevel level, cpuLevel(options.march));
  QLORA_ASSIGN_OR_RETURN(std::string clang, CpuTarget::findClang());
  std::string folder = options.cacheFolder.empty()
                           ? KernelCache::defaultFolder()
                           : options.cacheFolder;
  KernelCache cache(options.useCache ? folder : std::string());
  return CpuTarget(std::move(level), std::move(cache), std::move(clang));
}

LogicalResult qlora::emitTrainSo(ModuleOp module,
                                 const CodegenOptions &options,
                                 StringRef outputPath) {
  StatusOr<CpuTarget> target = makeTarget(options);
  if (!target.isOk())
    return emitError(module.getLoc()) << target.status().message();
  FailureOr<std::vector<std::string>> functions =
      printAll(module, target->dialect());
  if (failed(functions))
    return failure();
  FailureOr<std::string> tables = emitModule(module, *target);
  if (failed(tables))
    return failure();
  Status status = buildLibrary(*functions, *tables, *target,
                               target->getClang(), outputPath.str());
  if (!status.isOk())
    return emitError(module.getLoc()) << status.message();
  return success();
}
