// SPDX-License-Identifier: MIT

// Exchanges values between the ranks of a group, for passes that shard matmuls,
// sequences or experts. `reshard` knows the ops of every exchange.

#ifndef QLORA_COMPILER_PARTITION_RESHARD_H
#define QLORA_COMPILER_PARTITION_RESHARD_H

#include "dialects/Model/Model.h"

#include <functional>

namespace qlora {

/// How each of N ranks holds a value.
enum class Held {
  Whole,   ///< all of it, equal on all ranks
  Partial, ///< a partial sum
  Rows,    ///< 1/N of the rows, in the order of ranks
  Tokens,  ///< 1/N of each sequence's tokens: [B, T / N], or [B, T / N, C]
  Columns, ///< 1/N of the columns of all tokens: [B, T, C / N]
};

/// Exchanges `value`, which ranks of `group` hold as `have`, to a value of
/// `type` that they hold as `want`: partial to whole or rows, rows to whole and
/// back, tokens [B, T / N] to whole, tokens to columns and back. Creates ops at
/// the builder's position.
mlir::Value reshard(mlir::OpBuilder &b, mlir::Location loc, mlir::Value value,
                    Held have, Held want, mlir::RankedTensorType type,
                    model::Ranks group);

/// Values of a function that ranks of a group hold as `have`, and their
/// exchanges to `want`. Each value is exchanged once.
class Resharding {
public:
  /// Returns the type of the exchanged value. Null: the same type.
  using TypeOf = std::function<mlir::RankedTensorType(mlir::Value)>;
  /// Position of an exchange: after the value, or before its first reader.
  enum Place { AfterValue, BeforeReader };

  Resharding(model::Ranks group, Held have, Held want, TypeOf typeOf = {},
             Place place = AfterValue)
      : group(group), have(have), want(want), typeOf(std::move(typeOf)),
        place(place) {}

  void insert(mlir::ValueRange values) { held.insert_range(values); }
  bool contains(mlir::Value value) const { return held.contains(value); }

  /// Returns the exchanged value. The exchange has the layer and phase of the
  /// op at its position; after an input, those of `reader`.
  mlir::Value of(mlir::Value value, mlir::Operation *reader);
  /// Replaces operands that are in the set by their exchanged values. Skips the
  /// operands before index `first`.
  void exchangeOperands(mlir::Operation *op, unsigned first = 0);

  int64_t count() const { return exchanged.size(); }
  /// Returns the bytes of all values that were exchanged.
  int64_t bytes() const { return sent; }

private:
  const model::Ranks group;
  const Held have, want;
  const TypeOf typeOf;
  const Place place;
  llvm::DenseSet<mlir::Value> held;
  llvm::DenseMap<mlir::Value, mlir::Value> exchanged;
  int64_t sent = 0;
};

/// A builder listener that copies layer and phase of `of` to each created op.
class StageCopier : public mlir::OpBuilder::Listener {
public:
  explicit StageCopier(mlir::Operation *of) : of(of) {}
  void notifyOperationInserted(mlir::Operation *op,
                               mlir::OpBuilder::InsertPoint) override {
    model::copyStage(of, op);
    made.push_back(op);
  }
  llvm::SmallVector<mlir::Operation *> made;

private:
  mlir::Operation *of;
};

/// Returns whether the op computes each token separately.
bool isTokenwise(mlir::Operation *op);
/// Returns whether the shape is [B, T, ...], where `tokens` is [B, T].
bool isOfTokens(mlir::Value value, llvm::ArrayRef<int64_t> tokens);

} // namespace qlora

#endif // QLORA_COMPILER_PARTITION_RESHARD_H
