// SPDX-License-Identifier: MIT

// Walks the program once, and writes a row for each thing in it.

#include "compiler/Codegen/EmitModule.h"

#include "compiler/Codegen/AssemblyText.h"
#include "compiler/Codegen/PrintKernel.h"

#include "runtime/ABI/module.h"
#include "runtime/Kernels/KernelTable.h"

#include "llvm/ADT/TypeSwitch.h"

#include <fmt/format.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace {

/// Where a buffer or view is.
struct Range {
  uint32_t arena = 0;
  uint64_t offset = 0, bytes = 0;
  uint32_t dtype = 0;
};

class ModuleEmitter {
public:
  ModuleEmitter(ModuleOp module, const Target &target)
      : module(module), target(target) {}

  FailureOr<std::string> run();

private:
  // Tables, in the order in which they are filled.
  LogicalResult addArenas();
  LogicalResult addParameter(ParameterOp op);
  LogicalResult addKernel(program::KernelOp op);
  LogicalResult addEntry(EntryOp op);
  LogicalResult addBinding(BindOp op);

  // Commands.
  LogicalResult addCommand(Operation &op);
  LogicalResult addLaunch(LaunchOp op);
  LogicalResult addOperand(Value buffer, qlora_access access, uint32_t dtype);
  LogicalResult addTransfer(Operation &op, qlora_command_kind kind,
                            ArrayRef<qlora_access> access, uint32_t target,
                            uint64_t queue);
  void command(qlora_command_kind kind, uint64_t queue, uint32_t target,
               uint32_t firstOperand);
  uint32_t launchOf(LaunchOp op, uint32_t kernel);
  uint32_t constantsOf(ArrayRef<int64_t> values);

  FailureOr<uint32_t> arenaOf(Operation *op, Arena arena);
  FailureOr<Range> rangeOf(Value buffer);
  std::string string(StringRef text) { return strings.label(text.str()); }
  std::string moduleString(StringRef attribute);
  std::string moduleRow();
  std::string text();

  ModuleOp module;
  const Target &target;
  StringTable strings;
  WordTable arenas{".Larenas"}, parameters{".Lparameters"},
      kernels{".Lkernels"}, launches{".Llaunches"}, operands{".Loperands"},
      constants{".Lconstants"}, commands{".Lcommands"}, entries{".Lentries"},
      bindings{".Lbindings"};
  std::map<Arena, uint32_t> arenaIndex;
  llvm::StringMap<uint32_t> kernelIndex;
  DenseMap<Value, Range> ranges;
  std::map<std::vector<int64_t>, uint32_t> constantIndex;
  /// By label, kernel, first constant and rows.
  std::map<std::tuple<std::string, uint32_t, uint32_t, uint64_t>, uint32_t>
      launchIndex;
};

} // namespace

//===----------------------------------------------------------------------===//
// Arenas, parameters, kernels
//===----------------------------------------------------------------------===//

LogicalResult ModuleEmitter::addArenas() {
  for (auto op : module.getOps<ArenaOp>()) {
    if (!arenaIndex.try_emplace(op.getKind(), arenas.size()).second)
      return op.emitOpError("is the second arena of kind ")
             << stringifyArena(op.getKind());
    arenas.row({wordOf(static_cast<uint32_t>(op.getKind()), op.getAlignment()),
                op.getBytes()});
  }
  return success();
}

FailureOr<uint32_t> ModuleEmitter::arenaOf(Operation *op, Arena arena) {
  auto it = arenaIndex.find(arena);
  if (it == arenaIndex.end())
    return op->emitOpError("is in the arena ")
           << stringifyArena(arena) << ", which the module does not have";
  return it->second;
}

