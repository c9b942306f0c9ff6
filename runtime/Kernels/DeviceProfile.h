// SPDX-License-Identifier: MIT

// What a machine is able to do: an input of the compile like any other (the
// same profile gives the same train.so), and of predictions. It comes from
//
//   `qlora-run --calibrate`, which measures a CPU and writes device.json:
//     {"cpu": "AMD EPYC 9B14", "cores": 8, "gemm_f32_gflops": 620.0,
//      "gemm_bf16_gflops": 1100.0, "copy_gbps": 41.0, "decode_gbps": 22.0,
//      "kernels": {"panel_f32_gflops": 450, "panel_bf16_gflops": 980,
//                  "attention_f32_gflops": 210, "attention_bf16_gflops": 400,
//                  "pack_gbps": 60}}
//     ("kernels" may be left out: then they are assumed from the others)
//     and with several ranks what is between them, of which each may be left
//     out:
//      "links": {"window": {"message_us": 12, "gbps": 9.5},
//                "sockets": {"message_us": 30, "gbps": 2.1},
//                "network": {"ranks_per_node": 2, "message_us": 60,
//                            "gbps": 1.1}}
//   a file written by hand for a GPU: the same keys (cpu is the card's name,
//     cores its multiprocessors) and
//      "gpu": {"memory_gb": 141,
//              "attention_cudnn": {"forward_2k_gflops": 480e3,
//                                  "forward_8k_gflops": 610e3,
//                                  "backward_2k_gflops": 370e3,
//                                  "backward_8k_gflops": 510e3},
//              "attention_cuda": (the same keys, of our own kernels),
//              "thin_gemm_gbps": 2580, "issue_gops": 29652,
//              "launch_us": 1.5, "gpus_per_node": 8, "node_link_gbps": 370,
//              "network_gbps": 48, "all_reduce_us": 20,
//              "host_link_gbps": 52}
//   the table of known cards (KnownCards.cpp), by name.
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

/// One direction of an attention kernel: 10^9 of the products that are needed
/// per second (bf16, causal, heads of 128), for sequences of 2,048 and of 8,192
/// tokens. Between and beyond them each query takes as long as if it saw a
/// fixed number of keys more than it does (cut tiles, the beginning and end of
/// a block), all at one rate: short sequences are slow.
struct AttentionRate {
  double at2k = 0, at8k = 0; ///< at8k is 1 to 4 times at2k, 4 excluded

  /// Of products that are needed, and of what one key more for each query
  /// would add to them.
  double seconds(double flops, double flopsPerKey) const;
};

struct AttentionRates {
  AttentionRate forward, backward;
};

/// What only a GPU's profile says.
struct GpuRates {
  double memoryGb = 0; ///< of the card
  AttentionRates cudnnAttention; ///< of cuDNN's rows of Kernels.def
  AttentionRates cudaAttention;  ///< of our own
  /// Of memory, by products with a side of at most 64, as LoRA's have.
  double thinGemmGbps = 0;
  double issueGops = 0; ///< instructions of single lanes, 10^9 per second
  /// From one kernel of a graph to the next, when one waits for the other.
  double launchMicroseconds = 0;
  int64_t gpusPerNode = 1;
  /// Bus bandwidth of a ring all-reduce inside a node, and between nodes for
  /// each GPU, 10^9 bytes per second.
  double nodeLinkGbps = 0;
  double networkGbps = 0;
  /// A small all-reduce inside a node; each doubling of nodes adds as much.
  double allReduceMicroseconds = 0;
  /// Of a card's bus to its host's memory, each way, 10^9 bytes per second.
  double hostLinkGbps = 0;
};

/// What our kernels reach on a CPU, beside the rates of large GEMMs.
struct CpuKernelRates {
  /// Of panel_matmul's products, what it decodes and packs not counted.
  double panelF32Gflops = 0, panelBf16Gflops = 0;
  /// Of the products that causal attention needs, forward and backward
  /// together, exponentials included.
  double attentionF32Gflops = 0, attentionBf16Gflops = 0;
  /// Of the copy that a GEMM makes of its second factor, read and written.
  double packGbps = 0;
};

