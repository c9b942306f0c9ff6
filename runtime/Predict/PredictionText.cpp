// SPDX-License-Identifier: MIT

// Formatting of predictions.

#include "runtime/Predict/PredictionText.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/Base/Amounts.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Formats bytes in GB (10^9), since rates are decimal too.
static std::string gigabytes(double bytes) {
  return fmt::format("{:.{}f} GB", bytes / 1e9, bytes < 99.95e9 ? 1 : 0);
}

static std::string teraflops(double flops) {
  return flops > 0 ? fmt::format("{:.{}f}", flops / 1e12,
                                 flops < 99.95e12 ? 1 : 0)
                   : "";
}

/// GEMM and attention FLOPs of the step, per second.
static double achievedFlops(const StepPrediction &step) {
  const Work work = step.work();
  return (work.gemmFlops() + work.attentionFlops()) / step.seconds;
}

static double shareOfGemmRate(const StepPrediction &step,
                              const DeviceProfile &device) {
  return achievedFlops(step) / (device.gemmBf16Gflops * 1e9);
}

/// Formats the milliseconds at a GPU's low rates; empty for a CPU.
static std::string lowColumn(const std::optional<double> &seconds) {
  return seconds ? fmt::format(" {:>9.2f}", *seconds * 1e3) : "";
}

namespace {
/// Formats the lines of a table for one step.
struct PartLines {
  const StepPrediction &step;
  const StepPrediction *low;

  /// Formats one line; `seconds` maps a prediction to the line's seconds.
  template <typename Seconds>
  std::string line(std::string_view name, const Work *work,
                   Seconds seconds) const {
    const double flops = work ? work->gemmFlops() + work->attentionFlops() : 0;
    return fmt::format(
        "  {:<22} {:>8} {:>8} {:>9} {:>9.2f} {:>6.1f}%{}\n", name,
        work ? fmt::format("{:.0f}", work->launches) : "", teraflops(flops),
        work ? gigabytes(work->bytes) : "", seconds(step) * 1e3,
        100 * seconds(step) / step.seconds,
        lowColumn(low ? std::optional(seconds(*low)) : std::nullopt));
  }
};
} // namespace

static std::string collectiveLines(const StepPrediction &step) {
  std::string text;
  for (const PredictedCollective &collective : step.collectives)
    if (step.ranks > 1 || collective.group == "bus")
      text += fmt::format("  {:.0f} x {} over {}: {}, {:.2f} ms\n",
                          collective.count, collective.kind, collective.group,
                          formatBytes(static_cast<uint64_t>(collective.bytes)),
                          collective.seconds * 1e3);
  return text;
}

static std::string tableText(const PartLines &lines) {
  const StepPrediction &step = lines.step;
  using Step = const StepPrediction &;
  std::string text;
  for (size_t i = 0; i < step.parts.size(); ++i)
    text += lines.line(stepPartName(StepPart(i)), &step.parts[i].work,
                       [i](Step of) { return of.parts[i].seconds; });
  text += lines.line("kernel launches", nullptr,
                     [](Step of) { return of.launchSeconds; });
  text += lines.line("overlapped", nullptr,
                     [](Step of) { return 0 - of.overlapped; });
  text += lines.line("exposed communication", nullptr,
                     [](Step of) { return of.exposedCommunication; });
  const Work all = step.work();
  return text + lines.line("step", &all, [](Step of) { return of.seconds; });
}

/// Formats what is predicted, such as "decode of 8 x 1 tokens".
static std::string subject(const StepPrediction &step) {
  if (step.entry == QLORA_ENTRY_UPDATE)
    return fmt::format("step of {} x {} micro-batches of {} x {}",
                       step.dataRanks, step.microBatches, step.batch,
                       step.length);
  return fmt::format("{} of {} x {} tokens", entryKindName(step.entry),
                     step.batch, step.length);
}

