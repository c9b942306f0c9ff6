// SPDX-License-Identifier: MIT

// qloracc: model.mlir -> train.so.

#include "compiler/Codegen/Codegen.h"
#include "compiler/Codegen/CudaTarget.h"
#include "compiler/Driver.h"
#include "compiler/Report/Report.h"
#include "compiler/Search/LayoutSearch.h"
#include "compiler/Support/CompileProgress.h"
#include "dialects/Program/Program.h"
#include "dialects/Train/Train.h"
#include "runtime/Base/CpuCount.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "tools/qloracc/ReadModel.h"
#include "tools/qloracc/Remarks.h"
#include "tools/qloracc/Settings.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/ThreadPool.h"
#include "llvm/Support/ToolOutputFile.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Support/Timing.h"

#include <chrono>

using namespace mlir;
using namespace qlora;

static int fail(const Twine &message) {
  llvm::errs() << "qloracc: error: " << message << "\n";
  return 1;
}

/// Parses MLIR's own flags with MLIR's parser.
static bool parseMlirFlags(const CompilerSettings &settings) {
  std::vector<const char *> words = {"qloracc"};
  for (const std::string &flag : settings.mlirFlags)
    words.push_back(flag.c_str());
  return llvm::cl::ParseCommandLineOptions(words.size(), words.data(),
                                           "qloracc\n", &llvm::errs());
}

static const char *severityText(DiagnosticSeverity severity) {
  switch (severity) {
  case DiagnosticSeverity::Note:
    return "note";
  case DiagnosticSeverity::Warning:
    return "warning";
  case DiagnosticSeverity::Error:
    return "error";
  case DiagnosticSeverity::Remark:
    return "remark";
  }
  return "";
}

static LogicalResult writeFile(StringRef path,
                               function_ref<void(raw_ostream &)> write) {
  std::string error;
  auto file = openOutputFile(path, &error);
  if (!file)
    return fail(error), failure();
  write(file->os());
  file->os().close();
  if (file->os().has_error()) {
    std::string what = file->os().error().message();
    file->os().clear_error();
    return fail("cannot write " + path + ": " + what), failure();
  }
  file->keep();
  return success();
}

namespace {

/// One compile with its outputs.
class Compile {
public:
  Compile(MLIRContext &context, CompilerSettings &settings,
          CompileProgress &progress)
      : context(context), settings(settings), progress(progress) {}

  /// Compiles `model` into the program of a pipeline stage, or emits its text
  /// if `--emit` names an earlier phase.
  LogicalResult run(OwningOpRef<ModuleOp> &model, int64_t stage);
  /// Writes the outputs of all stages.
  LogicalResult finish(ArrayRef<ModuleOp> programs);
  /// Returns true after writing a program, false after the text of a phase.
  bool wroteProgram() const { return isLinked; }

private:
  bool afterPhase(StringRef phase, ModuleOp module);
  void emitText(function_ref<void(raw_ostream &)> print);
  LogicalResult dump(const Twine &name,
                     function_ref<void(raw_ostream &)> print);
  LogicalResult describe(ModuleOp program);
  LogicalResult report(ModuleOp program);
  void recordOptions(ModuleOp module);
  std::string stageWord() const {
    return settings.compile.mesh.pp > 1
               ? ("stage" + Twine(settings.compile.stage)).str()
               : std::string();
  }

  MLIRContext &context;
  CompilerSettings &settings;
  CompileProgress &progress;
  std::string config;
  std::string text; ///< for --emit, of all stages so far
  unsigned dumped = 0;
  bool failedToWrite = false;
  bool isLinked = false;
};

} // namespace

/// Returns attributes as JSON, without those that JSON cannot represent.
static nlohmann::ordered_json factsOf(DictionaryAttr attributes) {
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  for (NamedAttribute attr : attributes) {
    std::string key = attr.getName().str();
    if (auto flag = dyn_cast<BoolAttr>(attr.getValue()))
      facts[key] = flag.getValue();
    else if (auto integer = dyn_cast<IntegerAttr>(attr.getValue()))
      facts[key] = integer.getInt();
    else if (auto number = dyn_cast<FloatAttr>(attr.getValue()))
      facts[key] = number.getValueAsDouble();
    else if (auto text = dyn_cast<StringAttr>(attr.getValue()))
      facts[key] = text.getValue().str();
    else if (auto inner = dyn_cast<DictionaryAttr>(attr.getValue()))
      facts[key] = factsOf(inner);
  }
  return facts;
}

