// SPDX-License-Identifier: MIT

// Reads device.json (DeviceProfile.h).

#include "runtime/Kernels/DeviceProfile.h"

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"

#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

using namespace qlora;

namespace {

/// Reads and removes keys, so unknown keys remain. Keeps the first error.
class ProfileReader {
public:
  ProfileReader(const std::string &path, nlohmann::json json)
      : path(path), json(std::move(json)) {}

  /// Removes and returns the object of an optional key.
  std::optional<ProfileReader> takeObject(const char *key) {
    if (!status.isOk() || !json.contains(key))
      return std::nullopt;
    if (!json[key].is_object()) {
      fail("key '{}' is {}, but must be an object", key, dumpJson(json[key]));
      return std::nullopt;
    }
    ProfileReader inner(path, json[key]);
    inner.prefix = prefix + key + ".";
    json.erase(key);
    return inner;
  }

  /// Removes and returns the object of a required key.
  std::optional<ProfileReader> requireObject(const char *key) {
    return has(key) ? takeObject(key) : std::nullopt;
  }

  void readRate(const char *key, double &value) {
    read(key, "a positive number", value, [](const nlohmann::json &found) {
      return found.is_number() && found.get<double>() > 0;
    });
  }

  /// Reads two rates, such as "forward_2k_gflops" and "forward_8k_gflops".
  void readAttention(const std::string &direction, AttentionRate &rate) {
    readRate((direction + "_2k_gflops").c_str(), rate.at2k);
    readRate((direction + "_8k_gflops").c_str(), rate.at8k);
    if (rate.at8k < rate.at2k || rate.at8k >= 4 * rate.at2k)
      fail("key '{}{}_8k_gflops' is {}, but must be at least the rate at 2k, "
           "{}, and below 4 times that",
           prefix, direction, rate.at8k, rate.at2k);
  }

  void readCount(const char *key, int64_t &value) {
    read(key, "a positive integer", value, [](const nlohmann::json &found) {
      return found.is_number_integer() && found.get<int64_t>() >= 1;
    });
  }

  void readText(const char *key, std::string &value) {
    read(key, "a string", value,
         [](const nlohmann::json &found) { return found.is_string(); });
  }

  Status finish() {
    if (status.isOk() && !json.empty())
      fail("unknown key '{}{}'", prefix, json.begin().key());
    return status;
  }

private:
  /// Removes a required key and reads its value, which must satisfy `isRight`.
  template <typename Value, typename IsRight>
  void read(const char *key, const char *wanted, Value &value,
            IsRight isRight) {
    if (!has(key))
      return;
    if (!isRight(json[key]))
      return fail("key '{}{}' is {}, but must be {}", prefix, key,
                  dumpJson(json[key]), wanted);
    value = json[key].get<Value>();
    json.erase(key);
  }

