// SPDX-License-Identifier: MIT

// Events as they come: a trace is never whole in memory.

#include "runtime/Watch/TraceFile.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace qlora {

using json = nlohmann::ordered_json;

static Status cannotWrite(const std::string &path, int error) {
  return Status::error(StatusCode::kUnavailable, "cannot write '{}': {}", path,
                       std::strerror(error));
}

StatusOr<std::unique_ptr<TraceFile>> TraceFile::open(const std::string &path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return cannotWrite(path, EISDIR);
  FILE *file = std::fopen((path + ".partial").c_str(), "we");
  if (!file)
    return cannotWrite(path, errno);
  std::unique_ptr<TraceFile> trace(new TraceFile(path, file));
  trace->write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  return trace;
}

TraceFile::~TraceFile() {
  if (!file)
    return;
  std::fclose(file);
  std::remove(partialPath().c_str());
}

void TraceFile::write(std::string_view text) {
  hasFailed |= std::fwrite(text.data(), 1, text.size(), file) != text.size();
}

/// A name that is not UTF-8 loses what is not.
static std::string textOf(const json &value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void TraceFile::addEvent(const json &event) {
  write(isFirst ? "\n" : ",\n");
  isFirst = false;
  write(textOf(event));
}

void TraceFile::nameProcess(int process, std::string_view name) {
  addEvent({{"ph", "M"},
            {"name", "process_name"},
            {"pid", process},
            {"args", {{"name", name}}}});
  addEvent({{"ph", "M"},
            {"name", "process_sort_index"},
            {"pid", process},
            {"args", {{"sort_index", process}}}});
}

void TraceFile::nameTrack(int process, int track, std::string_view name) {
  addEvent({{"ph", "M"},
            {"name", "thread_name"},
            {"pid", process},
            {"tid", track},
            {"args", {{"name", name}}}});
  addEvent({{"ph", "M"},
            {"name", "thread_sort_index"},
            {"pid", process},
            {"tid", track},
            {"args", {{"sort_index", track}}}});
}

void TraceFile::add(const TraceSlice &slice) {
  addEvent({{"ph", "X"},
            {"name", slice.name},
            {"cat", slice.category},
            {"pid", slice.process},
            {"tid", slice.track},
            {"ts", double(slice.start) / 1e3},
            {"dur", double(slice.end - slice.start) / 1e3},
            {"args", slice.args}});
}

Status TraceFile::commit(const json &otherData) {
  write("\n],\n\"otherData\": " + textOf(otherData) + "}\n");
  hasFailed |= std::fclose(std::exchange(file, nullptr)) != 0;
  if (hasFailed) {
    std::remove(partialPath().c_str());
    return Status::error(StatusCode::kResourceExhausted,
                         "cannot write '{}': is the disk full?", path);
  }
  if (std::rename(partialPath().c_str(), path.c_str()) != 0)
    return cannotWrite(path, errno);
  return Status::ok();
}

} // namespace qlora
