// SPDX-License-Identifier: MIT

// A weight that bitsandbytes has already quantised: four tensors, or six
// with double quantisation, beside each other in the model's files.

#ifndef QLORA_RUNTIME_WEIGHTS_STOREDNF4_H
#define QLORA_RUNTIME_WEIGHTS_STOREDNF4_H

#include <string_view>

#include "runtime/Kernels/Math/NF4.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// What a stored weight says of itself.
struct StoredNF4 {
  std::vector<int64_t> shape;
  int64_t block = 0;
  bool doubleQuant = false;
};

/// Reads and checks the quant_state of the weight called `name`. Any quant
/// type but nf4, and any nested block but 256, is refused.
StatusOr<StoredNF4> readStoredNF4(const ModelFiles &model,
                                  std::string_view name);

/// Copies the tensors of the weight into the layout at `out` (layout.bytes),
/// its own code book and maps included, after checking that block, double
/// quantisation, shape and every size are those of `shape` and `layout`.
/// `bnb_4bit_quant_storage` views (bytes under another dtype) are accepted.
Status copyStoredNF4(const ModelFiles &model, std::string_view name,
                     std::span<const int64_t> shape, const NF4Layout &layout,
                     uint8_t *out);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_STOREDNF4_H
