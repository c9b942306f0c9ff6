// SPDX-License-Identifier: MIT

// Verifiers of parameters and of their uses (labels as in ModelOps.td).

#include "dialects/Model/Model.h"

#include "runtime/ABI/module.h"
#include "runtime/Kernels/Math/Stored.h"

#include <numeric>

using namespace mlir;
using namespace qlora::model;

/// Maximum dimensions of a parameter in train.so (QLORA_MAX_RANK).
static constexpr int64_t kMaxParameterRank = 4;

static LogicalResult verifyParts(ParameterOp op) {
  if (op.getPartNames().has_value() != op.getPartRows().has_value())
    return op.emitOpError("(C3) expects part_names and part_rows together");
  if (!op.getPartNames())
    return success();
  RankedTensorType type = op.getTensorType();
  // part_rows counts rows of the unsharded tensor; a tp shard has fewer.
  if (std::optional<SliceAttr> slice = op.getSlice();
      slice && slice->getDimension() == 0)
    type = withLength(type, 0, slice->getLength());
  ArrayRef<int64_t> parts = *op.getPartRows();
  if (llvm::any_of(parts, [&](int64_t rows) {
        return rows < 1 || rows > type.getDimSize(0);
      }))
    return op.emitOpError("(C3) expects each part to have from 1 to ")
           << type.getDimSize(0) << " rows";
  int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t(0));
  if (op.getPartNames()->size() != parts.size() || rows != type.getDimSize(0))
    return op.emitOpError("(C3) expects parts that add up to ")
           << type.getDimSize(0) << " rows, but got " << rows << " in "
           << parts.size() << " for " << op.getPartNames()->size() << " names";
  bool isQuantized =
      op.getQuantized() || isa<QuantizedType>(type.getElementType());
  bool isFromFiles = op.getQuantized() || op.getStoredQuantized();
  if (isQuantized &&
      (!isFromFiles || op.getTransposed() || !llvm::all_equal(parts)))
    return op.emitOpError("(C3) expects quantized parts to be equal and "
                          "quantized when loaded");
  return success();
}

static LogicalResult verifyStorage(ParameterOp op) {
  if (op.getQuantized() && !isa<QuantizedType>(*op.getQuantized()))
    return op.emitOpError(
               "(C5) expects a type of few bits as quantized, but got ")
           << *op.getQuantized();
  bool isQuantized = op.getQuantized() ||
                     isa<QuantizedType>(op.getTensorType().getElementType());
  if (op.getStoredQuantized() && !isQuantized)
    return op.emitOpError("(C5) expects a type of few bits or quantized with "
                          "stored_quantized");
  if (std::optional<Type> type = op.getFileType();
      type && !type->isF32() && !type->isBF16() && !type->isF16() &&
      !(op.getStoredQuantized() && isa<QuantizedType>(*type)))
    return op.emitOpError("(C5) expects f32, bf16 or f16 as file_type, but "
                          "got ")
           << *type;
  if (op.getTransposed() && (!op.getQuantized() || op.getStoredQuantized() ||
                             op.getTensorType().getRank() != 2))
    return op.emitOpError("(C6) expects transposed with quantized and two "
                          "dimensions, and without stored_quantized");
  return success();
}

static LogicalResult verifySlice(ParameterOp op) {
  if (!op.getSlice())
    return success();
  const SliceAttr slice = *op.getSlice();
  const int64_t ranks = slice.getRanks(), dimension = slice.getDimension();
  const bool areEqual =
      ranks > 1 && llvm::all_of(slice.getSegments(), [&](int64_t segment) {
        return segment > 0 && segment % ranks == 0;
      });
  if (op.getTrainable() || !areEqual || dimension < 0 ||
      dimension >= op.getTensorType().getRank() ||
      slice.getLength() != ranks * op.getTensorType().getDimSize(dimension))
    return op.emitOpError(
               "(C9) expects equal slices of the segments of a frozen "
               "parameter, but got ")
           << slice << " for " << op.getType();
  return success();
}

LogicalResult ParameterOp::verify() {
  RankedTensorType type = getTensorType();
  if (!type.hasStaticShape() || type.getRank() > kMaxParameterRank)
    return emitOpError("(C1) expects a static shape of at most ")
           << kMaxParameterRank << " dimensions, but got " << type;
  if (getFile().has_value() == getInit().has_value())
    return emitOpError("(C2) expects either a file or an init");
  if (getInit() && *getInit() != "zero" && *getInit() != "kaiming" &&
      *getInit() != "gaussian" && *getInit() != "normal" &&
      *getInit() != "factor" && *getInit() != "computed" &&
      *getInit() != "rows")
    return emitOpError("(C2) expects zero, kaiming, gaussian, normal, factor, "
                       "computed or rows as init, but got '")
           << *getInit() << "'";
  if (getTrainable() && !type.getElementType().isF32())
    return emitOpError("(C4) expects a trainable parameter in f32, but got ")
           << type.getElementType();
  if (!getTrainable() &&
      (getUndecayed() || getRateScale().convertToDouble() != 1 ||
       getOptimizer() != "adamw"))
    return emitOpError("(C7) expects undecayed, rate_scale and optimizer only "
                       "with trainable");
  if (getElsewhere() && !getTrainable())
    return emitOpError("(C10) expects a trainable parameter with elsewhere");
  if (getOnHost() && getTrainable())
    return emitOpError("(C11) expects a frozen parameter with on_host");
  if (getPiece() &&
      (*getPiece() <= 0 ||
       (getTrainable() && *getPiece() % QLORA_PIECE_ALIGNMENT != 0)))
    return emitOpError("(C8) expects a positive piece, and if trainable a "
                       "multiple of ")
           << QLORA_PIECE_ALIGNMENT << ", but got " << *getPiece();
  if (failed(verifyParts(*this)) || failed(verifySlice(*this)))
    return failure();
  return verifyStorage(*this);
}

/// Returns the type of the values that `op` uses, before rounding to bf16.
static RankedTensorType typeUsed(WeightOp op, ParameterOp parameter) {
  RankedTensorType type = parameter.getTensorType();
  return op.getPart() ? op.getPart().of(type) : type;
}

static LogicalResult verifyRounded(WeightOp op, ParameterOp parameter) {
  RankedTensorType type = typeUsed(op, parameter);
  Type narrow = type.clone(BFloat16Type::get(op.getContext()));
  if (parameter.getTrainable() && type.getElementType().isF32() &&
      op.getResult().getType() == narrow)
    return success();
  return op.emitOpError("(C2) expects bf16 values of a trainable f32 "
                        "parameter, but ")
         << op.getParameterAttr() << " is " << type << " and the result "
         << op.getResult().getType();
}

LogicalResult WeightOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto parameter =
      symbols.lookupNearestSymbolFrom<ParameterOp>(*this, getParameterAttr());
  if (!parameter)
    return emitOpError("refers to ") << getParameterAttr()
                                     << ", which is not a model.parameter";
  RankedTensorType whole = parameter.getTensorType();
  if (getPart() && !(whole.getElementType().isF32() && getPart().isOf(whole)))
    return emitOpError("(C3) expects a part of an f32 parameter, but got ")
           << getPart() << " of " << parameter.getType();
  if (getRounded())
    return verifyRounded(*this, parameter);
  if (typeUsed(*this, parameter) == getResult().getType())
    return success();
  InFlightDiagnostic error =
      emitOpError("(C1) has type ") << getResult().getType()
                                    << ", but the parameter is "
                                    << parameter.getType();
  error.attachNote(parameter.getLoc()) << "the parameter";
  return error;
}
