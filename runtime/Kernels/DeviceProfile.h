// SPDX-License-Identifier: MIT

// Performance of a machine, as input of the compiler and of predictions. The
// same profile gives the same train.so. A profile comes from
//
//   `qlora-run --calibrate`, which measures a CPU and writes device.json:
//     {"cpu": "AMD EPYC 9B14", "cores": 8, "gemm_f32_gflops": 620.0,
//      "gemm_bf16_gflops": 1100.0, "copy_gbps": 41.0, "decode_gbps": 22.0,
//      "kernels": {"panel_f32_gflops": 450, "panel_bf16_gflops": 980,
//                  "attention_f32_gflops": 210, "attention_bf16_gflops": 400,
//                  "pack_gbps": 60}}
//     "kernels" is optional: its rates can be estimated from the others.
//     With several ranks it also has the links between them, each optional:
//      "links": {"window": {"message_us": 12, "gbps": 9.5},
//                "sockets": {"message_us": 30, "gbps": 2.1},
//                "network": {"ranks_per_node": 2, "message_us": 60,
//                            "gbps": 1.1}}
//   a file written by hand for a GPU, with the same keys ("cpu" is the name of
//     the GPU, "cores" its multiprocessors) and
//      "gpu": {"memory_gb": 141,
//              "attention_cudnn": {"forward_2k_gflops": 480e3,
//                                  "forward_8k_gflops": 610e3,
//                                  "backward_2k_gflops": 370e3,
//                                  "backward_8k_gflops": 510e3},
//              "attention_cuda": (the same keys, for this project's kernels),
//              "thin_gemm_gbps": 2580, "issue_gops": 29652,
//              "launch_us": 1.5, "gpus_per_node": 8, "node_link_gbps": 370,
//              "network_gbps": 48, "all_reduce_us": 20,
//              "host_link_gbps": 52}
//   the table of known GPUs (KnownGpus.cpp), by name.
//
// Rates are what large kernels reach, measured or assumed, not data-sheet
// peaks. A gigabyte has 10^9 bytes.

#ifndef QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H
#define QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Rate of one direction of an attention kernel, in 10^9 needed FLOPs per
/// second (bf16, causal, heads of 128), for sequences of 2,048 and 8,192
/// tokens. Needed FLOPs (neededFlops) exclude hidden keys and recomputation.
///
/// Rates for other lengths follow from a model: the time of a query is
/// proportional to the keys that it sees plus a constant (partial tiles, start
/// and end of a block). So short sequences are slow.
struct AttentionRate {
  double at2k = 0, at8k = 0; ///< at2k <= at8k < 4 * at2k

  /// Seconds for `flops` needed FLOPs. `flopsPerKey`: extra FLOPs if each query
  /// saw one more key.
  double seconds(double flops, double flopsPerKey) const;
};

struct AttentionRates {
  AttentionRate forward, backward;
};

/// Rates that only the profile of a GPU has.
struct GpuRates {
  double memoryGb = 0; ///< GPU memory, 10^9 bytes
  AttentionRates cudnnAttention; ///< rows `cudnn` of Kernels.def
  AttentionRates cudaAttention;  ///< rows `cuda` of Kernels.def
  /// Memory bandwidth of GEMMs with a side of at most 64, such as LoRA's.
  double thinGemmGbps = 0;
  double issueGops = 0; ///< single-lane instructions, 10^9 per second
  /// Gap between two dependent kernels of a CUDA graph.
  double launchMicroseconds = 0;
  int64_t gpusPerNode = 1;
  /// Bus bandwidth of a ring all-reduce in 10^9 bytes per second: inside a
  /// node, and per GPU between nodes.
  double nodeLinkGbps = 0;
  double networkGbps = 0;
  /// Time of a small all-reduce in a node. Each doubling of nodes adds as much.
  double allReduceMicroseconds = 0;
  /// Bandwidth between GPU and host memory, each way, 10^9 bytes per second.
  double hostLinkGbps = 0;
};

