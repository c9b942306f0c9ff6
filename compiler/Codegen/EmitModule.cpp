// SPDX-License-Identifier: MIT

// Walks the program once, and writes a table row for each op.

#include "compiler/Codegen/EmitModule.h"

#include "compiler/Codegen/CommandTables.h"
#include "compiler/Codegen/KernelFunction.h"
#include "compiler/Schedule/Commands.h"

#include "runtime/Kernels/KernelTable.h"

#include <fmt/format.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace {

class ModuleEmitter {
public:
  ModuleEmitter(ModuleOp module, const Target &target,
                const CompiledKernels &compiled)
      : module(module), target(target), cudaVersion(compiled.cudaVersion) {
    for (const DeviceImage &image : compiled.images)
      addImage(image);
  }

  FailureOr<std::string> run();

private:
  LogicalResult addArenas();
  LogicalResult addParameter(ParameterOp op);
  LogicalResult addKernel(program::KernelOp op);
  LogicalResult addEntry(EntryOp op);
  LogicalResult addBinding(BindOp op);
  void addImage(const DeviceImage &image);

  std::string string(StringRef text) { return strings.label(text.str()); }
  std::string moduleString(StringRef attribute);
  std::string moduleRow();
  std::string text();

  ModuleOp module;
  const Target &target;
  const uint32_t cudaVersion;
  StringTable strings;
  CommandTables commands{module, strings};
  WordTable arenas{".Larenas"}, parameters{".Lparameters"},
      kernels{".Lkernels"}, entries{".Lentries"}, bindings{".Lbindings"},
      images{".Limages"};
  std::string imageBytes;
};

} // namespace

//===----------------------------------------------------------------------===//
// Arenas, parameters, kernels
//===----------------------------------------------------------------------===//

LogicalResult ModuleEmitter::addArenas() {
  for (auto op : module.getOps<ArenaOp>()) {
    if (!commands.arenaIndex.try_emplace(op.getKind(), arenas.size()).second)
      return op.emitOpError("is the second arena of kind ")
             << stringifyArena(op.getKind());
    arenas.row({wordOf(static_cast<uint32_t>(op.getKind()), op.getAlignment()),
                op.getBytes(), wordOf(op.getOnHost(), 0)});
  }
  return success();
}

LogicalResult ModuleEmitter::addParameter(ParameterOp op) {
  FailureOr<uint32_t> arena = commands.arenaOf(op, op.getArena());
  if (failed(arena))
    return failure();
  ArrayRef<int64_t> shape = op.getShape();
  if (shape.size() > QLORA_MAX_RANK)
    return op.emitOpError("has ")
           << shape.size() << " dimensions, more than " << QLORA_MAX_RANK;
  auto word = [](auto low, auto high) {
    return std::to_string(
        wordOf(static_cast<uint32_t>(low), static_cast<uint32_t>(high)));
  };
  // The names of the parts follow the parameter's name, each after a NUL.
  std::string name = op.getName().str();
  ArrayAttr parts = op.getPartsAttr();
  if (parts)
    for (StringRef part : parts.getAsValueRange<StringAttr>())
      name += std::string(1, '\0') + part.str();
  std::vector<std::string> row = {
      string(name), word(op.getRole(), op.getDtype()),
      word(op.getInit(), op.getQuantization()),
      word(op.getBlock(), op.getDecodedScales() ? 2 : op.getDoubleQuant()),
      word(*arena, shape.size())};
  for (size_t i = 0; i < QLORA_MAX_RANK; ++i)
    row.push_back(std::to_string(i < shape.size() ? shape[i] : 0));
  row.push_back(std::to_string(op.getOffset()));
  row.push_back(std::to_string(op.getBytes()));
  row.push_back(word(op.getFileDtype(), parts ? parts.size() : 0));
  row.push_back(word(op.getFormat().value_or(program::DType::F32), 0));
  row.push_back(std::to_string(op.getPiece()));
  row.push_back(std::to_string(op.getFirst()));
  row.push_back(word(op.getSlices(), op.getSliceDimension()));
  row.push_back(word(op.getSegments().size(),
                     commands.constantsOf(op.getSegments())));
  parameters.row(row);
  return success();
}

LogicalResult ModuleEmitter::addKernel(program::KernelOp op) {
  commands.kernelIndex[op.getSymName()] = kernels.size();
  if (!op.getOp()) {
    Block &body = op.getBody().front();
    uint32_t count =
        body.getNumArguments() + body.getTerminator()->getNumOperands();
    std::string function = functionName(op);
    bool isDevice = target.kind() == QLORA_TARGET_CUDA;
    KernelGeometry geometry = target.spelling().geometry(*op.getColumns());
    kernels.row(
        {string(op.getSymName()), isDevice ? "0" : function,
         isDevice ? string(function) : "0", std::to_string(wordOf(count, 0)),
         std::to_string(wordOf(geometry.threads, geometry.rowsPerBlock))});
    return success();
  }
  if (!op.getImplementation())
    return op.emitOpError("has no implementation (did select-kernels run?)");
  const qlora::KernelOp *library = findKernelOp(*op.getOp());
  std::string name = (*op.getOp() + "." + *op.getImplementation()).str();
  kernels.row({string(name), "0", "0",
               std::to_string(wordOf(library->operands.size(),
                                     library->constants.size())),
               "0"});
  return success();
}

