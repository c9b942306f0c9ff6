// SPDX-License-Identifier: MIT

// Which values of forward functions ranks can have a part of the columns of, for
// shard-products: sets of values that are divided together, or not at all.
//
//   %q = model.linear %x, %wq       // a set begins: each rank makes columns
//   %r = model.rope %q, ...         // q, k, v and what is made of them
//   %a = model.attention %r, ...
//   %y = model.linear %a, %wo       // it ends: each rank multiplies its columns
//
// Ops are asked by interfaces: a WeightedProduct begins and ends sets, row ops
// without reductions, ColumnwiseOps and views go on within one. Everything else
// wants its operands whole, and makes whole results. Weights that are used
// several times (by a reference, by variants of other lengths) are divided alike.

#ifndef QLORA_COMPILER_GRAPH_COLUMNSETS_H
#define QLORA_COMPILER_GRAPH_COLUMNSETS_H

#include "compiler/Graph/RankParts.h"

#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/MapVector.h"

#include <string>
#include <vector>

namespace qlora {

class ColumnSets {
public:
  /// Divides every set that `ranks` can, those with the largest weights first.
  ColumnSets(mlir::ModuleOp module, int64_t ranks);

  bool isDivided(mlir::Value value) const;
  const DividedWeights &weights() const { return dividedWeights; }
  /// Why weights stay whole: those first that other sizes or formats could
  /// divide, the largest first, each reason once.
  llvm::ArrayRef<std::string> reasons() const { return kept; }
  /// Says which heads, or which width of a product, `ranks` does not divide;
  /// empty where it divides all that ranks could have parts of.
  llvm::StringRef unequal() const { return unequalSet; }

private:
  struct Set {
    unsigned leader = 0; ///< the number of one of its values
    std::vector<unsigned> products, vectors, ops; ///< their numbers
    std::string why; ///< it stays whole; empty: nothing speaks against it
    int64_t elements = 0; ///< of weights
  };

  unsigned numberOf(mlir::Value value);
  void join(mlir::Value one, mlir::Value other);
  void keepWhole(mlir::Value value, const std::string &why);
  void look(mlir::Operation *op);
  void lookAtRows(model::RowOp op);
  void joinUsesOfWeights();
  std::vector<Set> gather();

  void tryToDivide(Set &set);
  bool findSegments(Set &set);
  bool agree(mlir::Operation *op, bool &changes);
  bool findWeights(Set &set, DividedWeights &found);
  Segments segmentsOf(mlir::Value value) const;

  mlir::ModuleOp module;
  const int64_t ranks;
  mlir::SymbolTable symbols;

  std::vector<mlir::Value> values;
  llvm::DenseMap<mlir::Value, unsigned> numbers;
  llvm::IntEqClasses sets; ///< of numbers
  llvm::DenseMap<unsigned, std::string> whole;
  std::vector<model::WeightedProduct> products;
  std::vector<mlir::Operation *> ops; ///< that join values
  /// Weights that ops read by column, beside their rows.
  std::vector<model::WeightOp> vectors;
  /// Columns that each row of an op reads together, where those are not all.
  llvm::DenseMap<mlir::Operation *, int64_t> runs;

  llvm::DenseMap<mlir::Value, Segments> segments;
  llvm::DenseSet<unsigned> divided; ///< leaders of sets
  DividedWeights dividedWeights;
  llvm::SmallVector<std::string> kept, fixed;
  std::string unequalSet;
};

} // namespace qlora

#endif // QLORA_COMPILER_GRAPH_COLUMNSETS_H