/// Records the model's properties that the runtime needs, and the options.
void Compile::recordOptions(ModuleOp module) {
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  if (auto model = module->getAttrOfType<DictionaryAttr>("model.config"))
    facts = factsOf(model);
  // Attributes of attach-adapters, without the prefix "model.".
  for (StringRef name :
       {model::kAdapterDropoutAttr, model::kAdapterFactorsAttr})
    if (auto adapters = module->getAttrOfType<DictionaryAttr>(name))
      facts[name.split('.').second.str()] = factsOf(adapters);
  if (auto length =
          module->getAttrOfType<IntegerAttr>(model::kRestartLengthAttr))
    facts["restart_length"] = length.getInt();
  if (adaptsInOut(module, settings.options))
    facts["adapts_in_out"] = true;
  if (settings.compile.unroll.chunks > 1)
    facts["chunks"] = settings.compile.unroll.chunks;
  nlohmann::ordered_json recorded = settings.options.recorded(facts);
  // The model is in the imported folder, unless the user gave another.
  auto folder = module->getAttrOfType<StringAttr>("model.folder");
  if (folder && !recorded.contains("model_name_or_path"))
    recorded["model_name_or_path"] = folder.getValue().str();
  config = dumpExact(recorded);
}

/// Appends a stage's text, separated as MLIR's tools separate modules.
void Compile::emitText(function_ref<void(raw_ostream &)> print) {
  llvm::raw_string_ostream stream(text);
  if (!text.empty())
    stream << "// -----\n";
  print(stream);
}

/// Writes into the folder of --dump-phases, if there is one.
LogicalResult Compile::dump(const Twine &name,
                            function_ref<void(raw_ostream &)> print) {
  if (settings.dumpPhases.empty())
    return success();
  SmallString<128> path(settings.dumpPhases);
  const std::string stage = stageWord();
  llvm::sys::path::append(path, (stage.empty() ? stage : stage + "_") + name);
  return writeFile(path, print);
}

bool Compile::afterPhase(StringRef phase, ModuleOp module) {
  const auto print = [&](raw_ostream &os) { module.print(os); };
  failedToWrite |= failed(dump(Twine(++dumped) + "_" + phase + ".mlir", print));
  if (phase != settings.emit)
    return !failedToWrite;
  emitText(print);
  return false;
}

LogicalResult Compile::report(ModuleOp program) {
  const CompileOptions &options = settings.compile;
  StatusOr<DeviceProfile> device =
      deviceProfileOrDefault(options.deviceProfile, options.target);
  if (!device.isOk())
    return fail(device.status().message()), failure();
  FailureOr<std::string> text =
      reportText(program, settings.reportFormat, *device);
  if (failed(text))
    return failure();
  // Later stages have their own reports: plan.json, plan.stage1.json.
  SmallString<128> path(settings.report);
  if (options.stage > 0)
    llvm::sys::path::replace_extension(
        path, stageWord() + llvm::sys::path::extension(settings.report));
  return writeFile(path, [&](raw_ostream &os) { os << *text; });
}

/// Adds config and plan to a program, and writes its report and kernels.
LogicalResult Compile::describe(ModuleOp program) {
  recordOptions(program);
  program->setAttr("program.config", StringAttr::get(&context, config));
  program->setAttr("program.plan",
                   StringAttr::get(&context,
                                   planJson(program, /*withDecisions=*/false)));
  if (!settings.report.empty() && failed(report(program)))
    return failure();
  const KernelSpelling *spelling = spellingOf(settings.codegen.target);
  LogicalResult printed = success();
  const auto print = [&](raw_ostream &os) {
    printed = printKernels(program, *spelling, os);
  };
  if (failed(dump(settings.codegen.target == "cuda" ? "kernels.cu"
                                                    : "kernels.cpp",
                  print)) ||
      failed(printed))
    return failure();
  if (settings.emit == "cpp" || settings.emit == "cuda")
    emitText(print);
  return printed;
}

/// Returns " for sm_90, compute_80"; empty for a CPU.
static std::string architecturesText(const CodegenOptions &codegen) {
  if (codegen.target != "cuda")
    return "";
  auto archs = CudaTarget::parseArchs(codegen.cudaArchs); // is valid
  std::string text;
  for (const CudaArch &arch : archs.value())
    text += (text.empty() ? " for " : ", ") + arch.name();
  return text;
}

LogicalResult Compile::finish(ArrayRef<ModuleOp> programs) {
  if (settings.emit == "so") {
    isLinked = true;
    progress.begin("compiling kernels" + architecturesText(settings.codegen));
    settings.codegen.progress = [this](uint64_t done, uint64_t total) {
      progress.count(done, total);
    };
    return emitTrainSo(programs, settings.codegen, settings.output);
  }
  // Write to the output file, as clang -S does, else to standard output.
  if (!settings.output.empty())
    return writeFile(settings.output, [&](raw_ostream &os) { os << text; });
  llvm::outs() << text;
  return success();
}