std::string predictionText(const StepPrediction &step,
                           const StepPrediction *low,
                           const DeviceProfile &device) {
  std::string text = fmt::format(
      "predicted, not measured: a {} on {}\n"
      "  {:<22} {:>8} {:>8} {:>9} {:>9} {:>7}{}\n",
      subject(step), device.cpu,
      "part, per rank", "kernels", "TFLOP", "moved", "ms", "share",
      low ? fmt::format(" {:>9}", "ms, low") : "");
  if (step.stages > 1)
    text += fmt::format("  stage {} of {}, which has the most work\n",
                        step.stage, step.stages);
  text += tableText({step, low});
  text += fmt::format("  {} tokens per second on {} ranks; {:.0f} TFLOP/s on "
                      "each, {:.1f} % of the assumed GEMM rate\n",
                      low ? formatRate(low->tokensPerSecond()) + " to " +
                                formatRate(step.tokensPerSecond())
                          : formatRate(step.tokensPerSecond()),
                      step.ranks, achievedFlops(step) / 1e12,
                      100 * shareOfGemmRate(step, device));
  if (low)
    text += fmt::format("  assuming these kernels: {}\n",
                        fmt::join(step.rows(), ", "));
  return text + collectiveLines(step);
}

/// Returns the tokens per second and rank, relative to those of `first`.
static double efficiency(const StepPrediction &step,
                         const StepPrediction &first) {
  return step.tokensPerSecond() * double(first.ranks) /
         (double(step.ranks) * first.tokensPerSecond());
}

std::string scalingText(std::span<const StepPrediction> curve,
                        const GpuRates &gpu) {
  const int64_t together = curve[0].ranks / curve[0].dataRanks;
  std::string text = fmt::format(
      "scaling, predicted: {} x {} tokens on {}\n"
      "  {:>6} {:>6} {:>10} {:>10} {:>10} {:>12}\n",
      curve[0].microBatches * curve[0].batch, curve[0].length,
      together > 1 ? fmt::format("every {} ranks", together) : "each rank",
      "ranks", "nodes", "ms/step", "tok/s", "of ideal", "ms exposed");
  for (const StepPrediction &step : curve)
    text += fmt::format("  {:>6} {:>6} {:>10.2f} {:>10} {:>9.1f}% {:>12.2f}\n",
                        step.ranks, step.machines(gpu.gpusPerNode),
                        step.seconds * 1e3, formatRate(step.tokensPerSecond()),
                        100 * efficiency(step, curve[0]),
                        step.exposedCommunication * 1e3);
  return text;
}

static std::string attentionAssumptions(std::string_view whose,
                                        const AttentionRates &rates) {
  return fmt::format("  {} attention in bf16, 2,048 and 8,192 tokens: {:.0f} "
                     "and {:.0f} TFLOP/s forward, {:.0f} and {:.0f} backward\n",
                     whose, rates.forward.at2k / 1e3, rates.forward.at8k / 1e3,
                     rates.backward.at2k / 1e3, rates.backward.at8k / 1e3);
}

static std::string gpuAssumptions(const GpuRates &gpu) {
  std::string text = attentionAssumptions("cuDNN's", gpu.cudnnAttention) +
                     attentionAssumptions("our own", gpu.cudaAttention);
  text += fmt::format(
      "  GEMMs with a side of at most {} move {:.0f} GB/s; element-wise "
      "kernels issue {} instructions per byte, at {:.0f} Gop/s\n  {} us "
      "between kernels; all-reduce {:.0f} GB/s inside a node of {}, {:.0f} "
      "GB/s per GPU between nodes, {:.0f} us at least; host memory {:.0f} GB/s "
      "over the bus\n  a kernel takes the longer of its compute and memory "
      "time; kernels of two queues slow each other down if together they "
      "exceed a rate\n",
      kThinSide, gpu.thinGemmGbps, kRowInstructions, gpu.issueGops,
      gpu.launchMicroseconds, gpu.nodeLinkGbps, gpu.gpusPerNode,
      gpu.networkGbps, gpu.allReduceMicroseconds, gpu.hostLinkGbps);
  return text +
         fmt::format("  low: GEMM and attention at {} of these rates, memory "
                     "at {}, and kernels of two queues do not overlap\n",
                     kLowProducts, kLowMemory);
}

