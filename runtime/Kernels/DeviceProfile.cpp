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

  void readRate(const char *key, double &value) {
    if (!has(key))
      return;
    const nlohmann::json &found = json[key];
    if (!found.is_number() || !(found.get<double>() > 0))
      return fail("key '{}' is {}, but has to be a positive number", key,
                  found.dump());
    value = found.get<double>();
    json.erase(key);
  }

  void readCount(const char *key, int64_t &value) {
    if (!has(key))
      return;
    const nlohmann::json &found = json[key];
    if (!found.is_number_integer() || found.get<int64_t>() < 1)
      return fail("key '{}' is {}, but has to be a positive integer", key,
                  found.dump());
    value = found.get<int64_t>();
    json.erase(key);
  }

  void readText(const char *key, std::string &value) {
    if (!has(key))
      return;
    if (!json[key].is_string())
      return fail("key '{}' is {}, but has to be a string", key,
                  json[key].dump());
    value = json[key].get<std::string>();
    json.erase(key);
  }

  Status finish() {
    if (status.isOk() && !json.empty())
      fail("unknown key '{}'", json.begin().key());
    return status;
  }

private:
  bool has(const char *key) {
    if (status.isOk() && !json.contains(key))
      fail("key '{}' is missing; write the file again with qlora-run "
           "--calibrate",
           key);
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
  nlohmann::json json;
  Status status;
};

} // namespace

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
  QLORA_RETURN_IF_ERROR(reader.finish());
  return profile;
}

/// What large GEMMs and copies reach of an H100 SXM's published rates; decoding
/// runs at copy speed, 4.5 bytes moved for each number of 4.
static DeviceProfile defaultCudaProfile() {
  DeviceProfile profile;
  profile.cpu = "H100 SXM";
  profile.cores = 132;
  profile.gemmF32Gflops = 50e3;
  profile.gemmBf16Gflops = 650e3;
  profile.copyGbps = 2800.0;
  profile.decodeGbps = 2500.0;
  return profile;
}

StatusOr<DeviceProfile>
qlora::deviceProfileOrDefault(const std::string &path,
                              const std::string &target) {
  if (!path.empty())
    return readDeviceProfile(path);
  return target == "cuda" ? defaultCudaProfile() : DeviceProfile();
}
