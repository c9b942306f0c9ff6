// SPDX-License-Identifier: MIT

// Prints arithmetic ops as C++, one case per op.

#include "compiler/Codegen/RowExpressions.h"

#include "dialects/Model/Model.h"
#include "llvm/ADT/TypeSwitch.h"

#include <fmt/format.h>

#include <cmath>

using namespace mlir;
using namespace qlora;

std::string qlora::floatLiteral(float value) {
  if (std::isnan(value))
    return "__builtin_nanf(\"\")";
  if (std::isinf(value))
    return value > 0 ? "__builtin_inff()" : "-__builtin_inff()";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";
  return text + "f";
}

static std::optional<std::string> comparison(arith::CmpFPredicate predicate,
                                             StringRef a, StringRef b) {
  using P = arith::CmpFPredicate;
  auto text = [&](const char *format) {
    return fmt::format(fmt::runtime(format), a.str(), b.str());
  };
  switch (predicate) {
  case P::OEQ: return text("{} == {}");
  case P::OGT: return text("{} > {}");
  case P::OGE: return text("{} >= {}");
  case P::OLT: return text("{} < {}");
  case P::OLE: return text("{} <= {}");
  case P::UNE: return text("{} != {}");
  case P::UGT: return text("!({} <= {})");
  case P::UGE: return text("!({} < {})");
  case P::ULT: return text("!({} >= {})");
  case P::ULE: return text("!({} > {})");
  default: return std::nullopt;
  }
}

bool qlora::repeatsOperands(Operation *op) {
  return isa<arith::MaximumFOp, arith::MinimumFOp>(op);
}

/// True for a name, a call, an element or a parenthesized expression.
static bool isOperand(StringRef text) {
  int depth = 0;
  return llvm::all_of(text, [&](char c) {
    depth += (c == '(' || c == '[') - (c == ')' || c == ']');
    return depth > 0 || llvm::isAlnum(c) || StringRef("_)]").contains(c);
  });
}

/// Returns `b` for an operand `(-b)`, and nullopt for any other operand.
static std::optional<std::string> negated(StringRef operand) {
  if (operand.consume_front("(-") && operand.consume_back(")") &&
      isOperand(operand))
    return operand.str();
  return std::nullopt;
}

static Expression negation(StringRef operand) {
  if (std::optional<std::string> inner = negated(operand))
    return {*inner, true};
  return {"-" + operand.str()};
}

/// Returns a + b. If b is (-c), prints a - c, whose result has the same bits.
static Expression sum(StringRef a, StringRef b) {
  if (std::optional<std::string> inner = negated(b))
    return {fmt::format("{} - {}", a.str(), *inner)};
  return {fmt::format("{} + {}", a.str(), b.str())};
}

FailureOr<Expression>
qlora::elementwiseExpression(Operation *op, ArrayRef<std::string> x) {
  auto binary = [&](const char *symbol) {
    return Expression{fmt::format("{} {} {}", x[0], symbol, x[1])};
  };
  auto call = [&](const char *function) {
    return Expression{fmt::format("{}({})", function, x[0]), true};
  };
  // As in arith, NaN if an operand is NaN. Only for NaN is x != x true.
  auto extremum = [&](const char *symbol) {
    return Expression{fmt::format("{0} {2} {1} || {0} != {0} ? {0} : {1}",
                                  x[0], x[1], symbol)};
  };
  return llvm::TypeSwitch<Operation *, FailureOr<Expression>>(op)
      .Case<arith::AddFOp>([&](auto) { return sum(x[0], x[1]); })
      .Case<arith::SubFOp>([&](auto) { return binary("-"); })
      .Case<arith::MulFOp>([&](auto) { return binary("*"); })
      .Case<arith::DivFOp>([&](auto) { return binary("/"); })
      .Case<arith::NegFOp>([&](auto) { return negation(x[0]); })
      .Case<arith::MaximumFOp>([&](auto) { return extremum(">"); })
      .Case<arith::MinimumFOp>([&](auto) { return extremum("<"); })
      .Case<math::AbsFOp>([&](auto) { return call("qlora_abs"); })
      .Case<math::RoundEvenOp>([&](auto) { return call("qlora_round_even"); })
      .Case<math::ExpOp>([&](auto) { return call("qlora_exp"); })
      .Case<math::LogOp>([&](auto) { return call("qlora_log"); })
      .Case<math::TanhOp>([&](auto) { return call("qlora_tanh"); })
      .Case<math::ErfOp>([&](auto) { return call("qlora_erf"); })
      .Case<math::SqrtOp>([&](auto) { return call("qlora_sqrt"); })
      .Case<math::RsqrtOp>([&](auto) { return call("qlora_rsqrt"); })
      .Case<math::SinOp>([&](auto) { return call("qlora_sin"); })
      .Case<math::CosOp>([&](auto) { return call("qlora_cos"); })
      .Case<model::RowSigmoidOp>([&](auto) { return call("qlora_sigmoid"); })
      .Case<model::RowRoundOp>([&](model::RowRoundOp round) {
        return call(round.getStored().isBF16() ? "qlora_round_bf16"
                                               : "qlora_round_f16");
      })
      .Case<arith::SelectOp>([&](auto) {
        return Expression{fmt::format("{} ? {} : {}", x[0], x[1], x[2])};
      })
      .Case<arith::CmpFOp>([&](arith::CmpFOp compare) {
        std::optional<std::string> text =
            comparison(compare.getPredicate(), x[0], x[1]);
        if (text)
          return FailureOr<Expression>(Expression{*text});
        return FailureOr<Expression>(
            compare.emitOpError("cannot be printed in a kernel: predicate ")
            << arith::stringifyCmpFPredicate(compare.getPredicate()));
      })
      .Default([](Operation *other) {
        return FailureOr<Expression>(
            other->emitOpError("cannot be printed in a kernel"));
      });
}