/// Rates of this project's CPU kernels, which differ from rates of large GEMMs.
struct CpuKernelRates {
  /// Rate of panel_matmul's FLOPs, without its decoding and packing.
  double panelF32Gflops = 0, panelBf16Gflops = 0;
  /// Rate of causal attention, forward and backward together. Counts no FLOPs
  /// of hidden keys or of recomputation.
  double attentionF32Gflops = 0, attentionBf16Gflops = 0;
  /// Rate of packing a GEMM's second operand; bytes read plus written.
  double packGbps = 0;
};

/// Link between CPU ranks. A message costs a fixed latency plus its bytes at
/// `gbps` (Predict/CollectiveCost.h counts both).
struct LinkRate {
  double messageMicroseconds = 0;
  double gbps = 0; ///< 10^9 bytes per second
};

/// Links between CPU ranks; empty if not measured.
struct RankLinks {
  std::optional<LinkRate> window;  ///< shared memory of the ranks of a machine
  std::optional<LinkRate> sockets; ///< between ranks of a machine
  std::optional<LinkRate> network; ///< between machines
  int64_t ranksPerNode = 0;        ///< set if `network` is

  bool areMeasured() const { return window || sockets || network; }
};

/// Rates of all cores of one rank together. The defaults are for an AVX-512
/// server with two cores; most decisions depend only on ratios of rates.
struct DeviceProfile {
  std::string cpu = "default"; ///< name of the CPU or GPU
  int64_t cores = 2;
  /// Rate of a large GEMM with f32 and with bf16 inputs (f32 sums), in 10^9
  /// FLOPs per second. A multiplication and an addition count as two.
  double gemmF32Gflops = 170.0;
  double gemmBf16Gflops = 170.0;
  /// Rate of a large copy, 10^9 bytes per second, read plus written.
  double copyGbps = 20.0;
  /// Rate of decoding NF4 in cache, 10^9 bytes of f32 output per second.
  double decodeGbps = 12.0;
  std::optional<CpuKernelRates> kernels; ///< measured rates of a CPU
  RankLinks links;                       ///< between CPU ranks
  std::optional<GpuRates> gpu;

  /// Returns `kernels`, or estimates from the other rates if not measured.
  CpuKernelRates cpuKernels() const;

  /// Sets GPUs per node and network rate of a GPU profile; 0 and "" change
  /// nothing. `network` is the link of each GPU to other machines, such as
  /// "400Gb" or "50GB" per second (a ring reaches kReachedOfLink of it).
  Status describeNetwork(int64_t gpusPerNode, const std::string &network);
};
/// Fraction of a link's rate that a ring reaches: 48 GB/s on 400 Gb/s.
inline constexpr double kReachedOfLink = 0.96;

// Predictions for GPUs have a high and a low figure. An H200 at its power limit
// was within 5 % of the low figure (docs/benchmarks.md).
//
//   high  every kernel reaches the profile's rates, and kernels of two streams
//         overlap as far as these rates allow (Timeline.h);
//   low   GEMMs and attention reach 0.9 of their rates, memory-bound kernels
//         0.85. Kernels of two streams do not overlap: a GEMM fills the
//         registers of every multiprocessor, so no decode can start.
inline constexpr double kLowProducts = 0.9, kLowMemory = 0.85;
/// Returns the rates for the low figure of a GPU. Link rates stay the same.
DeviceProfile lowRates(DeviceProfile device);

/// Names of the known GPUs, in the order of the table.
std::span<const std::string_view> knownGpus();

/// Returns the profile for a GPU's name, such as "NVIDIA H100 80GB HBM3".
std::optional<DeviceProfile> profileOfGpu(std::string_view driverName);

/// Reads device.json. Every key except the optional ones must be present with
/// the right type, and rates must be positive. Unknown keys are refused. Errors
/// name the file and the key.
StatusOr<DeviceProfile> readDeviceProfile(const std::string &path);

/// Returns the profile of a known GPU, or else reads the file at that path. If
/// neither exists, the error lists the known GPUs.
StatusOr<DeviceProfile> findDeviceProfile(const std::string &nameOrPath);

/// Returns findDeviceProfile(nameOrPath); for an empty text the target's
/// default (cpu: DeviceProfile(), cuda: "h100"). Refuses a GPU profile for cpu
/// and a CPU profile for cuda.
StatusOr<DeviceProfile> deviceProfileOrDefault(const std::string &nameOrPath,
                                               const std::string &target);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H