/// What ranks of CPUs send each other: a message takes so long, and so do the
/// bytes of all (Predict/CollectiveCost.h counts both).
struct LinkRate {
  double messageMicroseconds = 0;
  double gbps = 0; ///< 10^9 bytes per second
};

/// Between CPU ranks, where it was measured.
struct RankLinks {
  std::optional<LinkRate> window;  ///< memory that a machine's ranks share
  std::optional<LinkRate> sockets; ///< between ranks of a machine
  std::optional<LinkRate> network; ///< between machines
  int64_t ranksPerNode = 0;        ///< where there is a network

  bool areMeasured() const { return window || sockets || network; }
};

/// Rates of all cores of one rank together. The default is an AVX-512 server
/// with two cores; only ratios matter for most decisions.
struct DeviceProfile {
  std::string cpu = "default"; ///< or the card
  int64_t cores = 2;
  /// Of a large GEMM, 10^9 multiplications and additions per second, with f32
  /// and with bf16 inputs (f32 sums).
  double gemmF32Gflops = 170.0;
  double gemmBf16Gflops = 170.0;
  /// Of a large copy, 10^9 bytes per second, read and written ones both
  /// counted.
  double copyGbps = 20.0;
  /// Of decoding NF4 in cache, 10^9 bytes of f32 numbers made per second.
  double decodeGbps = 12.0;
  std::optional<CpuKernelRates> kernels; ///< of a CPU, where measured
  RankLinks links;                       ///< of CPU ranks
  std::optional<GpuRates> gpu;

  /// `kernels`, or shares of the other rates.
  CpuKernelRates cpuKernels() const;

  /// Of a GPU: sets what machines of it are; 0 and "" leave what is there.
  /// `network`: of each GPU to other machines, "400Gb" or "50GB" a second, of
  /// which a ring reaches kReachedOfLink.
  Status describeNetwork(int64_t gpusPerNode, const std::string &network);
};
/// As the rates of known cards have it: 48 GB/s of 400 Gb/s.
inline constexpr double kReachedOfLink = 0.96;

/// What cards may reach is predicted twice, and here is what for (an H200 at its
/// power limit was within 5 % of the low figure, docs/benchmarks.md):
///
///   high  every kernel reaches the profile's rates, and kernels of two queues
///         run side by side as far as these allow (Timeline.h);
///   low   GEMMs and attention reach 0.9 of their rates, what moves memory
///         0.85 of its; and kernels of two queues take turns, since a GEMM
///         fills the registers of every multiprocessor, so that no decode
///         finds room beside it.
///
/// The rates of a GPU's low figure. Links are the same in both.
inline constexpr double kLowProducts = 0.9, kLowMemory = 0.85;
DeviceProfile lowRates(DeviceProfile device);

/// The cards that have a name here, in the order of the table.
std::span<const std::string_view> knownCards();

/// That of a card as its driver names it, "NVIDIA H100 80GB HBM3".
std::optional<DeviceProfile> profileOfCard(std::string_view driverName);

/// Reads device.json. Every key has to be there, of the right type, and the
/// rates positive; errors name the file and the key. Unknown keys are
/// refused.
StatusOr<DeviceProfile> readDeviceProfile(const std::string &path);

/// A card of the table, or else the file of that path; the error for neither
/// lists the cards.
StatusOr<DeviceProfile> findDeviceProfile(const std::string &nameOrPath);

/// findDeviceProfile; for an empty text the default of the target (cpu, or
/// cuda: the card h100). A profile of the other kind than the target is
/// refused.
StatusOr<DeviceProfile> deviceProfileOrDefault(const std::string &nameOrPath,
                                               const std::string &target);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_DEVICEPROFILE_H
