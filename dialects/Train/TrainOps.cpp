// SPDX-License-Identifier: MIT

// Registration, verifiers and memory of the train dialect; TrainKernelCalls.cpp
// has its kernel calls.

#include "dialects/Train/Optimizers.h"

#include "runtime/Kernels/KernelTable.h"

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

#include <map>
#include <numeric>

using namespace mlir;
using namespace qlora::model;
using namespace qlora::train;

#include "dialects/Train/TrainDialect.cpp.inc"
#include "dialects/Train/TrainEnums.cpp.inc"
#include "dialects/Train/TrainInterfaces.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Train/TrainAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Train/TrainOps.cpp.inc"

void TrainDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Train/TrainOps.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Train/TrainAttrs.cpp.inc"
      >();
}

UpdateKind qlora::train::updateKindOf(ParameterOp parameter) {
  return {parameter.getPiece().has_value(),
          findOptimizer(parameter.getOptimizer()),
          parameter.getRateScale().convertToDouble(), parameter.getUndecayed()};
}

int64_t qlora::train::flatElements(ParameterOp parameter) {
  if (parameter.getPiece())
    return *parameter.getPiece() / sizeof(float);
  return llvm::alignTo(parameter.getTensorType().getNumElements(),
                       kFlatAlignment);
}

/// Returns the number that must divide the rows of each group.
static int64_t flatPiecesOf(Operation *module) {
  return std::lcm(int64_t(meshOf(module).zero1),
                  std::max<int64_t>(1, runRanksOf(module)));
}

SmallVector<FlatGroup> qlora::train::flatGroups(Operation *module) {
  std::map<UpdateKind, int64_t> elements;
  for (auto parameter : module->getRegion(0).getOps<ParameterOp>())
    if (parameter.getTrainable())
      elements[updateKindOf(parameter)] += flatElements(parameter);
  SmallVector<FlatGroup> groups;
  int64_t row = 0;
  for (const auto &[kind, count] : elements) {
    const int64_t rows = llvm::alignTo(llvm::divideCeil(count, kFlatColumns),
                                       flatPiecesOf(module));
    groups.push_back({kind, row, rows});
    row += rows;
  }
  return groups;
}

int64_t qlora::train::flatElements(Operation *module) {
  SmallVector<FlatGroup> groups = flatGroups(module);
  const int64_t rows =
      groups.empty() ? 0 : groups.back().row + groups.back().rows;
  return (1 + rows) * kFlatColumns;
}

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

LogicalResult StepOp::verify() {
  if (getBody().getNumArguments() != getInputs().size())
    return emitOpError("(C1) expects one argument per input, but got ")
           << getBody().getNumArguments() << " and " << getInputs().size();
  if (!hasRows(getKind()) && !getInputs().empty())
    return emitOpError("(C2) expects an ")
           << stringifyStepKind(getKind()) << " without arguments";
  DenseSet<StringRef> seen;
  for (StringRef input : getInputs().getAsValueRange<StringAttr>()) {
    if (!llvm::is_contained(kStepInputs, input))
      return emitOpError("(C3) does not know the input '")
             << input << "'; there are "
             << llvm::join(ArrayRef(kStepInputs), ", ");
    if (!seen.insert(input).second)
      return emitOpError("(C3) has two arguments for the input '")
             << input << "'";
  }
  return success();
}

LogicalResult StepOp::verifyRegions() {
  Operation *backward = nullptr; // the first op of the backward
  for (Operation &op : getBody().front()) {
    if (isBackward(&op)) {
      backward = backward ? backward : &op;
      continue;
    }
    if (!backward || getChunks() > 1)
      continue;
    InFlightDiagnostic error =
        op.emitOpError("(C4) is a forward op after the start of the backward");
    error.attachNote(backward->getLoc()) << "here";
    return error;
  }
  if (backward && getKind() != StepKind::Accumulate)
    return backward->emitOpError("(C5) expects a train.step accumulate around "
                                 "a backward op");
  return success();
}

//===----------------------------------------------------------------------===//
// Memory outside of the step
//===----------------------------------------------------------------------===//

static MemorySpace spaceOf(FlatKind kind) {
  static constexpr MemorySpace kSpaces[] = {
      MemorySpace::Trainable, MemorySpace::Gradient, MemorySpace::State,
      MemorySpace::Rounded, MemorySpace::Residual};
  return kSpaces[static_cast<int>(kind)];
}