  bool has(const char *key) {
    if (status.isOk() && !json.contains(key))
      fail("key '{}{}' is missing; {}", prefix, key,
           prefix.starts_with("gpu.")
               ? "a GPU's profile needs all keys of 'gpu'"
               : "write the file again with qlora-run --calibrate");
    return status.isOk();
  }
  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args &&...args) {
    if (status.isOk())
      status = Status::invalid(
          "{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string path;
  std::string prefix; ///< precedes keys in messages
  nlohmann::json json;
  Status status;
};

} // namespace

static Status readAttentionRates(ProfileReader &gpu, const char *key,
                                 AttentionRates &rates) {
  std::optional<ProfileReader> reader = gpu.requireObject(key);
  if (!reader)
    return gpu.finish();
  reader->readAttention("forward", rates.forward);
  reader->readAttention("backward", rates.backward);
  return reader->finish();
}

static StatusOr<GpuRates> readGpuRates(ProfileReader reader) {
  GpuRates gpu;
  reader.readRate("memory_gb", gpu.memoryGb);
  QLORA_RETURN_IF_ERROR(
      readAttentionRates(reader, "attention_cudnn", gpu.cudnnAttention));
  QLORA_RETURN_IF_ERROR(
      readAttentionRates(reader, "attention_cuda", gpu.cudaAttention));
  reader.readRate("thin_gemm_gbps", gpu.thinGemmGbps);
  reader.readRate("issue_gops", gpu.issueGops);
  reader.readRate("launch_us", gpu.launchMicroseconds);
  reader.readCount("gpus_per_node", gpu.gpusPerNode);
  reader.readRate("node_link_gbps", gpu.nodeLinkGbps);
  reader.readRate("network_gbps", gpu.networkGbps);
  reader.readRate("all_reduce_us", gpu.allReduceMicroseconds);
  reader.readRate("host_link_gbps", gpu.hostLinkGbps);
  QLORA_RETURN_IF_ERROR(reader.finish());
  return gpu;
}

static StatusOr<CpuKernelRates> readKernelRates(ProfileReader reader) {
  CpuKernelRates rates;
  reader.readRate("panel_f32_gflops", rates.panelF32Gflops);
  reader.readRate("panel_bf16_gflops", rates.panelBf16Gflops);
  reader.readRate("attention_f32_gflops", rates.attentionF32Gflops);
  reader.readRate("attention_bf16_gflops", rates.attentionBf16Gflops);
  reader.readRate("pack_gbps", rates.packGbps);
  QLORA_RETURN_IF_ERROR(reader.finish());
  return rates;
}

static StatusOr<LinkRate> readLink(ProfileReader reader) {
  LinkRate link;
  reader.readRate("message_us", link.messageMicroseconds);
  reader.readRate("gbps", link.gbps);
  QLORA_RETURN_IF_ERROR(reader.finish());
  return link;
}

static StatusOr<RankLinks> readLinks(ProfileReader reader) {
  RankLinks links;
  const std::pair<const char *, std::optional<LinkRate> *> kinds[] = {
      {"window", &links.window},
      {"sockets", &links.sockets},
      {"network", &links.network}};
  for (const auto &[key, link] : kinds) {
    std::optional<ProfileReader> inner = reader.takeObject(key);
    if (!inner)
      continue;
    if (link == &links.network)
      inner->readCount("ranks_per_node", links.ranksPerNode);
    QLORA_ASSIGN_OR_RETURN(*link, readLink(std::move(*inner)));
  }
  QLORA_RETURN_IF_ERROR(reader.finish());
  return links;
}

/// Defaults come from an AVX-512 server: panels reach 0.35 to 1 of the GEMM
/// rate in f32, 0.83 to 0.97 in bf16; packing is as fast as copies.
CpuKernelRates DeviceProfile::cpuKernels() const {
  if (kernels)
    return *kernels;
  return {0.65 * gemmF32Gflops, 0.88 * gemmBf16Gflops, 0.35 * gemmF32Gflops,
          0.35 * gemmF32Gflops, copyGbps};
}

/// Parses "400Gb" or "50GB", with an optional "/s" or "ps", as 10^9 bytes/s.
static std::optional<double> parseRate(std::string_view text) {
  for (std::string_view end : {"/s", "ps"})
    if (text.ends_with(end))
      text.remove_suffix(end.size());
  double value = 0;
  const auto [unit, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view name(unit, text.data() + text.size());
  if (error != std::errc() || !(value > 0) || !std::isfinite(value) ||
      (name != "Gb" && name != "GB"))
    return std::nullopt;
  return name == "Gb" ? value / 8 : value;
}

Status DeviceProfile::describeNetwork(int64_t gpusPerNode,
                                      const std::string &network) {
  if (gpusPerNode > 0)
    gpu->gpusPerNode = gpusPerNode;
  if (network.empty())
    return Status::ok();
  const std::optional<double> rate = parseRate(network);
  if (!rate)
    return Status::invalid(
        "--network {}: expects the bandwidth per second of each GPU's link to "
        "other machines, such as 400Gb (bits) or 50GB (bytes)",
        network);
  gpu->networkGbps = kReachedOfLink * *rate;
  return Status::ok();
}

double AttentionRate::seconds(double flops, double flopsPerKey) const {
  // Keys that a causal query sees on average, for 2,048 and 8,192 tokens.
  constexpr double kKeys2k = (2048 + 1) / 2.0, kKeys8k = (8192 + 1) / 2.0;
  // The time per FLOP is limit + more / keys. at2k and at8k determine both.
  const double more = (1 / at2k - 1 / at8k) / (1 / kKeys2k - 1 / kKeys8k);
  const double limit = 1 / at8k - more / kKeys8k;
  return 1e-9 * (limit * flops + more * flopsPerKey);
}

DeviceProfile qlora::lowRates(DeviceProfile device) {
  if (!device.gpu)
    return device;
  GpuRates &gpu = *device.gpu;
  for (double *rate : {&device.gemmF32Gflops, &device.gemmBf16Gflops})
    *rate *= kLowProducts;
  for (AttentionRates *rates : {&gpu.cudnnAttention, &gpu.cudaAttention})
    for (AttentionRate *rate : {&rates->forward, &rates->backward}) {
      rate->at2k *= kLowProducts;
      rate->at8k *= kLowProducts;
    }
  for (double *rate : {&device.copyGbps, &device.decodeGbps, &gpu.thinGemmGbps})
    *rate *= kLowMemory;
  return device;
}

StatusOr<DeviceProfile> qlora::readDeviceProfile(const std::string &path) {
  auto text = readWholeFile(path);
  if (!text.isOk())
    return Status::notFound(
        "{}: cannot be read; write it with qlora-run --calibrate", path);
  nlohmann::json json =
      nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return Status::invalid("{}: is not a JSON object", path);
  ProfileReader reader(path, std::move(json));
  DeviceProfile profile;
  reader.readText("cpu", profile.cpu);
  reader.readCount("cores", profile.cores);
  reader.readRate("gemm_f32_gflops", profile.gemmF32Gflops);
  reader.readRate("gemm_bf16_gflops", profile.gemmBf16Gflops);
  reader.readRate("copy_gbps", profile.copyGbps);
  reader.readRate("decode_gbps", profile.decodeGbps);
  std::optional<ProfileReader> kernels = reader.takeObject("kernels");
  std::optional<ProfileReader> links = reader.takeObject("links");
  std::optional<ProfileReader> gpu = reader.takeObject("gpu");
  QLORA_RETURN_IF_ERROR(reader.finish());
  if (kernels) {
    QLORA_ASSIGN_OR_RETURN(profile.kernels,
                           readKernelRates(std::move(*kernels)));
  }
  if (links) {
    QLORA_ASSIGN_OR_RETURN(profile.links, readLinks(std::move(*links)));
  }
  if (gpu) {
    QLORA_ASSIGN_OR_RETURN(profile.gpu, readGpuRates(std::move(*gpu)));
  }
  return profile;
}