/// Adds a device image. The assembler inserts the bytes of its file.
void ModuleEmitter::addImage(const DeviceImage &image) {
  std::string label = fmt::format(".Limage{}", images.size());
  imageBytes += fmt::format(".balign 16\n{0}: .incbin \"{1}\"\n{0}_end: "
                            ".byte 0\n", label, image.file);
  images.row({label, fmt::format("{0}_end - {0}", label),
              std::to_string(wordOf(image.unit, image.kind)),
              std::to_string(image.arch)});
}

//===----------------------------------------------------------------------===//
// Entries and the module
//===----------------------------------------------------------------------===//

LogicalResult ModuleEmitter::addBinding(BindOp op) {
  FailureOr<BufferRange> range = commands.rangeOf(op.getBuffer());
  if (failed(range))
    return failure();
  bindings.row({wordOf(uint32_t(op.getKind()), range->arena), range->offset,
                range->bytes});
  return success();
}

LogicalResult ModuleEmitter::addEntry(EntryOp op) {
  uint32_t firstCommand = commands.commands.size();
  uint32_t firstBinding = bindings.size();
  for (Operation &inner : op.getBody().front())
    if (failed(commands.addCommand(inner)))
      return failure();
  for (auto bind : op.getBody().getOps<BindOp>())
    if (failed(addBinding(bind)))
      return failure();
  entries.row(
      {wordOf(static_cast<uint32_t>(op.getKind()), firstCommand),
       wordOf(commands.commands.size() - firstCommand, eventCountOf(op)),
       wordOf(firstBinding, bindings.size() - firstBinding), op.getBatch(),
       op.getLength()});
  return success();
}

std::string ModuleEmitter::moduleString(StringRef attribute) {
  auto text = module->getAttrOfType<StringAttr>(attribute);
  return string(text ? text.getValue() : "{}");
}

/// Returns the label of a pipeline stage's qlora_module in the library.
static std::string stageLabel(int64_t stage) {
  return fmt::format("qlora_stage_{}", stage);
}

/// Returns struct qlora_module, field by field.
std::string ModuleEmitter::moduleRow() {
  const WordTable *tables[] = {
      &arenas,            &parameters,        &kernels,
      &commands.launches, &commands.operands, &commands.constants,
      &commands.commands, &entries,           &bindings,
      &images};
  const int64_t stage = program::stageOf(module);
  std::string row = fmt::format(
      ".balign 16\n.globl {0}\n.hidden {0}\n{0}:\n.long {1}, {2}, {3}, {4}\n"
      ".quad {5}, {6}, {7}, {8}\n",
      stageLabel(stage), QLORA_MODULE_MAGIC, QLORA_ABI_VERSION,
      sizeof(qlora_module), target.kind(), string("qloracc " QLORA_VERSION),
      string(target.cpuFeatures()), moduleString("program.config"),
      moduleString("program.plan"));
  for (const WordTable *table : tables)
    row += fmt::format(".long {}\n", table->size());
  const qlora_mesh mesh = model::meshOf(module);
  row += fmt::format(".long {}\n", cudaVersion);
#define QLORA_AXIS(NAME, GROUP, WORDS)                                         \
  row += fmt::format(".long {}\n", mesh.NAME);
#include "runtime/ABI/Enums.def"
  row += fmt::format(".long {}, {}\n", stage, model::runRanksOf(module));
  for (const WordTable *table : tables)
    row += fmt::format(".quad {}\n", table->size() ? table->getLabel() : "0");
  return row + fmt::format(".quad {}\n",
                           stage + 1 < mesh.pp ? stageLabel(stage + 1) : "0");
}

static constexpr const char *kQuery = R"(.text
.globl {0}
.type {0}, @function
{0}:
  cmpl ${1}, %edi
  jb .Lunknown
  leaq {2}(%rip), %rax
  ret
.Lunknown:
  xorl %eax, %eax
  ret
.size {0}, . - {0}
)";

std::string ModuleEmitter::text() {
  std::string row = moduleRow(), result;
  if (program::stageOf(module) == 0)
    result = fmt::format(fmt::runtime(kQuery), QLORA_MODULE_QUERY,
                         QLORA_ABI_VERSION, stageLabel(0));
  result += ".section .data.rel.ro, \"aw\"\n" + row;
  for (const WordTable *table :
       {&parameters, &kernels, &commands.launches, &images})
    result += table->str();
  result += ".section .rodata, \"a\"\n";
  for (const WordTable *table :
       {&arenas, &commands.operands, &commands.constants, &commands.commands,
        &entries, &bindings})
    result += table->str();
  return result + strings.str() + imageBytes +
         ".section .note.GNU-stack, \"\", @progbits\n";
}

FailureOr<std::string> ModuleEmitter::run() {
  if (failed(addArenas()))
    return failure();
  for (auto op : module.getOps<ParameterOp>())
    if (failed(addParameter(op)))
      return failure();
  for (auto op : module.getOps<program::KernelOp>())
    if (failed(addKernel(op)))
      return failure();
  for (auto op : module.getOps<EntryOp>())
    if (failed(addEntry(op)))
      return failure();
  return text();
}

FailureOr<std::string> qlora::emitModule(ModuleOp module, const Target &target,
                                         const CompiledKernels &kernels) {
  return ModuleEmitter(module, target, kernels).run();
}
