// SPDX-License-Identifier: MIT

// Reads device.json (DeviceProfile.h).

#include "runtime/Kernels/DeviceProfile.h"

#include <fstream>

#include <nlohmann/json.hpp>

using namespace qlora;

namespace {

/// Takes keys out of an object; the first problem is kept.
class ProfileReader {
public:
  ProfileReader(const std::string &path, nlohmann::json json)
      : path(path), json(std::move(json)) {}

  /// The object of an optional key, taken out of this one.
  std::optional<ProfileReader> takeObject(const char *key) {
    if (!status.isOk() || !json.contains(key))
      return std::nullopt;
    if (!json[key].is_object()) {
      fail("key '{}' is {}, but has to be an object", key, json[key].dump());
      return std::nullopt;
    }
    ProfileReader inner(path, json[key]);
    inner.prefix = std::string(key) + ".";
    json.erase(key);
    return inner;
  }

  void readRate(const char *key, double &value) {
    if (!has(key))
      return;
    const nlohmann::json &found = json[key];
    if (!found.is_number() || !(found.get<double>() > 0))
      return fail("key '{}{}' is {}, but has to be a positive number", prefix, key,
                  found.dump());
    value = found.get<double>();
    json.erase(key);
  }

  void readCount(const char *key, int64_t &value) {
    if (!has(key))
      return;
    const nlohmann::json &found = json[key];
    if (!found.is_number_integer() || found.get<int64_t>() < 1)
      return fail("key '{}{}' is {}, but has to be a positive integer", prefix, key,
                  found.dump());
    value = found.get<int64_t>();
    json.erase(key);
  }

  void readText(const char *key, std::string &value) {
    if (!has(key))
      return;
    if (!json[key].is_string())
      return fail("key '{}{}' is {}, but has to be a string", prefix, key,
                  json[key].dump());
    value = json[key].get<std::string>();
    json.erase(key);
  }

  Status finish() {
    if (status.isOk() && !json.empty())
      fail("unknown key '{}{}'", prefix, json.begin().key());
    return status;
  }

private:
  bool has(const char *key) {
    if (status.isOk() && !json.contains(key))
      fail("key '{}{}' is missing; {}", prefix, key,
           prefix == "gpu." ? "a GPU's profile has all keys of 'gpu'"
                            : "write the file again with qlora-run --calibrate");
    return status.isOk();
  }
  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args &&...args) {
    if (status.isOk())
      status = Status::invalid("{}: {}", path,
                               fmt::format(format,
                                           std::forward<Args>(args)...));
  }

  std::string path;
  std::string prefix; ///< of the keys, for messages
  nlohmann::json json;
  Status status;
};

} // namespace

static StatusOr<GpuRates> readGpuRates(ProfileReader reader) {
  GpuRates gpu;
  reader.readRate("memory_gb", gpu.memoryGb);
  reader.readRate("attention_forward_gflops", gpu.attentionForwardGflops);
  reader.readRate("attention_backward_gflops", gpu.attentionBackwardGflops);
  reader.readRate("function_gops", gpu.functionGops);
  reader.readRate("launch_us", gpu.launchMicroseconds);
  reader.readCount("gpus_per_node", gpu.gpusPerNode);
  reader.readRate("node_link_gbps", gpu.nodeLinkGbps);
  reader.readRate("network_gbps", gpu.networkGbps);
  reader.readRate("all_reduce_us", gpu.allReduceMicroseconds);
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

/// Shares as measured on an AVX-512 server: panels 0.35 to 1 in f32 and 0.83
/// to 0.97 in bf16; packing as fast as a copy.
CpuKernelRates DeviceProfile::cpuKernels() const {
  if (kernels)
    return *kernels;
  return {0.65 * gemmF32Gflops, 0.88 * gemmBf16Gflops, 0.35 * gemmF32Gflops,
          0.35 * gemmF32Gflops, copyGbps};
}

StatusOr<DeviceProfile> qlora::readDeviceProfile(const std::string &path) {
  std::ifstream file(path);
  if (!file)
    return Status::error(StatusCode::kNotFound,
                         "{}: cannot be read; make it with qlora-run "
                         "--calibrate",
                         path);
  nlohmann::json json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
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
  std::optional<ProfileReader> gpu = reader.takeObject("gpu");
  QLORA_RETURN_IF_ERROR(reader.finish());
  if (kernels) {
    QLORA_ASSIGN_OR_RETURN(profile.kernels,
                           readKernelRates(std::move(*kernels)));
  }
  if (gpu) {
    QLORA_ASSIGN_OR_RETURN(profile.gpu, readGpuRates(std::move(*gpu)));
  }
  return profile;
}