static OutsideMemory rowsOf(FlatKind kind, FlatSymbolRefAttr parameter,
                            int64_t row, Value value, int64_t pieces = 1,
                            bool isOfRun = false) {
  RankedTensorType type = tensorOf(value);
  const int64_t rows = kind == FlatKind::State ? tensorBytes(type)
                       : parameter             ? matrixRows(type)
                                   : type.getNumElements() / kFlatColumns;
  return {spaceOf(kind), parameter, row, rows, pieces, {},
          isOfRun ? Ranks::DP : Ranks::FSDP};
}

std::optional<OutsideMemory> FlatOp::getOutsideMemory() {
  if (getStatistics())
    return OutsideMemory{spaceOf(getFlat()), {}};
  return rowsOf(getFlat(), getParameterAttr(), getRow(), getResult(),
                getPieces(), getOfRun());
}
SmallVector<MemoryStore> StoreFlatOp::getMemoryStores() {
  return {{rowsOf(getFlat(), getParameterAttr(), getRow(), getValue(),
                  getPieces(), getOfRun()),
           &getValueMutable()}};
}
std::optional<OutsideMemory> GatherFlatOp::getOutsideMemory() {
  return rowsOf(getFlat(), {}, getRow(), getResult());
}
SmallVector<MemoryStore> GatherFlatOp::getMemoryStores() {
  return {{rowsOf(getFlat(), {}, getRow(), getResult())}};
}
SmallVector<MemoryStore> ClearOp::getMemoryStores() {
  return {{{spaceOf(getFlat()), {}}}};
}
SmallVector<MemoryStore> AccumulateOp::getMemoryStores() {
  return {{{MemorySpace::Gradient, getParameterAttr(), 0, 0, 1, getPartAttr()},
           &getGradientMutable(),
           /*adds=*/true}};
}
SmallVector<MemoryStore> InitializeOp::getMemoryStores() {
  return {{{MemorySpace::Trainable, getParameterAttr()}, &getValueMutable()}};
}
SmallVector<MemoryStore> ResultOp::getMemoryStores() {
  return {{{getAccumulate() ? MemorySpace::Gradient : MemorySpace::Result,
            getNameAttr()},
           &getValueMutable(),
           getAccumulate()}};
}
/// Adds the other ranks' gradients to the gradient arena.
SmallVector<MemoryStore> AllReduceOp::getMemoryStores() {
  return {{{MemorySpace::Gradient, {}}, nullptr, /*adds=*/true}};
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

/// Verifies that `value`, called `noun` in messages, fits the trainable
/// parameter `name` or the `part` of it.
static LogicalResult verifyOfTrained(Operation *op, FlatSymbolRefAttr name,
                                     Value value, StringRef noun,
                                     SymbolTableCollection &symbols,
                                     PartAttr part = {}) {
  auto parameter = symbols.lookupNearestSymbolFrom<ParameterOp>(op, name);
  if (!parameter)
    return op->emitOpError("refers to ")
           << name << ", which is not a model.parameter";
  RankedTensorType type = tensorOf(value), of = parameter.getTensorType();
  if (parameter.getPiece())
    of = of.clone({flatElements(parameter)});
  const bool isPart = !part || part.isOf(of);
  if (part && isPart)
    of = part.of(of);
  if (!isPart || !type.getElementType().isF32() || !type.hasStaticShape() ||
      type.getNumElements() != of.getNumElements())
    return op->emitOpError("(C1) expects an f32 ")
           << noun << " for " << of << ", but got " << type;
  if (!parameter.getTrainable())
    return op->emitOpError("(C2) expects a trainable parameter, but ")
           << name << " is not";
  return success();
}

LogicalResult AccumulateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyOfTrained(*this, getParameterAttr(), getGradient(), "gradient",
                         symbols, getPartAttr());
}

LogicalResult InitializeOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyOfTrained(*this, getParameterAttr(), getValue(), "value",
                         symbols);
}

LogicalResult
ScatterGradientOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto parameter =
      symbols.lookupNearestSymbolFrom<ParameterOp>(*this, getParameterAttr());
  auto type = RankedTensorType::get(
      {parameter && parameter.getPiece() ? flatElements(parameter) : 0},
      Float32Type::get(getContext()));
  if (!parameter || !parameter.getTrainable() || !parameter.getPiece() ||
      getResult().getType() != type ||
      !tensorOf(getGradient()).getElementType().isF32() ||
      tensorOf(getGradient()).getNumElements() !=
          parameter.getTensorType().getNumElements())
    return emitOpError(
               "(C1) expects the f32 gradient of a trainable parameter, and "
               "its piece, but got ")
           << getGradient().getType() << " and " << getResult().getType()
           << " for " << getParameterAttr();
  return success();
}

