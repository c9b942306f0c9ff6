// SPDX-License-Identifier: MIT

#include "runtime/Kernels/StoredTables.h"

#include <cstring>

namespace qlora {

void writeTables(const StoredLayout &layout, uint8_t *out) {
  const StoredFormat &format = layout.format();
  auto *book = reinterpret_cast<float *>(out + layout.codeBook);
  for (int code = 0; code < 1 << format.bits; ++code)
    book[code] = format.value(code);
  const float correction = layout.doubleQuant ? 0.0f : format.scaleFactor;
  std::memcpy(out + layout.correction, &correction, sizeof(correction));
}

} // namespace qlora
