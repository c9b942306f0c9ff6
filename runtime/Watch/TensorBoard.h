// SPDX-License-Identifier: MIT

// TensorBoard's event files, with the tags of transformers' Trainer:
// train/loss, train/learning_rate, eval/loss and so on.
//
// A file is a sequence of records (TFRecord):
//
//   u64 length, u32 masked CRC-32C of the length, data, u32 CRC of the data
//
// The data of each record is an Event of tensorflow/core/util/event.proto:
//
//   1 wall_time (double)   2 step (int64)   3 file_version (string)
//   5 summary: repeated 1 { 1 tag (string), 2 simple_value (float) }
//   7 session_log: { 1 status: START is 1 }
//
// A resumed run writes a new file, which begins with START at its first step.
// TensorBoard then ignores earlier files' values from this step on.

#ifndef QLORA_RUNTIME_WATCH_TENSORBOARD_H
#define QLORA_RUNTIME_WATCH_TENSORBOARD_H

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Watch/MetricsSink.h"

namespace qlora {

/// Returns the CRC-32C (Castagnoli, RFC 3720 B.4) as TFRecord masks it.
uint32_t maskedCrc32c(std::string_view bytes);

class TensorBoard final : public MetricsSink {
public:
  /// Creates `folder` and a file in it. The file starts at `firstStep`.
  static StatusOr<std::unique_ptr<TensorBoard>> open(const std::string &folder,
                                                     int64_t firstStep);

  Status log(const nlohmann::ordered_json &values) override;

private:
  TensorBoard(FileDescriptor file, std::string path)
      : file(std::move(file)), path(std::move(path)) {}
  Status writeEvent(int64_t step, std::string_view what);

  const FileDescriptor file;
  const std::string path;
};

/// Returns runs/Nov23_09-10-38_HOST in `outputFolder`, like transformers.
std::string defaultLoggingFolder(const std::string &outputFolder);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_TENSORBOARD_H
