// SPDX-License-Identifier: MIT

// Implements the queries of Commands.h.

#include "compiler/Schedule/Commands.h"

#include "llvm/ADT/TypeSwitch.h"

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

uint32_t qlora::eventCountOf(EntryOp entry) {
  uint64_t count = 0;
  for (auto record : entry.getBody().getOps<RecordOp>())
    count = std::max(count, record.getEvent() + 1);
  for (auto wait : entry.getBody().getOps<WaitOp>())
    count = std::max(count, wait.getEvent() + 1);
  return count;
}

unsigned qlora::queueOf(Operation *command) {
  return llvm::TypeSwitch<Operation *, unsigned>(command)
      .Case<LaunchOp, FillOp, CopyOp, RecordOp, WaitOp>(
          [](auto op) { return static_cast<unsigned>(op.getQueue()); })
      .Case([](CollectiveOp) { return QLORA_QUEUE_COMMUNICATION; });
}

BufferOp qlora::rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewOp>())
    buffer = view.getSource();
  return buffer.getDefiningOp<BufferOp>();
}

SmallVector<BufferAccess> qlora::accessesOf(Operation *command) {
  SmallVector<BufferAccess> accesses;
  auto add = [&](Value buffer, int64_t access) {
    accesses.push_back({buffer, static_cast<qlora_access>(access)});
  };
  llvm::TypeSwitch<Operation *>(command)
      .Case<LaunchOp>([&](LaunchOp launch) {
        for (auto [buffer, access] :
             llvm::zip_equal(launch.getOperands(), launch.getAccess()))
          add(buffer, access);
      })
      .Case<FillOp>([&](FillOp fill) { add(fill.getBuffer(), QLORA_WRITE); })
      .Case<CopyOp>([&](CopyOp copy) {
        add(copy.getTarget(), QLORA_WRITE);
        add(copy.getSource(), QLORA_READ);
      })
      .Case<CollectiveOp>([&](CollectiveOp together) {
        add(together.getTarget(), int64_t(together.getTargetAccess()));
        if (Value source = together.getSource())
          add(source, QLORA_READ);
      });
  return accesses;
}

SmallVector<Value> qlora::buffersWritten(Operation *command) {
  SmallVector<Value> written;
  for (auto [buffer, access] : accessesOf(command))
    if (access & QLORA_WRITE)
      written.push_back(buffer);
  return written;
}

/// True if `source` holds a weight, or is a buffer in `gathered`.
static bool isOfWeights(Value source,
                        const DenseMap<Operation *, size_t> &gathered) {
  const Arena from = rootOf(source).getArena();
  return from == Arena::Frozen || from == Arena::Trainable ||
         from == Arena::Rounded || from == Arena::Host ||
         gathered.contains(rootOf(source));
}

DenseMap<Operation *, size_t>
qlora::gatheredBuffers(ArrayRef<Operation *> commands) {
  DenseMap<Operation *, size_t> gathered;
  for (auto [position, command] : llvm::enumerate(commands)) {
    Value target, source;
    if (auto gather = dyn_cast<CollectiveOp>(command))
      target = gather.getTarget(), source = gather.getSource();
    else if (auto copy = dyn_cast<CopyOp>(command))
      target = copy.getTarget(), source = copy.getSource();
    if (source && rootOf(target).getArena() == Arena::Activation &&
        isOfWeights(source, gathered))
      gathered[rootOf(target)] = position;
  }
  return gathered;
}

ByteRange qlora::rangeOf(Value buffer) {
  uint64_t offset = 0;
  auto part = buffer.getDefiningOp<ViewOp>();
  for (ViewOp view = part; view;
       view = view.getSource().getDefiningOp<ViewOp>())
    offset += view.getOffset();
  BufferOp root = rootOf(buffer);
  uint64_t bytes = (part ? part.getBytes() : root.getBytes()) +
                   root.getSpanBytes() - root.getBytes();
  if (root.getOffset())
    return {nullptr, root.getArena(), *root.getOffset() + offset, bytes};
  return {root, root.getArena(), offset, bytes};
}

uint64_t qlora::ownBytes(Value buffer) {
  BufferOp root = rootOf(buffer);
  return rangeOf(buffer).bytes - (root.getSpanBytes() - root.getBytes());
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
