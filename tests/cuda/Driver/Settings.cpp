// SPDX-License-Identifier: MIT

// Reads the environment once, at the first call.

#include "tests/cuda/Driver/Settings.h"

#include "runtime/Base/JsonText.h"
#include "tests/cuda/Driver/Api.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace qlora::platform {

namespace {
constexpr int kKill = -1; ///< instead of an error code: kills the process
struct Injection {
  uint64_t call;
  int code;
};

/// Counters, which are written when the process ends.
struct Counters {
  std::map<std::string, uint64_t, std::less<>> counts;
  std::multimap<std::string, Injection, std::less<>> injections;
  Counters();
  ~Counters();
};
} // namespace

[[noreturn]] static void reject(std::string_view variable,
                                std::string_view value) {
  fmt::print(stderr, "cuda-platform: cannot read {}={}\n", variable, value);
  std::_Exit(2);
}

static std::string_view environment(const char *variable,
                                    std::string_view otherwise) {
  const char *value = std::getenv(variable);
  return value ? value : otherwise;
}

static std::vector<std::string_view> split(std::string_view text,
                                           char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos)
      return parts;
    text.remove_prefix(end + 1);
  }
}

static uint64_t number(const char *variable, std::string_view text) {
  uint64_t value = 0;
  const char *end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || last != end)
    reject(variable, text);
  return value;
}

/// Removes a suffix like "@1"; returns whether the text applies to this rank.
static bool isForThisRank(std::string_view &text) {
  const size_t at = text.find('@');
  if (at == std::string_view::npos)
    return true;
  const std::string_view rank = text.substr(at + 1);
  text = text.substr(0, at);
  return rank == environment("RANK", "0");
}

/// Returns the `count` numbers of a value like "3:2@1"; zeros if the value does
/// not apply to this process.
static std::vector<uint64_t> readNumbers(const char *variable, size_t count) {
  std::string_view text = environment(variable, "");
  std::vector<uint64_t> numbers;
  if (text.empty() || !isForThisRank(text))
    return std::vector<uint64_t>(count);
  for (const std::string_view part : split(text, ':'))
    numbers.push_back(number(variable, part));
  if (numbers.size() != count)
    reject(variable, text);
  return numbers;
}

static std::vector<Gpu> readGpus() {
  constexpr const char *kVariable = "QLORA_TEST_CUDA_DEVICES";
  const std::string_view text = environment(kVariable, "sm_90:4096");
  std::vector<Gpu> gpus;
  if (text == "none")
    return gpus;
  for (const std::string_view part : split(text, ',')) {
    const auto fields = split(part, ':');
    if (fields.size() != 2 || !fields[0].starts_with("sm_"))
      reject(kVariable, text);
    gpus.push_back({int(number(kVariable, fields[0].substr(3))),
                    size_t(number(kVariable, fields[1])) << 20});
  }
  return gpus;
}

static std::vector<Process> readProcesses() {
  constexpr const char *kVariable = "QLORA_TEST_CUDA_PROCESSES";
  const std::string_view text = environment(kVariable, "");
  std::vector<Process> processes;
  if (text.empty())
    return processes;
  for (const std::string_view part : split(text, ',')) {
    const auto fields = split(part, ':');
    if (fields.size() != 4)
      reject(kVariable, text);
    processes.push_back({int(number(kVariable, fields[0])),
                         unsigned(number(kVariable, fields[1])),
                         std::string(fields[2]),
                         size_t(number(kVariable, fields[3])) << 20});
  }
  return processes;
}

std::string pciBusIdOf(int gpu) {
  return fmt::format("0000:{:02X}:00.0", gpu + 1);
}

size_t bytesOfOthers(int gpu) {
  size_t bytes = 0;
  for (const Process &process : settings().processes)
    bytes += process.gpu == gpu ? process.bytes : 0;
  return bytes;
}

static int readVersion(const char *variable, const char *otherwise) {
  return int(number(variable, environment(variable, otherwise)));
}

