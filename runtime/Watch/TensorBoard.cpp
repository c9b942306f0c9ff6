// SPDX-License-Identifier: MIT

// Writes records, events and tags.

#include "runtime/Watch/TensorBoard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "runtime/Ranks/Heartbeat.h"

namespace qlora {

/// Castagnoli's polynomial with its bits reversed.
static constexpr uint32_t kCastagnoli = 0x82f63b78u;

static constexpr std::array<uint32_t, 256> crcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ (value & 1 ? kCastagnoli : 0);
    table[i] = value;
  }
  return table;
}

uint32_t maskedCrc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crcTable();
  uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// Protocol buffers
// -----------------------------------------------------------------------

template <typename T> static std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

static std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7)
    bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

static std::string key(int field, WireType type) {
  return varint(static_cast<uint64_t>(field << 3 | type));
}

static std::string bytesField(int field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

static std::string scalar(std::string_view tag, float value) {
  return bytesField(1, bytesField(1, tag) + key(2, kFixed32) + raw(value));
}

// The file
// -----------------------------------------------------------------------

static double wallTime() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string defaultLoggingFolder(const std::string &outputFolder) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 64> date{};
  std::strftime(date.data(), date.size(), "%b%d_%H-%M-%S", &local);
  return fmt::format("{}/runs/{}_{}", outputFolder, date.data(), hostName());
}

static Status writeError(const std::string &path, int error) {
  return Status::unavailable("cannot write '{}': {}", path,
                             std::strerror(error));
}

StatusOr<std::unique_ptr<TensorBoard>>
TensorBoard::open(const std::string &folder, int64_t firstStep) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = fmt::format(
      "{}/events.out.tfevents.{}.{}.{}.0", folder,
      static_cast<int64_t>(wallTime()), hostName(), getpid());
  FileDescriptor file(::open(path.c_str(),
                             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.isOpen())
    return writeError(path, errno);
  std::unique_ptr<TensorBoard> board(new TensorBoard(std::move(file), path));
  QLORA_RETURN_IF_ERROR(board->writeEvent(0, bytesField(3, "brain.Event:2")));
  if (firstStep > 0)
    QLORA_RETURN_IF_ERROR(board->writeEvent(
        firstStep, bytesField(7, key(1, kVarint) + varint(1))));
  return board;
}

Status TensorBoard::writeEvent(int64_t step, std::string_view what) {
  std::string event = key(1, kFixed64) + raw(wallTime());
  if (step != 0)
    event += key(2, kVarint) + varint(static_cast<uint64_t>(step));
  event += what;
  const std::string size = raw(static_cast<uint64_t>(event.size()));
  const std::string record = size + raw(maskedCrc32c(size)) + event +
                             raw(maskedCrc32c(event));
  // A single write, so that a concurrent reader sees no partial record.
  const ssize_t put = write(file.get(), record.data(), record.size());
  if (put == static_cast<ssize_t>(record.size()))
    return Status::ok();
  return writeError(path, put < 0 ? errno : ENOSPC);
}

/// Returns the tag that transformers' rewrite_logs gives a metric.
static std::string tagOf(const std::string &name) {
  constexpr std::string_view kEvaluation = "eval_";
  return name.starts_with(kEvaluation)
             ? "eval/" + name.substr(kEvaluation.size())
             : "train/" + name;
}

Status TensorBoard::log(const nlohmann::ordered_json &values) {
  std::string summary;
  for (const auto &[name, value] : values.items())
    if (name != "step" && value.is_number())
      summary += scalar(tagOf(name), value.get<float>());
    else if (value.is_array())
      for (size_t i = 0; i < value.size(); ++i)
        if (value[i].is_number())
          summary += scalar(fmt::format("{}/{}", tagOf(name), i),
                            value[i].get<float>());
  return writeEvent(values.value("step", int64_t{0}), bytesField(5, summary));
}

} // namespace qlora
