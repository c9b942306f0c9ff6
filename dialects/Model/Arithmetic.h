// SPDX-License-Identifier: MIT

// Shorthand for arithmetic in row regions, on rows (tensor<Cxf32>) and on
// numbers (f32). Used for row ops, their gradients and optimizer updates.
//
//   Arithmetic a(builder, loc);
//   Value y = a.mul(x, a.splat(a.rsqrt(a.mean(a.mul(x, x))), x.getType()));

#ifndef QLORA_DIALECTS_MODEL_ARITHMETIC_H
#define QLORA_DIALECTS_MODEL_ARITHMETIC_H

#include "dialects/Model/Model.h"

namespace qlora::model {

/// Returns the attribute for an operand of `op` that rows read as `kind`.
inline MapAttr mapOf(mlir::Operation *op, MapKind kind, int64_t group = 1) {
  return MapAttr::get(op->getContext(), kind, group);
}

class Arithmetic {
public:
  using Value = mlir::Value;
  using Type = mlir::Type;

  Arithmetic(mlir::OpBuilder &builder, mlir::Location loc)
      : b(builder), loc(loc) {}

  Value add(Value x, Value y) const {
    return mlir::arith::AddFOp::create(b, loc, x, y);
  }
  Value sub(Value x, Value y) const {
    return mlir::arith::SubFOp::create(b, loc, x, y);
  }
  Value mul(Value x, Value y) const {
    return mlir::arith::MulFOp::create(b, loc, x, y);
  }
  Value div(Value x, Value y) const {
    return mlir::arith::DivFOp::create(b, loc, x, y);
  }
  Value neg(Value x) const { return mlir::arith::NegFOp::create(b, loc, x); }
  Value sqrt(Value x) const { return mlir::math::SqrtOp::create(b, loc, x); }
  Value rsqrt(Value x) const { return mlir::math::RsqrtOp::create(b, loc, x); }
  Value erf(Value x) const { return mlir::math::ErfOp::create(b, loc, x); }
  Value sigmoid(Value row) const {
    return RowSigmoidOp::create(b, loc, row.getType(), row);
  }
  Value compare(mlir::arith::CmpFPredicate predicate, Value x, Value y) const {
    return mlir::arith::CmpFOp::create(b, loc, predicate, x, y);
  }
  Value select(Value condition, Value then, Value otherwise) const {
    return mlir::arith::SelectOp::create(b, loc, condition, then, otherwise);
  }

  Value sum(Value row) const {
    return RowSumOp::create(b, loc, b.getF32Type(), row);
  }
  Value mean(Value row) const {
    auto type = mlir::cast<mlir::RankedTensorType>(row.getType());
    return mul(sum(row), number(1.0 / type.getDimSize(0)));
  }
  Value splat(Value number, Type row) const {
    return RowSplatOp::create(b, loc, row, number);
  }
  Value number(double value) const {
    return mlir::arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value));
  }
  /// Returns `value` as f32, or as a row filled with it if `type` is a row.
  Value constant(double value, Type type) const {
    Value same = number(value);
    return type.isF32() ? same : splat(same, type);
  }
  Value times(Value x, double factor) const {
    return mul(x, constant(factor, x.getType()));
  }

protected:
  mlir::OpBuilder &b;
  mlir::Location loc;
};

} // namespace qlora::model

#endif // QLORA_DIALECTS_MODEL_ARITHMETIC_H
