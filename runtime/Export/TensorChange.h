// SPDX-License-Identifier: MIT

// The change that an adapter makes to one tensor of its base, and its
// arithmetic, in f32:
//
//   LoRA            W + scale * B A
//   DoRA            m / |W + scale * B A| * (W + scale * B A), |.| per output
//   trained tokens  their rows replace those of the embedding
//   saved modules, trained biases     their values replace the base's
//   biases of B     b + scale * bias
//
// For a Conv1D and for an embedding, the tensor is [in, out], and so is the
// product. Experts have one A and B for all of them: expert e of N with rank r
// has the rows e * r + k of A [r * N, in] and the columns k * N + e of B [out,
// r * N].

#ifndef QLORA_RUNTIME_EXPORT_TENSORCHANGE_H
#define QLORA_RUNTIME_EXPORT_TENSORCHANGE_H

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

/// The pointers are tensors of the adapter's file; null: not there.
struct TensorChange {
  const SafetensorsTensor *replacement = nullptr;
  const SafetensorsTensor *a = nullptr, *b = nullptr;
  const SafetensorsTensor *magnitude = nullptr; ///< m of DoRA
  const SafetensorsTensor *tokens = nullptr;    ///< trained rows
  std::vector<int64_t> tokenIds;                ///< their indices
  const SafetensorsTensor *bias = nullptr;      ///< that of B
  double scale = 0;
  /// Whether the tensor is [in, out]. Else it is [out, in].
  bool isInOut = false;
  int64_t experts = 1;     ///< N: experts that A and B belong to
  int64_t firstExpert = 0; ///< the tensor's first expert
  int64_t firstOutput = 0; ///< the tensor's first output of B's rows

  /// The rank of one expert.
  int64_t rank() const { return a->shape[0] / experts; }
};

/// Reads a tensor of an adapter as f32.
StatusOr<std::vector<float>> readFactor(const SafetensorsFile &adapter,
                                        const SafetensorsTensor &tensor);

/// A change with its factors in memory.
class AppliedChange {
public:
  /// Reads f32 values of the tensor that is changed, before the change.
  using ReadBase = std::function<Status(int64_t first, std::span<float> out)>;

  /// Reads the factors from `adapter`. `shape`: the shape of the tensor, [..,
  /// rows, columns]. For DoRA, also reads the whole base once, for the norms.
  static StatusOr<AppliedChange> make(const SafetensorsFile &adapter,
                                      const TensorChange &change,
                                      const std::vector<int64_t> &shape,
                                      const ReadBase &base);
  /// Upper bound of the bytes of the result for this change.
  static uint64_t bytes(const TensorChange &change);

  /// Changes `values`, which are the base's from element `first` on.
  void apply(int64_t first, std::span<float> values) const;

private:
  void addProduct(int64_t first, std::span<float> values) const;
  void addProductOfRow(int64_t row, int64_t column,
                       std::span<float> values) const;
  Status findNorms(const ReadBase &base);
  void replaceTokens(int64_t first, std::span<float> values) const;

  TensorChange change;
  int64_t rows = 1, columns = 1; ///< of a matrix
  int64_t matrices = 1;
  std::vector<float> a;      ///< [r * N, in]
  std::vector<float> bTurned; ///< [r * N, out]
  std::vector<float> factor; ///< of DoRA, by output: m / norm
  std::vector<float> tokens, bias;
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_TENSORCHANGE_H
