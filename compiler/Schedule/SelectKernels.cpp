// SPDX-License-Identifier: MIT

// select-kernels: gives each launch of a library op the first row of
// Kernels.def that accepts it. The workspace is large enough for that row and
// for all later rows that accept the launch. The loader uses a later row if the
// machine lacks the library of the selected row. Every rejection is a remark.
// The last row accepts every launch. Reference kernels for tests are never
// chosen.
//
//   program.launch @matmul(%a, %b, %c) absent [3] ...
//
// becomes
//
//   %w = program.buffer workspace bytes 4096 ...
//   program.launch @matmul.onednn(%a, %b, %c, %w) ...
//
// The workspace arena gets the alignment that the target's kernels need.

#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Schedule/Commands.h"
#include "compiler/Support/TargetTraits.h"

#include "runtime/Kernels/KernelTable.h"

#include "mlir/IR/Remarks.h"

#include <map>

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

namespace qlora {
#define GEN_PASS_DEF_SELECTKERNELS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {
class SelectKernelsPass
    : public qlora::impl::SelectKernelsBase<SelectKernelsPass> {
public:
  using SelectKernelsBase::SelectKernelsBase;

private:
  void runOnOperation() override;
  LogicalResult select(LaunchOp launch, program::KernelOp kernel);
  std::optional<std::string> tune(const KernelRow &row, KernelRequest &request);
  void refuse(LaunchOp launch, const std::string &reason,
              std::vector<std::string> &choice);
  FlatSymbolRefAttr symbolFor(const KernelRow &row);
  ArrayAttr factsOfChoices();

  llvm::StringMap<FlatSymbolRefAttr> symbols;
  /// Number of launches by choice: the name of the chosen row, followed by the
  /// reasons why earlier rows were refused.
  std::map<std::vector<std::string>, int64_t> choices;
};
} // namespace

FlatSymbolRefAttr SelectKernelsPass::symbolFor(const KernelRow &row) {
  FlatSymbolRefAttr &symbol = symbols[row.fullName()];
  if (symbol)
    return symbol;
  OpBuilder builder = OpBuilder::atBlockEnd(getOperation().getBody());
  auto kernel = program::KernelOp::create(
      builder, getOperation().getLoc(), builder.getStringAttr(row.fullName()),
      builder.getStringAttr(row.op->name),
      builder.getStringAttr(row.implementation), IntegerAttr(), ArrayAttr(),
      DenseI64ArrayAttr(), DenseI64ArrayAttr(), DenseI64ArrayAttr());
  return symbol = FlatSymbolRefAttr::get(kernel);
}

/// Adds a workspace buffer to the launch, as the operand at `position`.
static void addWorkspace(LaunchOp launch, unsigned position, int64_t bytes) {
  OpBuilder builder(launch);
  Value buffer =
      BufferOp::create(builder, launch.getLoc(), Arena::Workspace,
                       std::nullopt, bytes, DType::U8, launch.getLabel());
  auto isBefore = [&](int64_t absent) {
    return absent < static_cast<int64_t>(position);
  };
  unsigned index = position - llvm::count_if(launch.getAbsent(), isBefore);
  SmallVector<int64_t> access(launch.getAccess()), dtypes(launch.getDtypes());
  SmallVector<int64_t> absent(launch.getAbsent());
  access.insert(access.begin() + index, int64_t(Access::Write));
  dtypes.insert(dtypes.begin() + index, QLORA_DTYPE_U8);
  llvm::erase(absent, static_cast<int64_t>(position));
  launch->insertOperands(index, buffer);
  launch.setAccess(access);
  launch.setDtypes(dtypes);
  launch.setAbsent(absent);
}

void SelectKernelsPass::refuse(LaunchOp launch, const std::string &reason,
                               std::vector<std::string> &choice) {
  choice.push_back(reason);
  remark::missed(launch.getLoc(),
                 remark::RemarkOpts::name("refused").category(getArgument()))
      << reason;
}

/// Tunes the request for the row. Returns why the row is refused, or nullopt.
std::optional<std::string> SelectKernelsPass::tune(const KernelRow &row,
                                                   KernelRequest &request) {
  if (row.tune)
    row.tune(request, workspaces);
  const uint64_t bytes = row.workspaceBytes(request);
  if (workspaces != WorkspaceSize::kSmall || !row.isRoomy ||
      bytes <= kSmallWorkspace)
    return std::nullopt;
  return "needs a workspace of " + std::to_string(bytes) +
         " bytes, but workspaces must be small";
}

LogicalResult SelectKernelsPass::select(LaunchOp launch,
                                        program::KernelOp kernel) {
  const qlora::KernelOp *op = findKernelOp(*kernel.getOp());
  KernelRequest request = requestOf(launch, op);
  std::vector<std::string> choice(1);
  const KernelRow *chosen = nullptr;
  uint64_t bytes = 0;
  for (const KernelRow &row : kernelRows()) {
    if (row.op != op || row.target != target || row.isOracle)
      continue;
    KernelRequest tuned = request;
    std::optional<std::string> reason = row.reject(request);
    if (!reason && !chosen)
      reason = tune(row, tuned);
    if (reason) {
      if (!chosen)
        refuse(launch, row.fullName() + ": " + *reason, choice);
      continue;
    }
    if (!chosen) {
      chosen = &row;
      request = tuned;
    }
    bytes = std::max(bytes, row.workspaceBytes(request));
  }
  if (!chosen)
    return launch.emitOpError("no kernel of '")
           << op->name << "' for target '" << target << "' accepts it";
  choice.front() = chosen->fullName();
  ++choices[choice];
  if (bytes != 0)
    addWorkspace(launch, op->operandIndex("workspace"),
                 static_cast<int64_t>(bytes));
  launch.setConstants(request.constants);
  launch.setKernelAttr(symbolFor(*chosen));
  return success();
}

/// Returns the pass's decision: how often each row was chosen, and why earlier
/// rows were refused.
ArrayAttr SelectKernelsPass::factsOfChoices() {
  Builder builder(&getContext());
  SmallVector<Attribute> facts;
  for (const auto &[choice, launches] : choices) {
    SmallVector<StringRef> refused(llvm::drop_begin(choice));
    facts.push_back(MetadataBuilder(&getContext())
                        .add("kernel", choice.front())
                        .add("launches", launches)
                        .add("refused", builder.getStrArrayAttr(refused))
                        .get());
  }
  return builder.getArrayAttr(facts);
}

void SelectKernelsPass::runOnOperation() {
  symbols.clear();
  choices.clear();
  SymbolTable table(getOperation());
  SmallVector<LaunchOp> launches;
  getOperation().walk([&](LaunchOp launch) { launches.push_back(launch); });
  DenseSet<Operation *> unselected;
  for (LaunchOp launch : launches) {
    auto kernel = table.lookup<program::KernelOp>(launch.getKernel());
    if (!kernel.getOp() || kernel.getImplementation())
      continue;
    unselected.insert(kernel);
    if (failed(select(launch, kernel)))
      return signalPassFailure();
  }
  for (Operation *kernel : unselected)
    kernel->erase();
  std::optional<TargetTraits> traits = targetTraits(target.getValue());
  for (auto arena : getOperation().getOps<ArenaOp>())
    if (traits && arena.getKind() == Arena::Workspace)
      arena.setAlignment(traits->workspaceAlignment);
  recordDecision(getOperation(), getArgument(), factsOfChoices());
}
