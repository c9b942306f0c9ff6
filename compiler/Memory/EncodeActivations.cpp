// SPDX-License-Identifier: MIT

// encode-activations: saves values in 8 bits if the backward reads them only
// for weight gradients.
//
//   %n  = model.rms_norm %x, %w
//   %z  = model.linear %n, %a
//   ...
//   %da = train.linear_weight_grad %dz, %n      {phase = backward}
//
// becomes
//
//   %n  = model.rms_norm %x, %w                 // dies in the forward
//   %codes, %scales = train.encode_rows %n
//   %z  = model.linear %n, %a
//   ...
//   %m  = train.decode_rows %codes, %scales     {phase = backward}
//   %da = train.linear_weight_grad %dz, %m      {phase = backward}
//
// The quantization error of such a value affects only the weight gradient that
// is computed from it. The forward, and the gradients of all activations, keep
// every bit. If another op of the backward reads the value, it is saved
// unchanged.

#include "compiler/Optimize/OpCost.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_ENCODEACTIVATIONS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

class EncodeActivationsPass
    : public qlora::impl::EncodeActivationsBase<EncodeActivationsPass> {
public:
  using EncodeActivationsBase::EncodeActivationsBase;

private:
  void runOnOperation() override;
  void encode(Value value);
};

} // namespace

/// Returns true if `gradient` only flows into gradients of parameters:
/// directly, through sums, or as the accumulator of a matmul.
static bool isOnlyAccumulated(Value gradient) {
  return llvm::all_of(gradient.getUses(), [](OpOperand &use) {
    Operation *user = use.getOwner();
    if (isa<train::AccumulateOp>(user))
      return true;
    auto sum = dyn_cast<AccumulatingOp>(user);
    if (isa<LibraryOp>(user) && !(sum && sum.getAccumulatorUse() == &use))
      return false;
    return (isa<LibraryOp, RowOp>(user) || isView(user)) &&
           llvm::all_of(user->getResults(), isOnlyAccumulated);
  });
}

/// Returns the uses of `value` in the backward, in program order.
static SmallVector<OpOperand *> backwardReads(Value value) {
  SmallVector<OpOperand *> reads;
  for (OpOperand &use : value.getUses())
    if (isBackward(use.getOwner()))
      reads.push_back(&use);
  llvm::sort(reads, [](OpOperand *a, OpOperand *b) {
    return a->getOwner() == b->getOwner()
               ? a->getOperandNumber() < b->getOperandNumber()
               : a->getOwner()->isBeforeInBlock(b->getOwner());
  });
  return reads;
}

static RankedTensorType codesOf(RankedTensorType type) {
  return type.clone(IntegerType::get(type.getContext(), 8));
}

static RankedTensorType scalesOf(RankedTensorType type) {
  return withLength(type, type.getRank() - 1, 1)
      .clone(Float32Type::get(type.getContext()));
}

static int64_t bytesOfEncoded(RankedTensorType type) {
  return tensorBytes(codesOf(type)) + tensorBytes(scalesOf(type));
}

/// Returns whether a row op's result can be encoded: the codes are smaller, and
/// the backward reads it only for weight gradients. The row op's kernel encodes
/// it in registers. Matmul results are not encoded: the only one that qualifies
/// is an adapter's x . A^T, too narrow to be worth a second read.
static bool canEncode(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  if (!isFloatStorable(type) || bytesOfEncoded(type) >= tensorBytes(type) ||
      llvm::any_of(value.getUsers(), isView))
    return false;
  SmallVector<OpOperand *> reads = backwardReads(value);
  return !reads.empty() && llvm::all_of(reads, [](OpOperand *read) {
    Operation *reader = read->getOwner();
    return isa<LibraryOp>(reader) &&
           llvm::all_of(reader->getResults(), isOnlyAccumulated);
  });
}

/// Encodes `value`, and decodes it once per layer before the layer's first
/// reader.
void EncodeActivationsPass::encode(Value value) {
  Operation *maker = value.getDefiningOp();
  auto type = cast<RankedTensorType>(value.getType());
  SmallVector<OpOperand *> reads = backwardReads(value);
  OpBuilder builder(maker->getContext());
  builder.setInsertionPointAfter(maker);
  auto encoded = EncodeRowsOp::create(builder, maker->getLoc(), codesOf(type),
                                      scalesOf(type), value);
  copyStage(maker, encoded);
  DenseMap<int64_t, Value> decoded; // by layer
  for (OpOperand *read : reads) {
    Operation *reader = read->getOwner();
    Value &known = decoded[layerOf(reader)];
    if (!known) {
      builder.setInsertionPoint(reader);
      auto decode = DecodeRowsOp::create(builder, maker->getLoc(), type,
                                         encoded.getCodes(),
                                         encoded.getScales());
      copyStage(reader, decode);
      known = decode.getX();
    }
    read->set(known);
  }
  remark::passed(maker->getLoc(),
                 remark::RemarkOpts::name("encoded").category(getArgument()))
      << remark::add("{0} bytes kept for {1} weight gradients instead of {2}",
                     bytesOfEncoded(type), reads.size(), tensorBytes(type));
}

void EncodeActivationsPass::runOnOperation() {
  SmallVector<Value> found;
  for (Operation &op : getOperation().getBody().front())
    if (isa<RowOp>(op) && !isBackward(&op))
      llvm::copy_if(op.getResults(), std::back_inserter(found), canEncode);
  int64_t exact = 0, encoded = 0;
  for (Value value : found) {
    auto type = cast<RankedTensorType>(value.getType());
    exact += tensorBytes(type);
    encoded += bytesOfEncoded(type);
    encode(value);
  }
  values += found.size();
  exactBytes += exact;
  encodedBytes += encoded;
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("values", found.size())
                     .add("exact_bytes", exact)
                     .add("encoded_bytes", encoded)
                     .get());
}
