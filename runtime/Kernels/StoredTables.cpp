// SPDX-License-Identifier: MIT

#include "runtime/Kernels/StoredTables.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qlora {

void writeTables(const StoredLayout &layout, uint8_t *out) {
  const StoredFormat &format = layout.format();
  auto *book = reinterpret_cast<float *>(out + layout.codeBook);
  for (int code = 0; code < 1 << format.bits; ++code)
    book[code] = format.value(code);
  const float correction = layout.doubleQuant ? 0.0f : format.scaleFactor;
  std::memcpy(out + layout.correction, &correction, sizeof(correction));
  if (format.codedScales != CodedScales::kAlways)
    return;
  auto *map = reinterpret_cast<float *>(out + layout.nestedMap);
  for (int code = 0; code < 256; ++code)
    map[code] = std::ldexp(1.0f, code - 127);
  auto *ones = reinterpret_cast<float *>(out + layout.nestedAbsmax);
  std::fill_n(ones, layout.nestedBlocks, 1.0f);
}

} // namespace qlora