static std::string linkAssumptions(const RankLinks &links) {
  const std::pair<std::string, const std::optional<LinkRate> &> kinds[] = {
      {"shared memory", links.window},
      {"sockets within a machine", links.sockets},
      {fmt::format("between machines with {} ranks", links.ranksPerNode),
       links.network}};
  std::string text;
  for (const auto &[where, link] : kinds)
    if (link)
      text += fmt::format("  {}: {:.1f} us per message, {} GB/s\n", where,
                          link->messageMicroseconds, formatShort(link->gbps));
  return text;
}

std::string assumptionText(const DeviceProfile &device) {
  std::string text =
      fmt::format("assumed rates of {}\n  GEMM {} TFLOP/s in bf16, {} in f32; "
                  "memory {:.0f} GB/s; NF4 decode {:.0f} GB/s of f32 values\n",
                  device.cpu, formatShort(device.gemmBf16Gflops / 1e3),
                  formatShort(device.gemmF32Gflops / 1e3), device.copyGbps,
                  device.decodeGbps);
  if (device.gpu)
    text += gpuAssumptions(*device.gpu);
  else
    text += linkAssumptions(device.links);
  return text + "  not included: reading data, the host's waits between "
                "entries, waiting for a slower rank\n";
}

static json workJson(const Work &work) {
  return {{"kernels", work.launches},
          {"gemm_flops", work.gemmFlops()},
          {"attention_flops", work.attentionFlops()},
          {"bytes", work.bytes},
          {"decoded_numbers", work.decodedNumbers}};
}

/// Returns the values that differ at a GPU's low rates; counts are the same.
static json lowJson(const StepPrediction &step, const DeviceProfile &device) {
  json parts = json::object();
  for (size_t i = 0; i < step.parts.size(); ++i)
    parts[std::string(stepPartName(StepPart(i)))]["seconds"] =
        step.parts[i].seconds;
  return {{"step_seconds", step.seconds},
          {"tokens_per_second", step.tokensPerSecond()},
          {"flops_per_second", achievedFlops(step)},
          {"share_of_gemm_rate", shareOfGemmRate(step, device)},
          {"launch_seconds", step.launchSeconds},
          {"overlapped_seconds", step.overlapped},
          {"exposed_communication_seconds", step.exposedCommunication},
          {"parts", std::move(parts)}};
}

json scalingJson(std::span<const StepPrediction> curve, const GpuRates &gpu) {
  json rows = json::array();
  for (const StepPrediction &step : curve)
    rows.push_back(
        {{"ranks", step.ranks},
         {"nodes", step.machines(gpu.gpusPerNode)},
         {"step_seconds", step.seconds},
         {"tokens_per_second", step.tokensPerSecond()},
         {"efficiency", efficiency(step, curve[0])},
         {"exposed_communication_seconds", step.exposedCommunication}});
  return rows;
}

