// SPDX-License-Identifier: MIT

// Decisions of passes and their reasons, as attributes: dictionaries and lists
// of numbers and strings, keyed by pass name. A pass over a train.step writes
// to the step, a module pass to the module. lower-to-program copies a step's
// decisions to its entry. Report/ collects them and prints them as JSON.
//
//   module attributes {train.decisions = {"plan-dequant" = [...]}}
//   train.step accumulate ... attributes
//       {train.decisions = {rematerialize = {budget = 0, ...}}}

#ifndef QLORA_COMPILER_PASSMETADATA_H
#define QLORA_COMPILER_PASSMETADATA_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"

#include <concepts>

namespace qlora {

inline constexpr llvm::StringLiteral kDecisionsAttr = "train.decisions";

/// Key of the layouts that --parallel auto compared before any pass ran.
inline constexpr llvm::StringLiteral kLayoutDecision = "layouts";

/// Builds a dictionary attribute from keys and values.
class MetadataBuilder {
public:
  explicit MetadataBuilder(mlir::MLIRContext *context) : builder(context) {}

  MetadataBuilder &add(llvm::StringRef key, mlir::Attribute value) {
    facts.set(key, value);
    return *this;
  }
  MetadataBuilder &add(llvm::StringRef key, llvm::StringRef text) {
    return add(key, builder.getStringAttr(text));
  }
  template <std::same_as<bool> T>
  MetadataBuilder &add(llvm::StringRef key, T flag) {
    return add(key, builder.getBoolAttr(flag));
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) MetadataBuilder &add(llvm::StringRef key,
                                                        T number) {
    return add(key, builder.getI64IntegerAttr(static_cast<int64_t>(number)));
  }
  MetadataBuilder &add(llvm::StringRef key, double number) {
    return add(key, builder.getF64FloatAttr(number));
  }
  MetadataBuilder &add(llvm::StringRef key,
                       llvm::ArrayRef<mlir::Attribute> list) {
    return add(key, builder.getArrayAttr(list));
  }
  mlir::DictionaryAttr get() const {
    return facts.getDictionary(builder.getContext());
  }

private:
  mlir::Builder builder;
  mlir::NamedAttrList facts;
};

/// Records the decision of `pass` on `op`, which is a module, step or entry.
inline void recordDecision(mlir::Operation *op, llvm::StringRef pass,
                           mlir::Attribute decision) {
  mlir::NamedAttrList all(
      op->getAttrOfType<mlir::DictionaryAttr>(kDecisionsAttr));
  all.set(pass, decision);
  op->setAttr(kDecisionsAttr, all.getDictionary(op->getContext()));
}

/// Returns the decision of `pass` for `op`, or null if there is none.
template <typename Attr>
Attr decisionOf(mlir::Operation *op, llvm::StringRef pass) {
  auto all = op->getAttrOfType<mlir::DictionaryAttr>(kDecisionsAttr);
  return all ? all.getAs<Attr>(pass) : Attr();
}

} // namespace qlora

#endif // QLORA_COMPILER_PASSMETADATA_H
