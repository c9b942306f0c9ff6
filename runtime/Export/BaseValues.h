// SPDX-License-Identifier: MIT

// Values of one tensor of a base model, as f32: of a tensor in F32, BF16 or
// F16, which is read window by window, or of a quantized weight, whose codes
// are in memory and are decoded when they are read. Decoded values are those
// that the kernels compute.

#ifndef QLORA_RUNTIME_EXPORT_BASEVALUES_H
#define QLORA_RUNTIME_EXPORT_BASEVALUES_H

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Status.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Weights/FileWeight.h"

namespace qlora {

/// A quantized weight in memory.
struct PackedWeight {
  HostMemory bytes;
  StoredLayout layout;
  int64_t columns = 0; ///< of the matrix

  /// Reads a weight that is quantized in its files.
  static StatusOr<PackedWeight> read(const ModelFiles &model,
                                     std::string_view name);
  /// Quantizes a parameter of a program, as the program's runs do.
  static StatusOr<PackedWeight> quantize(const LoadedModule &program,
                                         const ModelFiles &model,
                                         const qlora_parameter &parameter);
};

class BaseValues {
public:
  static BaseValues dense(FileWeight weight);
  /// Values of `packed` from element `first` on.
  static BaseValues packed(std::shared_ptr<const PackedWeight> packed,
                           int64_t first);
  /// Makes read() see each matrix of a packed weight [.., rows, columns] as
  /// [.., columns, rows].
  void transpose(int64_t rows, int64_t columns);

  /// Fills `out` with elements from index `first` on. If the weight is
  /// transposed, keeps one decoded matrix until the next call.
  Status read(int64_t first, std::span<float> out);

private:
  Status readDense(int64_t first, std::span<float> out) const;
  void readTransposed(int64_t first, std::span<float> out);

  std::optional<FileWeight> file;
  std::shared_ptr<const PackedWeight> codes; ///< null: `file` has the values
  int64_t firstCode = 0;
  int64_t rows = 0, columns = 0; ///< of a transposed matrix, as stored; or 0
  std::vector<float> matrix;     ///< decoded, if it is transposed
  int64_t matrixIndex = -1;
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXPORT_BASEVALUES_H