LogicalResult ModuleEmitter::addParameter(ParameterOp op) {
  FailureOr<uint32_t> arena = arenaOf(op, op.getArena());
  if (failed(arena))
    return failure();
  ArrayRef<int64_t> shape = op.getShape();
  if (shape.size() > QLORA_MAX_RANK)
    return op.emitOpError("has ")
           << shape.size() << " dimensions, more than " << QLORA_MAX_RANK;
  auto word = [](uint32_t low, uint32_t high) {
    return std::to_string(wordOf(low, high));
  };
  std::vector<std::string> row = {
      string(op.getName()),
      op.getFile() ? string(*op.getFile()) : "0",
      word(op.getRole(), op.getDtype()),
      word(op.getInit(), op.getQuantization()),
      word(op.getBlock(), op.getDoubleQuant()),
      word(*arena, shape.size())};
  for (size_t i = 0; i < QLORA_MAX_RANK; ++i)
    row.push_back(std::to_string(i < shape.size() ? shape[i] : 0));
  row.push_back(std::to_string(op.getOffset()));
  row.push_back(std::to_string(op.getBytes()));
  row.push_back(word(op.getFileDtype(), 0));
  parameters.row(row);
  return success();
}

LogicalResult ModuleEmitter::addKernel(program::KernelOp op) {
  kernelIndex[op.getSymName()] = kernels.size();
  if (!op.getOp()) {
    Block &body = op.getBody().front();
    uint32_t count =
        body.getNumArguments() + body.getTerminator()->getNumOperands();
    kernels.row({string(op.getSymName()), functionName(op),
                 std::to_string(wordOf(count, 0))});
    return success();
  }
  if (!op.getImplementation())
    return op.emitOpError("has no implementation (did select-kernels run?)");
  const qlora::KernelOp *library = findKernelOp(*op.getOp());
  std::string name = (*op.getOp() + "." + *op.getImplementation()).str();
  kernels.row({string(name), "0",
               std::to_string(wordOf(library->operands.size(),
                                     library->constants.size()))});
  return success();
}

//===----------------------------------------------------------------------===//
// Operands
//===----------------------------------------------------------------------===//

FailureOr<Range> ModuleEmitter::rangeOf(Value buffer) {
  if (auto known = ranges.find(buffer); known != ranges.end())
    return known->second;
  if (auto view = buffer.getDefiningOp<ViewOp>()) {
    FailureOr<Range> range = rangeOf(view.getSource());
    if (failed(range))
      return failure();
    range->offset += view.getOffset();
    range->bytes = view.getBytes();
    return ranges[buffer] = *range;
  }
  auto op = buffer.getDefiningOp<BufferOp>();
  if (!op.getOffset())
    return op.emitOpError("has no offset (did plan-memory run?)");
  FailureOr<uint32_t> arena = arenaOf(op, op.getArena());
  if (failed(arena))
    return failure();
  return ranges[buffer] = {*arena, *op.getOffset(), op.getBytes(),
                           static_cast<uint32_t>(op.getDtype())};
}

static uint64_t operandWord(uint32_t arena, uint32_t dtype,
                            qlora_access access) {
  return arena | uint64_t(dtype) << 16 | uint64_t(access) << 24;
}

LogicalResult ModuleEmitter::addOperand(Value buffer, qlora_access access,
                                        uint32_t dtype) {
  FailureOr<Range> range = rangeOf(buffer);
  if (failed(range))
    return failure();
  operands.row({operandWord(range->arena, dtype, access), range->offset,
                range->bytes});
  return success();
}