LogicalResult GatherFlatOp::verify() {
  if (const int64_t rows = matrixRows(tensorOf(getResult()));
      getPieces() < 1 || rows % getPieces() != 0)
    return emitOpError("(C1) expects a multiple of ")
           << getPieces() << " rows, but got " << rows;
  return success();
}

LogicalResult CopyToHostOp::verify() {
  const int64_t behind = getBehind();
  if (behind < 0)
    return emitOpError("(C1) expects behind of at least 0, but got ") << behind;
  return success();
}

LogicalResult CopyFromHostOp::verify() {
  if (!getX().getDefiningOp<CopyToHostOp>())
    return emitOpError("(C1) expects the result of train.copy_to_host");
  return success();
}

Value CopyFromHostOp::getOriginal() {
  return getX().getDefiningOp<CopyToHostOp>().getX();
}

LogicalResult ResultOp::verify() {
  StringRef name = getName();
  const bool isStatistic = llvm::is_contained(kStatistics, name);
  if (!isStatistic && !llvm::is_contained(kOtherResults, name))
    return emitOpError("(C1) does not know the result '") << name << "'";
  if (getAccumulate() && !isStatistic)
    return emitOpError("(C2) expects one of ")
           << llvm::join(ArrayRef(kStatistics), ", ")
           << " to accumulate, but got '" << name << "'";
  return success();
}

//===----------------------------------------------------------------------===//
// Library ops
//===----------------------------------------------------------------------===//

LogicalResult DecodeOp::verify() {
  if (tensorOf(getWeight()).getShape() != tensorOf(getResult()).getShape())
    return emitOpError("(C1) expects one shape, but got ")
           << getWeight().getType() << " and " << getResult().getType();
  if (isa<QuantizedType>(tensorOf(getResult()).getElementType()))
    return emitOpError("(C2) expects a result that is not quantized");
  return success();
}

template <typename Op> static LogicalResult verifyCoding(Op op) {
  RankedTensorType x = tensorOf(op.getX()), codes = tensorOf(op.getCodes()),
                   scales = tensorOf(op.getScales());
  if (codes.getShape() != x.getShape() || !codes.getElementType().isInteger(8))
    return op.emitOpError("(C1) expects codes in i8 of the shape of ")
           << x << ", but got " << codes;
  if (!scales.getElementType().isF32() ||
      scales.getShape().drop_back() != x.getShape().drop_back() ||
      scales.getRank() != x.getRank() || matrixColumns(scales) != 1)
    return op.emitOpError("(C2) expects one f32 scale for each row of ")
           << x << ", but got " << scales;
  return success();
}
LogicalResult EncodeRowsOp::verify() { return verifyCoding(*this); }
LogicalResult DecodeRowsOp::verify() { return verifyCoding(*this); }
LogicalResult LeftByCodesOp::verify() { return verifyCoding(*this); }

LogicalResult LinearWeightGradOp::verify() {
  RankedTensorType type = tensorOf(getResult());
  if (type.getRank() != 2 || !type.getElementType().isF32() ||
      type.getDimSize(0) != columnsOf(getDy()) ||
      type.getDimSize(1) != columnsOf(getX()))
    return emitOpError("(C1) expects an f32 result of ")
           << columnsOf(getDy()) << "x" << columnsOf(getX()) << ", but got "
           << type;
  return success();
}

bool HeadLossGradOp::canShardTable() {
  return getReplaced().empty() && !getDtrained() &&
         (getLabelSmoothing().isZero() || getCap().isZero());
}
SmallVector<Value> HeadLossGradOp::shardTable(OpBuilder &b, Value piece,
                                              int64_t shards, Ranks ranks) {
  SmallVector<Value> found = divideHead(
      b,
      {*this, getHidden(), getTargets(), tensorOf(getWeight()).getDimSize(0),
       getCap(), getLabelSmoothing(), getOwnProbability(),
       /*hasGradient=*/true},
      piece, shards, ranks);
  // divideHead returns f32, so that the sum over ranks is rounded only once.
  if (Type type = getDhidden().getType(); found.back().getType() != type)
    found.back() = RoundOp::create(b, getLoc(), type, found.back());
  return found;
}

/// All results are written in place over their operands.
SmallVector<MemoryTie> UpdateOp::getMemoryTies() {
  SmallVector<MemoryTie> ties;
  for (OpResult result : (*this)->getResults())
    ties.push_back({&(*this)->getOpOperand(result.getResultNumber()), result,
                    /*continues=*/true});
  return ties;
}