json predictionJson(const StepPrediction &step, const StepPrediction *low,
                    const DeviceProfile &device) {
  json parts = json::object();
  for (size_t i = 0; i < step.parts.size(); ++i) {
    json part = workJson(step.parts[i].work);
    part["seconds"] = step.parts[i].seconds;
    parts[std::string(stepPartName(StepPart(i)))] = std::move(part);
  }
  json groups = json::array();
  for (const KernelGroup &group : step.groups)
    groups.push_back({{"kernel", group.kernel},
                      {"label", group.label},
                      {"part", stepPartName(group.part)},
                      {"count", group.count},
                      {"seconds", group.count * group.demand.seconds()},
                      {"each", workJson(group.work)}});
  json collectives = json::array();
  for (const PredictedCollective &collective : step.collectives)
    collectives.push_back({{"kind", collective.kind},
                           {"group", collective.group},
                           {"count", collective.count},
                           {"bytes", collective.bytes},
                           {"seconds", collective.seconds}});
  json result = {{"ranks", step.ranks},
                 {"micro_batches", step.microBatches},
                 {"batch", step.batch},
                 {"length", step.length},
                 {"step_seconds", step.seconds},
                 {"tokens_per_second", step.tokensPerSecond()},
                 {"flops_per_second", achievedFlops(step)},
                 {"share_of_gemm_rate", shareOfGemmRate(step, device)},
                 {"launch_seconds", step.launchSeconds},
                 {"overlapped_seconds", step.overlapped},
                 {"exposed_communication_seconds", step.exposedCommunication}};
  if (step.entry != QLORA_ENTRY_UPDATE)
    result["entry"] = entryKindName(step.entry);
  if (step.stages > 1)
    result["stage"] = step.stage;
  if (low) {
    result["assumed_kernels"] = step.rows();
    result["low"] = lowJson(*low, device);
  }
  result["total"] = workJson(step.work());
  result["parts"] = std::move(parts);
  result["collectives"] = std::move(collectives);
  result["kernels"] = std::move(groups);
  return result;
}

static json attentionJson(const AttentionRates &rates) {
  return {{"forward_2k_gflops", rates.forward.at2k},
          {"forward_8k_gflops", rates.forward.at8k},
          {"backward_2k_gflops", rates.backward.at2k},
          {"backward_8k_gflops", rates.backward.at8k}};
}

static json linkJson(const LinkRate &link) {
  return {{"message_us", link.messageMicroseconds}, {"gbps", link.gbps}};
}

static json linksJson(const RankLinks &links) {
  json result = json::object();
  if (links.window)
    result["window"] = linkJson(*links.window);
  if (links.sockets)
    result["sockets"] = linkJson(*links.sockets);
  if (links.network) {
    result["network"] = {{"ranks_per_node", links.ranksPerNode}};
    result["network"].update(linkJson(*links.network));
  }
  return result;
}

json profileJson(const DeviceProfile &device) {
  json result = {{"cpu", device.cpu},
                 {"cores", device.cores},
                 {"gemm_f32_gflops", device.gemmF32Gflops},
                 {"gemm_bf16_gflops", device.gemmBf16Gflops},
                 {"copy_gbps", device.copyGbps},
                 {"decode_gbps", device.decodeGbps}};
  if (device.kernels)
    result["kernels"] = {
        {"panel_f32_gflops", device.kernels->panelF32Gflops},
        {"panel_bf16_gflops", device.kernels->panelBf16Gflops},
        {"attention_f32_gflops", device.kernels->attentionF32Gflops},
        {"attention_bf16_gflops", device.kernels->attentionBf16Gflops},
        {"pack_gbps", device.kernels->packGbps}};
  if (device.links.areMeasured())
    result["links"] = linksJson(device.links);
  if (!device.gpu)
    return result;
  const GpuRates &gpu = *device.gpu;
  result["gpu"] = {{"memory_gb", gpu.memoryGb},
                   {"attention_cudnn", attentionJson(gpu.cudnnAttention)},
                   {"attention_cuda", attentionJson(gpu.cudaAttention)},
                   {"thin_gemm_gbps", gpu.thinGemmGbps},
                   {"issue_gops", gpu.issueGops},
                   {"launch_us", gpu.launchMicroseconds},
                   {"gpus_per_node", gpu.gpusPerNode},
                   {"node_link_gbps", gpu.nodeLinkGbps},
                   {"network_gbps", gpu.networkGbps},
                   {"all_reduce_us", gpu.allReduceMicroseconds},
                   {"host_link_gbps", gpu.hostLinkGbps}};
  return result;
}

} // namespace qlora
