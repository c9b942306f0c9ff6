// SPDX-License-Identifier: MIT

// Questions about commands (Commands.h).

#include "compiler/Schedule/Commands.h"

#include "llvm/ADT/TypeSwitch.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

SmallVector<Operation *> qlora::commandsOf(EntryOp entry) {
  SmallVector<Operation *> commands;
  for (Operation &op : entry.getBody().front())
    if (!isa<BufferOp, ViewOp, BindOp>(op))
      commands.push_back(&op);
  return commands;
}

unsigned qlora::queueOf(Operation *command) {
  return llvm::TypeSwitch<Operation *, unsigned>(command)
      .Case<LaunchOp, FillOp, CopyOp, AllReduceOp, RecordOp, WaitOp>(
          [](auto op) { return op.getQueue(); });
}

BufferOp qlora::rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewOp>())
    buffer = view.getSource();
  return buffer.getDefiningOp<BufferOp>();
}

SmallVector<Value> qlora::buffersWritten(Operation *command) {
  auto launch = dyn_cast<LaunchOp>(command);
  if (!launch) {
    if (auto copy = dyn_cast<CopyOp>(command))
      return {copy.getTarget()};
    return SmallVector<Value>(command->getOperands());
  }
  SmallVector<Value> written;
  for (auto [buffer, access] :
       llvm::zip_equal(launch.getOperands(), launch.getAccess()))
    if (access & QLORA_WRITE)
      written.push_back(buffer);
  return written;
}

KernelRequest qlora::requestOf(LaunchOp launch, const qlora::KernelOp *op) {
  KernelRequest request{op, {}, {}};
  auto dtype = launch.getDtypes().begin();
  for (unsigned i = 0; i < op->operands.size(); ++i) {
    if (llvm::is_contained(launch.getAbsent(), static_cast<int64_t>(i)))
      request.dtypes.push_back(std::nullopt);
    else
      request.dtypes.push_back(static_cast<qlora_dtype>(*dtype++));
  }
  request.constants.assign(launch.getConstants().begin(),
                           launch.getConstants().end());
  return request;
}