LogicalResult Compile::run(OwningOpRef<ModuleOp> &module, int64_t stage) {
  settings.compile.stage = stage;
  progress.begin(settings.compile.mesh.pp > 1
                     ? ("planning stage " + Twine(stage + 1) + " of " +
                        Twine(settings.compile.mesh.pp))
                           .str()
                     : "planning");
  dumped = 0;
  if (!settings.dumpPhases.empty())
    if (std::error_code error =
            llvm::sys::fs::create_directories(settings.dumpPhases))
      return fail("cannot create " + settings.dumpPhases + ": " +
                  error.message()),
             failure();
  bool finished = true;
  auto hook = [&](StringRef phase, ModuleOp current) {
    finished = afterPhase(phase, current);
    return finished;
  };
  if (failed(Driver(context, settings.compile).run(module, hook)))
    return failure();
  if (failedToWrite)
    return failure();
  return finished ? describe(*module) : success();
}

/// Prints a diagnostic without a file location as "qloracc: error: ...". Leaves
/// other diagnostics to the next handler.
static LogicalResult reportPlaceless(Diagnostic &diagnostic) {
  if (diagnostic.getLocation()->findInstanceOf<FileLineColRange>())
    return failure();
  const auto print = [](const Diagnostic &part) {
    llvm::errs() << "qloracc: " << severityText(part.getSeverity()) << ": "
                 << part.str() << "\n";
  };
  print(diagnostic);
  for (const Diagnostic &note : diagnostic.getNotes())
    print(note);
  return success();
}

/// Compiles the model and prints the summary. Returns the exit code.
static int compile(CompilerSettings &settings, MLIRContext &context) {
  const auto begin = std::chrono::steady_clock::now();
  auto file = openModel(settings.input);
  if (!file.isOk())
    return fail(file.status().message());
  // Report an unreadable model file before a missing -o.
  if (settings.emit == "so" && settings.output.empty())
    return fail("no output is named: add -o train.so");
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(std::move(*file), llvm::SMLoc());
  SourceMgrDiagnosticHandler diagnostics(sources, &context);
  ScopedDiagnosticHandler placeless(&context, reportPlaceless);
  OwningOpRef<ModuleOp> module = readModel(sources, context);
  if (!module)
    return fail("'" + settings.input + "' cannot be read as a model; import "
                "the model again with qlora-import");
  if (std::string error = positionsError(*module, settings); !error.empty())
    return fail(error);
  for (const std::string &warning : modelWarnings(*module, settings))
    llvm::errs() << "qloracc: warning: " << warning << "\n";
  CompileProgress progress;
  if (settings.findsLayout || !settings.batches.empty())
    progress.begin("comparing plans");
  const auto print = [](const std::string &text) {
    llvm::errs() << "qloracc: note: " << text;
  };
  if (failed(findLayoutAndBatch(*module, settings, print)))
    return 1;
  Compile job(context, settings, progress);
  SmallVector<ModuleOp> programs; // not freed: the process ends after this
  for (int64_t stage = 0; stage < settings.compile.mesh.pp; ++stage) {
    OwningOpRef<ModuleOp> program = module.get().clone();
    if (failed(job.run(program, stage)))
      return 1;
    programs.push_back(program.release());
  }
  if (failed(job.finish(programs)))
    return 1;
  progress.end();
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  if (job.wroteProgram() && settings.verbose)
    llvm::outs() << arenasText(largestOf(programs));
  if (job.wroteProgram())
    llvm::outs() << compileSummary(programs, settings, seconds.count())
                 << " -> " << shownPath(settings.output) << "\n";
  // Do not destroy the module: the process ends here.
  (void)module.release();
  return 0;
}

int main(int argc, char **argv) {
  registerAsmPrinterCLOptions();
  registerMLIRContextCLOptions();
  registerPassManagerCLOptions();
  registerDefaultTimingManagerCLOptions();
  std::vector<std::string> words(argv + 1, argv + argc);
  StatusOr<CompilerSettings> parsed = parseSettings(words);
  if (!parsed.isOk())
    return fail(parsed.status().message());
  CompilerSettings &settings = *parsed;
  if (!settings.answer.empty())
    return llvm::outs() << settings.answer, 0;
  if (!parseMlirFlags(settings))
    return 1;
  for (const std::string &path : {settings.output, settings.report})
    if (Status status = checkOutputFile(path); !status.isOk())
      return fail(status.message());
  DialectRegistry registry;
  registry.insert<model::ModelDialect, train::TrainDialect,
                  program::ProgramDialect, func::FuncDialect,
                  arith::ArithDialect, math::MathDialect>();
  train::registerModelGradients(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  // LLVM's default pool respects CPU affinity, but not a cgroup's quota.
  llvm::DefaultThreadPool threads(llvm::hardware_concurrency(usableCpus()));
  context.setThreadPool(threads);
  // Diagnostics have location, problem and fix; users do not need the op.
  context.printOpOnDiagnostic(false);
  return compile(settings, context);
}
