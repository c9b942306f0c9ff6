// SPDX-License-Identifier: MIT

// Finds values of forward functions whose columns tensor-parallel ranks can
// shard, for shard-matmuls. A set of values is sharded together or not at all.
//
//   %q = model.linear %x, %wq       // a set begins: ranks compute columns
//   %r = model.rope %q, ...         // q, k, v and their results
//   %a = model.attention %r, ...
//   %y = model.linear %a, %wo       // it ends: each rank uses its columns
//
// Interfaces classify the ops. A WeightedMatmul begins and ends sets. Row ops
// without reductions, ColumnwiseOps and views continue a set. All other ops
// have unsharded operands and results. A weight with several uses (in
// the reference model, in variants for other lengths) is sharded alike for all.

#ifndef QLORA_COMPILER_PARTITION_SHARDABLECOLUMNGROUPS_H
#define QLORA_COMPILER_PARTITION_SHARDABLECOLUMNGROUPS_H

#include "compiler/Partition/WeightShards.h"

#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/MapVector.h"

#include <string>
#include <vector>

namespace qlora {

class ShardableColumnGroups {
public:
  /// Shards every set that `ranks` can shard, the largest weights first.
  ShardableColumnGroups(mlir::ModuleOp module, int64_t ranks);

  bool isSharded(mlir::Value value) const;
  const ShardedWeights &weights() const { return dividedWeights; }
  /// Returns the distinct reasons why weights stay whole. Reasons that depend
  /// on sizes or formats come first, then all others, each by weight size.
  llvm::ArrayRef<std::string> reasons() const { return kept; }
  /// Describes heads or a matmul width that `ranks` does not divide; empty if
  /// there are none.
  llvm::StringRef unequal() const { return unequalSet; }

private:
  /// An op that continues a set.
  struct Link {
    mlir::Operation *op;
    int64_t unit = 1; ///< columns that cannot be split, such as a head
    bool isOneRun = false; ///< requires consecutive columns
  };
  struct Set {
    unsigned leader = 0; ///< index of one of its values
    std::vector<model::WeightedMatmul> products;
    /// Weights that ops read by column, in addition to row operands.
    std::vector<model::WeightOp> vectors;
    std::vector<Link> links;
    std::string why; ///< why it stays whole; empty: no reason
    int64_t elements = 0; ///< elements of its weights
  };

  unsigned numberOf(mlir::Value value);
  void join(mlir::Value one, mlir::Value other);
  void align(mlir::Value one, mlir::Value other);
  void keepWhole(mlir::Value value, const std::string &why);
  void keepAllWhole(mlir::Operation *op);
  void look(mlir::Operation *op);
  void lookAtRows(model::RowOp op);
  void joinUsesOfWeights();
  std::vector<Set> gather();

  void tryToDivide(Set &set);
  bool findSegments(Set &set);
  bool findWeights(Set &set, ShardedWeights &found);
  unsigned classOf(mlir::Value value) const;
  Segments segmentsOf(mlir::Value value) const;
  bool has(const Set &set, mlir::Value value) const;

  mlir::ModuleOp module;
  const int64_t ranks;
  mlir::SymbolTable symbols;

  std::vector<mlir::Value> values;
  llvm::DenseMap<mlir::Value, unsigned> numbers;
  llvm::IntEqClasses sets; ///< of value indices
  /// Values of a set that also have the same segments.
  llvm::IntEqClasses aligned;
  llvm::DenseMap<unsigned, std::string> whole;
  std::vector<model::WeightedMatmul> products;
  std::vector<Link> links;

  /// By classOf, for values of several segments.
  llvm::DenseMap<unsigned, Segments> segments;
  llvm::DenseSet<unsigned> divided; ///< leaders of sets
  ShardedWeights dividedWeights;
  llvm::SmallVector<std::string> kept, fixed;
  std::string unequalSet;
};

} // namespace qlora

#endif // QLORA_COMPILER_PARTITION_SHARDABLECOLUMNGROUPS_H
