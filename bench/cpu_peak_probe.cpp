// SPDX-License-Identifier: MIT

// Measures the machine's peak rates of multiply-add instructions. The
// instructions are independent and use only registers, with one thread per
// usable CPU. No GEMM can be faster.
//
// Prints {"threads": .., "f32_gflops": .., "bf16_gflops": ..,
// "hides_tile_sizes": ..}. A rate is 0 if the CPU lacks the instructions (AVX2
// with FMA for f32, AVX512_BF16 for bf16). bf16 uses AMX tiles if the CPU has
// them and reports their sizes, and the kernel allows them (Intel SDM 2,
// chapter "Intel AMX"). Some hypervisors hide the sizes (CPUID leaf 1DH). Then
// no library can use tiles; oneDNN fails with an illegal instruction.

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "runtime/Kernels/Cpu/InstructionLimit.h"

using Clock = std::chrono::steady_clock;

/// Instructions per loop iteration: enough to hide the latency if two of them
/// start in each cycle.
static constexpr int kAccumulators = 14;
static constexpr int kRounds = 8;
static constexpr long kTurns = 10'000'000;
/// A tile instruction takes as long as 16 vector instructions.
static constexpr long kTileTurns = kTurns / 16;

// As clobbers, the names of xmm registers cover the ymm and zmm registers, too.
#define CLOBBERS                                                               \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",      \
      "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

/// Defines a function that runs `instruction` on all accumulators, in a loop.
#define LOOP(function, instruction, r)                                         \
  static void function(long turns) {                                           \
    asm volatile(                                                              \
        "vxorps %%xmm14, %%xmm14, %%xmm14\n vxorps %%xmm15, %%xmm15, "         \
        "%%xmm15\n 1:\n" EACH(instruction, r) "dec %0\n jnz 1b\n vzeroupper\n" \
        : "+r"(turns)                                                          \
        :                                                                      \
        : CLOBBERS);                                                           \
  }
#define ONE(instruction, r, n)                                                 \
  instruction " %%" r "14, %%" r "15, %%" r #n "\n"
#define EACH(i, r)                                                             \
  ONE(i, r, 0) ONE(i, r, 1) ONE(i, r, 2) ONE(i, r, 3) ONE(i, r, 4)             \
  ONE(i, r, 5) ONE(i, r, 6) ONE(i, r, 7) ONE(i, r, 8) ONE(i, r, 9)             \
  ONE(i, r, 10) ONE(i, r, 11) ONE(i, r, 12) ONE(i, r, 13)

LOOP(wideF32, "vfmadd231ps", "zmm")
LOOP(narrowF32, "vfmadd231ps", "ymm")
LOOP(wideBf16, "vdpbf16ps", "zmm")

/// Operand of LDTILECFG: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, startRow = 0, reserved[14] = {};
  uint16_t columnBytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// tileBf16 has as many instructions per iteration as LOOP, on 6 accumulators.
#define TILE(n) "tdpbf16ps %%tmm7, %%tmm6, %%tmm" #n "\n"
#define TILES TILE(0) TILE(1) TILE(2) TILE(3) TILE(4) TILE(5)
static void tileBf16(long turns) {
  const TileConfig config;
  asm volatile("ldtilecfg %1\n tilezero %%tmm6\n tilezero %%tmm7\n 1:\n" TILES
                   TILES TILE(0) TILE(1) "dec %0\n jnz 1b\n tilerelease\n"
               : "+r"(turns)
               : "m"(config)
               : "cc");
}

/// Requests the tile registers, which Linux gives a process on demand.
static bool mayUseTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-bf16") && !qlora::hidesTileSizes() &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

static int threadCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/// Returns the rate in 10^9 operations per second. Each instruction performs
/// `operations`. Takes the fastest round, because noise only adds time.
static double measure(void (*loop)(long), int threads, int operations,
                      long turns = kTurns) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> pool;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < threads; ++i)
      pool.emplace_back(loop, turns);
    for (std::thread &thread : pool)
      thread.join();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, 1e-9 * turns * kAccumulators * operations * threads /
                              seconds.count());
  }
  return best;
}

int main() {
  const int threads = threadCount();
  double f32 = 0, bf16 = 0;
  if (__builtin_cpu_supports("avx512f"))
    f32 = measure(wideF32, threads, 2 * 16);
  else if (__builtin_cpu_supports("fma"))
    f32 = measure(narrowF32, threads, 2 * 8);
  if (__builtin_cpu_supports("avx512bf16"))
    bf16 = measure(wideBf16, threads, 2 * 32);
  if (mayUseTiles())
    bf16 = std::max(bf16,
                    measure(tileBf16, threads, 2 * 16 * 16 * 32, kTileTurns));
  std::printf("{\"threads\": %d, \"f32_gflops\": %.1f, \"bf16_gflops\": "
              "%.1f, \"hides_tile_sizes\": %s}\n",
              threads, f32, bf16, qlora::hidesTileSizes() ? "true" : "false");
}
