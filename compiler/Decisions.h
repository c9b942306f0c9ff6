// SPDX-License-Identifier: MIT

// What passes decided and why, as attributes: dictionaries and lists of numbers
// and texts, by the name of the pass. A pass over a train.step writes to the
// step, one over a module to the module; lower-to-program takes those of a step
// on to its entry. Report/ gathers them, and prints them as JSON.
//
//   module attributes {train.decisions = {"plan-dequant" = [...]}}
//   train.step accumulate ... attributes
//       {train.decisions = {rematerialize = {budget = 0, ...}}}

#ifndef QLORA_COMPILER_DECISIONS_H
#define QLORA_COMPILER_DECISIONS_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"

#include <concepts>

namespace qlora {

inline constexpr llvm::StringLiteral kDecisionsAttr = "train.decisions";

/// What is decided before any pass runs: the layouts of --parallel auto.
inline constexpr llvm::StringLiteral kLayoutDecision = "layouts";

/// A dictionary that is being written.
class Facts {
public:
  explicit Facts(mlir::MLIRContext *context) : builder(context) {}

  Facts &add(llvm::StringRef key, mlir::Attribute value) {
    facts.set(key, value);
    return *this;
  }
  Facts &add(llvm::StringRef key, llvm::StringRef text) {
    return add(key, builder.getStringAttr(text));
  }
  template <std::same_as<bool> T> Facts &add(llvm::StringRef key, T flag) {
    return add(key, builder.getBoolAttr(flag));
  }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Facts &add(llvm::StringRef key, T number) {
    return add(key, builder.getI64IntegerAttr(static_cast<int64_t>(number)));
  }
  Facts &add(llvm::StringRef key, double number) {
    return add(key, builder.getF64FloatAttr(number));
  }
  Facts &add(llvm::StringRef key, llvm::ArrayRef<mlir::Attribute> list) {
    return add(key, builder.getArrayAttr(list));
  }
  mlir::DictionaryAttr get() const {
    return facts.getDictionary(builder.getContext());
  }

private:
  mlir::Builder builder;
  mlir::NamedAttrList facts;
};

/// Adds what `pass` decided to what `op` (a module, a step, an entry) has.
inline void recordDecision(mlir::Operation *op, llvm::StringRef pass,
                           mlir::Attribute decision) {
  mlir::NamedAttrList all(
      op->getAttrOfType<mlir::DictionaryAttr>(kDecisionsAttr));
  all.set(pass, decision);
  op->setAttr(kDecisionsAttr, all.getDictionary(op->getContext()));
}

/// What `pass` decided for `op`; null if it did not.
template <typename Attr>
Attr decisionOf(mlir::Operation *op, llvm::StringRef pass) {
  auto all = op->getAttrOfType<mlir::DictionaryAttr>(kDecisionsAttr);
  return all ? all.getAs<Attr>(pass) : Attr();
}

} // namespace qlora

#endif // QLORA_COMPILER_DECISIONS_H
