// SPDX-License-Identifier: MIT

// A timeline in Chrome's trace event format, for ui.perfetto.dev and
// chrome://tracing: processes with tracks, and slices on them.
//
//   {"displayTimeUnit": "ms", "traceEvents": [
//     {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {...}},
//     {"ph": "X", "name": "...", "cat": "...", "pid": 0, "tid": 1,
//      "ts": 12.5, "dur": 3.25, "args": {...}}],
//    "otherData": {...}}
//
// Times are in microseconds. Slices of a track follow or contain each other.

#ifndef QLORA_RUNTIME_WATCH_TRACEFILE_H
#define QLORA_RUNTIME_WATCH_TRACEFILE_H

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/Status.h"

namespace qlora {

struct TraceSlice {
  int process = 0, track = 0;
  std::string_view name, category;
  int64_t start = 0, end = 0; ///< nanoseconds
  nlohmann::ordered_json args = nlohmann::ordered_json::object();
};

class TraceFile {
public:
  /// Until commit() a file of an earlier run stays. An error says why `path`
  /// cannot be written.
  static StatusOr<std::unique_ptr<TraceFile>> open(const std::string &path);
  /// Names, in the order of the numbers; before the slices or after them.
  void nameProcess(int process, std::string_view name);
  void nameTrack(int process, int track, std::string_view name);
  void add(const TraceSlice &slice);
  /// Ends the file and puts it at its place. An error of any write before is
  /// reported here.
  Status commit(const nlohmann::ordered_json &otherData);

private:
  explicit TraceFile(AtomicFile file) : file(std::move(file)) {}
  void addEvent(const nlohmann::ordered_json &event);
  void write(std::string_view text);
  void writePending();

  AtomicFile file;
  std::string pending; ///< not yet written
  Status status;
  bool isFirst = true;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_TRACEFILE_H
