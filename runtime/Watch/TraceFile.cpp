// SPDX-License-Identifier: MIT

// Events as they come: a trace is never whole in memory.

#include "runtime/Watch/TraceFile.h"

#include "runtime/Base/UserFiles.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Written at a time.
static constexpr size_t kPendingBytes = size_t{1} << 16;

StatusOr<std::unique_ptr<TraceFile>> TraceFile::open(const std::string &path) {
  QLORA_RETURN_IF_ERROR(checkOutputFile(path));
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  std::unique_ptr<TraceFile> trace(new TraceFile(std::move(file)));
  trace->write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  return trace;
}

void TraceFile::write(std::string_view text) {
  pending += text;
  if (pending.size() >= kPendingBytes)
    writePending();
}

void TraceFile::writePending() {
  if (status.isOk())
    status = file.write(pending);
  pending.clear();
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
  writePending();
  QLORA_RETURN_IF_ERROR(status);
  return file.commit();
}

} // namespace qlora
