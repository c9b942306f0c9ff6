// SPDX-License-Identifier: MIT

// adamw_8bit: the AdamW update of a tensor whose states are stored in 8 bits.

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Math/AdamW8Bit.h"

namespace qlora::cpu {

namespace {
/// The values of all codes: signed for the mean, unsigned for the mean square.
struct StateMaps {
  std::array<float, kNF4MapEntries> withSign, withoutSign;

  StateMaps() {
    for (int code = 0; code < kNF4MapEntries; ++code) {
      withSign[size_t(code)] = dynamicMapValue(true, code);
      withoutSign[size_t(code)] = dynamicMapValue(false, code);
    }
  }
};

struct StateBlock {
  float *p;
  uint8_t *state1, *state2;
  float *absmax1, *absmax2;
  const float *gradient;
  int64_t count;
};
} // namespace

static const StateMaps &stateMaps() {
  static const StateMaps maps;
  return maps;
}

static void updateBlock(const StateBlock &b, float scale,
                        const UpdateRate &rate, const qlora_step_block &step) {
  const StateMaps &maps = stateMaps();
  float m[kStateBlock], v[kStateBlock];
  int32_t largest1 = 0, largest2 = 0;
  for (int64_t i = 0; i < b.count; ++i) {
    m[i] = maps.withSign[b.state1[i]] * *b.absmax1;
    v[i] = maps.withoutSign[b.state2[i]] * *b.absmax2;
    b.p[i] = adamWStep(b.p[i], m[i], v[i], b.gradient[i] * scale, rate, step);
    largest1 = std::max(largest1, nf4Magnitude(m[i]));
    largest2 = std::max(largest2, nf4Magnitude(v[i]));
  }
  *b.absmax1 = qlora_from_bits(uint32_t(largest1));
  *b.absmax2 = qlora_from_bits(uint32_t(largest2));
  for (int64_t i = 0; i < b.count; ++i) {
    b.state1[i] = stateCode(maps.withSign.data(), m[i], *b.absmax1);
    b.state2[i] = stateCode(maps.withoutSign.data(), v[i], *b.absmax2);
  }
}

PreparedKernel adamw_8bit::cpu::prepare(const KernelRequest &request,
                                        uint64_t) {
  enum Operand { kP, kState1, kState2, kAbsmax1, kAbsmax2, kGradient, kScale };
  const int64_t elements =
      request.constant("rows") * request.constant("columns");
  const double rateScale = request.constantAsDouble("rate_scale");
  const bool isUndecayed = request.constant("undecayed") != 0;
  return makeKernel([=](const LibraryKernelArgs &args) {
    const float scale = *bufferOf<const float>(args, kScale);
    if (std::isnan(scale))
      return Status::ok();
    const auto rate = UpdateRate::of(*args.step, rateScale, isUndecayed);
    const int64_t blocks = (elements + kStateBlock - 1) / kStateBlock;
    parallelRanges(blocks, 16, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kStateBlock;
        updateBlock({bufferOf<float>(args, kP) + first,
                     bufferOf<uint8_t>(args, kState1) + first,
                     bufferOf<uint8_t>(args, kState2) + first,
                     bufferOf<float>(args, kAbsmax1) + block,
                     bufferOf<float>(args, kAbsmax2) + block,
                     bufferOf<const float>(args, kGradient) + first,
                     std::min<int64_t>(kStateBlock, elements - first)},
                    scale, rate, *args.step);
      }
    });
    return Status::ok();
  });
}

} // namespace qlora::cpu