uint32_t ModuleEmitter::constantsOf(ArrayRef<int64_t> values) {
  if (values.empty())
    return 0;
  auto [it, isNew] = constantIndex.try_emplace(values.vec(), constants.size());
  if (isNew)
    for (int64_t value : values)
      constants.row({static_cast<uint64_t>(value)});
  return it->second;
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

void ModuleEmitter::command(qlora_command_kind kind, uint64_t queue,
                            uint32_t target, uint32_t firstOperand) {
  uint32_t count = operands.size() - firstOperand;
  commands.row({kind | queue << 8 | uint64_t(count) << 16 |
                    uint64_t(target) << 32,
                firstOperand});
}

uint32_t ModuleEmitter::launchOf(LaunchOp op, uint32_t kernel) {
  uint32_t first = constantsOf(op.getConstants());
  auto [it, isNew] = launchIndex.try_emplace(
      {op.getLabel().str(), kernel, first, op.getRows()}, launches.size());
  if (isNew)
    launches.row({string(op.getLabel()), std::to_string(wordOf(kernel, first)),
                  std::to_string(op.getConstants().size()),
                  std::to_string(op.getRows())});
  return it->second;
}

/// The operands that the launch has, with the absent ones between them.
LogicalResult ModuleEmitter::addLaunch(LaunchOp op) {
  auto kernel = SymbolTable::lookupNearestSymbolFrom<program::KernelOp>(
      op, op.getKernelAttr());
  const qlora::KernelOp *library =
      kernel.getOp() ? findKernelOp(*kernel.getOp()) : nullptr;
  uint32_t first = operands.size();
  unsigned next = 0;
  unsigned count = op.getOperands().size() + op.getAbsent().size();
  for (unsigned i = 0; i < count; ++i) {
    if (llvm::is_contained(op.getAbsent(), static_cast<int64_t>(i))) {
      if (!library || i >= library->operands.size())
        return op.emitOpError("has no operand ") << i << " to be absent";
      const KernelOperand &mark = library->operands[i];
      auto access = static_cast<qlora_access>(
          (mark.isRead ? QLORA_READ : 0) | (mark.isWritten ? QLORA_WRITE : 0));
      operands.row({operandWord(0, QLORA_DTYPE_U8, access), 0, 0});
      continue;
    }
    if (next == op.getOperands().size())
      return op.emitOpError("names absent operands out of range");
    if (failed(addOperand(op.getOperands()[next],
                          static_cast<qlora_access>(op.getAccess()[next]),
                          op.getDtypes()[next])))
      return failure();
    ++next;
  }
  uint32_t index = kernelIndex.lookup(op.getKernel());
  command(QLORA_COMMAND_LAUNCH, op.getQueue(), launchOf(op, index), first);
  return success();
}

/// A command whose operands are those of the op.
LogicalResult ModuleEmitter::addTransfer(Operation &op, qlora_command_kind kind,
                                         ArrayRef<qlora_access> access,
                                         uint32_t target, uint64_t queue) {
  uint32_t first = operands.size();
  for (auto [buffer, mode] : llvm::zip_equal(op.getOperands(), access)) {
    FailureOr<Range> range = rangeOf(buffer);
    if (failed(range) || failed(addOperand(buffer, mode, range->dtype)))
      return failure();
  }
  return command(kind, queue, target, first), success();
}

LogicalResult ModuleEmitter::addCommand(Operation &op) {
  return llvm::TypeSwitch<Operation &, LogicalResult>(op)
      .Case<BufferOp, ViewOp, BindOp>([](auto) { return success(); })
      .Case<LaunchOp>([&](auto launch) { return addLaunch(launch); })
      .Case<FillOp>([&](auto fill) {
        return addTransfer(op, QLORA_COMMAND_FILL, QLORA_WRITE, 0,
                           fill.getQueue());
      })
      .Case<CopyOp>([&](auto copy) {
        return addTransfer(op, QLORA_COMMAND_COPY, {QLORA_WRITE, QLORA_READ},
                           0, copy.getQueue());
      })
      .Case<AllReduceOp>([&](auto reduce) {
        return addTransfer(op, QLORA_COMMAND_ALL_REDUCE, QLORA_READ_WRITE,
                           reduce.getBucket(), reduce.getQueue());
      })
      .Case<RecordOp>([&](auto record) {
        return addTransfer(op, QLORA_COMMAND_RECORD, {}, record.getEvent(),
                           record.getQueue());
      })
      .Case<WaitOp>([&](auto wait) {
        return addTransfer(op, QLORA_COMMAND_WAIT, {}, wait.getEvent(),
                           wait.getQueue());
      })
      .Default([](Operation &other) {
        return other.emitOpError("is not a command of a module");
      });
}

//===----------------------------------------------------------------------===//
// Entries and the module
//===----------------------------------------------------------------------===//

LogicalResult ModuleEmitter::addBinding(BindOp op) {
  FailureOr<Range> range = rangeOf(op.getBuffer());
  if (failed(range))
    return failure();
  bindings.row({wordOf(op.getKind(), range->arena), range->offset,
                range->bytes});
  return success();
}

/// Events are numbered from 0 without gaps or not; the count covers all.
static uint32_t eventCount(EntryOp entry) {
  uint64_t count = 0;
  for (auto record : entry.getBody().getOps<RecordOp>())
    count = std::max(count, record.getEvent() + 1);
  for (auto wait : entry.getBody().getOps<WaitOp>())
    count = std::max(count, wait.getEvent() + 1);
  return count;
}

LogicalResult ModuleEmitter::addEntry(EntryOp op) {
  uint32_t firstCommand = commands.size(), firstBinding = bindings.size();
  ranges.clear();
  for (Operation &inner : op.getBody().front())
    if (failed(addCommand(inner)))
      return failure();
  for (auto bind : op.getBody().getOps<BindOp>())
    if (failed(addBinding(bind)))
      return failure();
  entries.row({wordOf(static_cast<uint32_t>(op.getKind()), firstCommand),
               wordOf(commands.size() - firstCommand, eventCount(op)),
               wordOf(firstBinding, bindings.size() - firstBinding),
               op.getBatch(), op.getLength()});
  return success();
}

std::string ModuleEmitter::moduleString(StringRef attribute) {
  auto text = module->getAttrOfType<StringAttr>(attribute);
  return string(text ? text.getValue() : "{}");
}

/// struct qlora_module, field by field.
std::string ModuleEmitter::moduleRow() {
  const WordTable *tables[] = {&arenas,   &parameters, &kernels,
                               &launches, &operands,   &constants,
                               &commands, &entries,    &bindings};
  std::string row = fmt::format(
      ".balign 16\n.Lmodule:\n.long {}, {}, {}, {}\n.quad {}, {}, {}, {}\n",
      QLORA_MODULE_MAGIC, QLORA_ABI_VERSION, sizeof(qlora_module),
      target.kind(), string("qloracc " QLORA_VERSION),
      string(target.cpuFeatures()), moduleString("program.config"),
      moduleString("program.plan"));
  for (const WordTable *table : tables)
    row += fmt::format(".long {}\n", table->size());
  row += fmt::format(".zero {}\n", sizeof(qlora_module::reserved));
  for (const WordTable *table : tables)
    row += fmt::format(".quad {}\n", table->size() ? table->getLabel() : "0");
  return row;
}

static constexpr const char *kQuery = R"(.text
.globl {0}
.type {0}, @function
{0}:
  cmpl ${1}, %edi
  jb .Lunknown
  leaq .Lmodule(%rip), %rax
  ret
.Lunknown:
  xorl %eax, %eax
  ret
.size {0}, . - {0}
)";

std::string ModuleEmitter::text() {
  std::string module = moduleRow();
  std::string result =
      fmt::format(fmt::runtime(kQuery), QLORA_MODULE_QUERY, QLORA_ABI_VERSION);
  result += ".section .data.rel.ro, \"aw\"\n" + module;
  for (const WordTable *table : {&parameters, &kernels, &launches})
    result += table->str();
  result += ".section .rodata, \"a\"\n";
  for (const WordTable *table :
       {&arenas, &operands, &constants, &commands, &entries, &bindings})
    result += table->str();
  return result + strings.str() +
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

FailureOr<std::string> qlora::emitModule(ModuleOp module,
                                         const Target &target) {
  return ModuleEmitter(module, target).run();
}