const Settings &settings() {
  static const Settings settings = [] {
    const auto async = readNumbers("QLORA_TEST_CUDA_ASYNC", 2);
    const auto delay = readNumbers("QLORA_TEST_CUDA_DELAY", 2);
    const uint64_t rank = number("RANK", environment("RANK", "0"));
    return Settings{readGpus(),
                    readProcesses(),
                    number("QLORA_TEST_CUDA_SEED",
                           environment("QLORA_TEST_CUDA_SEED", "1")),
                    readVersion("QLORA_TEST_CUDA_VERSION", "13000"),
                    readVersion("QLORA_TEST_CUDA_NCCL", "22809"),
                    readVersion("QLORA_TEST_CUDA_BLAS", "130000"),
                    readVersion("QLORA_TEST_CUDA_CUDNN", "92801"),
                    readVersion("QLORA_TEST_CUDA_SCORES", "1") != 0,
                    readNumbers("QLORA_TEST_CUDA_SPEEDS", 1)[0],
                    async[0],
                    int(async[1]),
                    readNumbers("QLORA_TEST_CUDA_HANG", 1)[0],
                    delay[0] + (rank << 32),
                    delay[1],
                    environment("CUDA_MODULE_LOADING", "LAZY") == "EAGER"};
  }();
  return settings;
}

Counters::Counters() {
  constexpr const char *kVariable = "QLORA_TEST_CUDA_FAIL";
  const std::string_view text = environment(kVariable, "");
  if (text.empty())
    return;
  for (std::string_view part : split(text, ',')) {
    const bool isOurs = isForThisRank(part);
    const auto fields = split(part, ':');
    if (fields.size() != 3)
      reject(kVariable, text);
    const int code =
        fields[2] == "kill" ? kKill : int(number(kVariable, fields[2]));
    if (isOurs)
      injections.insert(
          {std::string(fields[0]), {number(kVariable, fields[1]), code}});
  }
}

Counters::~Counters() {
  std::string path(environment("QLORA_TEST_CUDA_REPORT", ""));
  if (path.empty())
    return;
  if (const size_t at = path.find("{pid}"); at != std::string::npos)
    path.replace(at, 5, std::to_string(getpid()));
  std::ofstream(path) << dumpJson(nlohmann::json(counts), 1) << '\n';
}

static Counters &counters() {
  static Counters counters;
  return counters;
}

/// Returns the error code that a FaultSweep of the test program injects, or 0.
static int faultOfProgram(const std::string &name) {
  static const auto ask = reinterpret_cast<int (*)(const char *)>(
      dlsym(RTLD_DEFAULT, "qloraPlatformFault"));
  return ask ? ask(name.c_str()) : 0;
}

int countAndInject(std::string_view name) {
  const std::lock_guard lock(platformMutex());
  Counters &all = counters();
  auto found = all.counts.find(name);
  if (found == all.counts.end())
    found = all.counts.emplace(std::string(name), 0).first;
  const uint64_t call = ++found->second;
  const auto [begin, end] = all.injections.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    if (it->second.call != call)
      continue;
    if (it->second.code == kKill)
      raise(SIGKILL);
    return it->second.code;
  }
  return faultOfProgram(found->first);
}

bool wantsReport() {
  return !environment("QLORA_TEST_CUDA_REPORT", "").empty();
}

void countEvent(std::string_view name, uint64_t by) {
  const std::lock_guard lock(platformMutex());
  auto &counts = counters().counts;
  const auto found = counts.find(name);
  if (found == counts.end())
    counts.emplace(std::string(name), by);
  else
    found->second += by;
}

void explain(std::string_view message) {
  fmt::print(stderr, "cuda-platform: {}\n", message);
}

uint64_t nextRandom() {
  const std::lock_guard lock(platformMutex());
  static uint64_t state = settings().seed;
  return mix(state);
}

uint64_t mix(uint64_t &state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u); // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

} // namespace qlora::platform
