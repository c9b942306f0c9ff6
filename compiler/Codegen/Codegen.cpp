// SPDX-License-Identifier: MIT

// Prints and compiles the kernels, emits the tables, and links train.so.

#include "compiler/Codegen/Codegen.h"

#include "compiler/Codegen/CpuTarget.h"
#include "compiler/Codegen/CudaTarget.h"
#include "compiler/Codegen/EmitModule.h"
#include "compiler/Codegen/Linker.h"
#include "compiler/Codegen/KernelFunction.h"

#include "llvm/ADT/StringSet.h"

#include "runtime/Base/FindProgram.h"

using namespace mlir;
using namespace qlora;

/// Returns a kernel's text with a fixed name, to compare it with other kernels.
static std::string contentsOf(program::KernelOp kernel) {
  OwningOpRef<program::KernelOp> copy = kernel.clone();
  copy->setSymName("kernel");
  std::string text;
  llvm::raw_string_ostream stream(text);
  copy->print(stream);
  return text;
}

/// Renames the generated kernels of several modules so that equal kernels have
/// one name, and different kernels have different names.
static void shareKernelNames(ArrayRef<ModuleOp> modules) {
  llvm::StringMap<std::string> names; ///< by contents
  llvm::StringSet<> taken;
  for (ModuleOp module : modules) {
    llvm::StringMap<std::string> renamed;
    for (auto kernel : module.getOps<program::KernelOp>()) {
      if (kernel.getOp())
        continue;
      const std::string old = kernel.getSymName().str();
      std::string &name = names[contentsOf(kernel)];
      for (unsigned copies = 0; name.empty(); ++copies)
        if (const std::string free =
                copies ? fmt::format("{}_{}", old, copies) : old;
            taken.insert(free).second)
          name = free;
      renamed[old] = name;
      kernel.setSymName(name);
    }
    module.walk([&](program::LaunchOp launch) {
      if (auto known = renamed.find(launch.getKernel()); known != renamed.end())
        launch.setKernel(known->second);
    });
  }
}

/// Prints each distinct generated kernel once, in order.
static FailureOr<std::vector<std::string>>
printAll(ArrayRef<ModuleOp> modules, const KernelSpelling &spelling) {
  std::vector<std::string> functions;
  llvm::StringSet<> printed;
  for (ModuleOp module : modules)
    for (auto kernel : module.getOps<program::KernelOp>()) {
      if (kernel.getOp() || !printed.insert(functionName(kernel)).second)
        continue;
      FailureOr<std::string> text = printKernel(kernel, spelling);
      if (failed(text))
        return failure();
      functions.push_back(std::move(*text));
    }
  return functions;
}

const KernelSpelling *qlora::spellingOf(StringRef target) {
  if (target == "cpu")
    return &hostSpelling();
  return target == "cuda" ? &cudaSpelling() : nullptr;
}

LogicalResult qlora::printKernels(ModuleOp module,
                                  const KernelSpelling &spelling,
                                  raw_ostream &stream) {
  FailureOr<std::vector<std::string>> functions = printAll(module, spelling);
  if (failed(functions))
    return failure();
  stream << "#include \"" << spelling.include() << "\"\n";
  for (const std::string &function : *functions)
    stream << '\n' << function;
  return success();
}

static StatusOr<std::unique_ptr<Target>>
makeTarget(const CodegenOptions &options, const std::string &clang) {
  std::string folder = options.cacheFolder.empty()
                           ? KernelCache::defaultFolder()
                           : options.cacheFolder;
  KernelCache cache(options.useCache ? folder : std::string());
  if (options.target == "cuda") {
    QLORA_ASSIGN_OR_RETURN(std::vector<CudaArch> archs,
                           CudaTarget::parseArchs(options.cudaArchs));
    std::string compiler;
    if (!archs.empty()) {
      QLORA_ASSIGN_OR_RETURN(compiler, findCudaCompiler(options.cudaCompiler));
    }
    return std::unique_ptr<Target>(std::make_unique<CudaTarget>(
        std::move(archs), std::move(cache), std::move(compiler),
        options.progress));
  }
  QLORA_ASSIGN_OR_RETURN(CpuLevel level, cpuLevel(options.march));
  return std::unique_ptr<Target>(std::make_unique<CpuTarget>(
      std::move(level), std::move(cache), clang, options.progress));
}

static LogicalResult report(ModuleOp module, const Status &status) {
  if (status.isOk())
    return success();
  return emitError(module.getLoc()) << status.message();
}

/// Links the tables and the compiled kernels to one library.
static Status link(ArrayRef<std::string> tables, CompiledKernels kernels,
                   const std::string &clang, const ScratchFolder &folder,
                   const std::string &outputPath) {
  for (auto [stage, text] : llvm::enumerate(tables)) {
    kernels.objects.push_back(folder.file(fmt::format("module{}.o", stage)));
    QLORA_RETURN_IF_ERROR(
        assemble(clang, text, kernels.objects.back(), folder));
  }
  QLORA_ASSIGN_OR_RETURN(std::string library,
                         linkLibrary(kernels.objects, folder));
  return replaceFile(outputPath, library);
}

LogicalResult qlora::emitTrainSo(ArrayRef<ModuleOp> stages,
                                 const CodegenOptions &options,
                                 StringRef outputPath) {
  const ModuleOp module = stages.front();
  if (stages.size() > 1)
    shareKernelNames(stages);
  StatusOr<std::string> clang = findTool({"clang-22"}, "clang-22");
  if (!clang.isOk())
    return report(module, clang.status());
  StatusOr<std::unique_ptr<Target>> target = makeTarget(options, *clang);
  if (!target.isOk())
    return report(module, target.status());
  StatusOr<ScratchFolder> folder = ScratchFolder::create();
  if (!folder.isOk())
    return report(module, folder.status());
  FailureOr<std::vector<std::string>> functions =
      printAll(stages, (*target)->spelling());
  if (failed(functions))
    return failure();
  StatusOr<CompiledKernels> kernels = (*target)->compile(*functions, *folder);
  if (!kernels.isOk())
    return report(module, kernels.status());
  std::vector<std::string> tables;
  for (ModuleOp stage : stages) {
    FailureOr<std::string> text = emitModule(stage, **target, *kernels);
    if (failed(text))
      return failure();
    tables.push_back(std::move(*text));
  }
  return report(module, link(tables, std::move(*kernels), *clang, *folder,
                             outputPath.str()));
}
