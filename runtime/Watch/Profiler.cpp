// SPDX-License-Identifier: MIT

// Starts and ends profiling, and writes the trace. Events are written as they
// come, so a trace is never in memory as a whole.

#include "runtime/Watch/Profiler.h"

#include <utility>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Device/Device.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Bytes per write.
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

void TraceFile::addEvent(const json &event) {
  write(isFirst ? "\n" : ",\n");
  isFirst = false;
  write(dumpJson(event));
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
  write("\n],\n\"otherData\": " + dumpJson(otherData) + "}\n");
  writePending();
  QLORA_RETURN_IF_ERROR(status);
  return file.commit();
}

/// Returns the track of a queue; track 0 is the host's.
static int trackOf(uint8_t queue) { return 1 + queue; }

StatusOr<std::unique_ptr<Profiler>>
Profiler::open(const ProfileRequest &request, const ProfiledRun &run,
               int64_t totalSteps) {
  if (totalSteps < request.warmup + request.active)
    return Status::invalid(
        "--profile: needs {} steps after {} warm-up steps, but the run has {}. "
        "Fix: lower --profile-active or --profile-warmup, or raise --max-steps",
        request.active, request.warmup, totalSteps);
  auto rates = deviceProfileOrDefault(
      request.rates,
      run.module.table().target == QLORA_TARGET_CUDA ? "cuda" : "cpu");
  if (!rates.isOk())
    return rates.status().withContext("--device-profile");
  std::unique_ptr<Profiler> profiler(new Profiler(request, run, *rates));
  if (run.group.rank() == 0) {
    auto trace = TraceFile::open(request.path);
    if (!trace.isOk())
      return trace.status().withContext("--profile");
    profiler->trace = std::move(trace).value();
  }
  return profiler;
}

void Profiler::add(HostWork work, int64_t start, int64_t end) {
  own.host.push_back({work, step, start - began, end - began});
  step += work == HostWork::kStep;
}

Status Profiler::startAfter(int64_t done) {
  if (active || done != request.warmup)
    return Status::ok();
  QLORA_RETURN_IF_ERROR(run.device.startTiming());
  QLORA_RETURN_IF_ERROR(run.group.collectives().barrier());
  began = steadyNanoseconds();
  step = done + 1;
  active = true;
  return Status::ok();
}

Status Profiler::finishAfter(int64_t done, bool isEnd) {
  if (active && (isEnd || done == request.warmup + request.active)) {
    active = false;
    QLORA_RETURN_IF_ERROR(take());
    return write();
  }
  const bool comesNever = isEnd && done <= request.warmup;
  if (comesNever && run.metrics)
    run.metrics->warn(fmt::format(
        "'{}' is not written: the run ended before the profiled steps",
        request.path));
  return Status::ok();
}

Status Profiler::take() {
  QLORA_ASSIGN_OR_RETURN(own.commands, run.device.finishTiming());
  for (TimedCommand &command : own.commands) {
    command.start -= began;
    command.end -= began;
  }
  return Status::ok();
}

static json argsOf(const CommandMetadata &facts, const TimedCommand &timed,
                   const LoadedModule &module) {
  const qlora_entry &entry = module.entries()[timed.entry];
  const double seconds = double(timed.end - timed.start) * 1e-9;
  json args = {{"entry", entryKindName(entry.kind)},
               {"command", timed.command - entry.first_command}};
  if (!facts.kernel.empty())
    args["kernel"] = facts.kernel;
  if (facts.bytes > 0)
    args["bytes"] = facts.bytes;
  if (facts.flops > 0)
    args["flops"] = facts.flops;
  if (seconds <= 0)
    return args;
  if (facts.bytes > 0)
    args["GB/s"] = facts.bytes / seconds * 1e-9;
  if (facts.flops > 0)
    args["GFLOP/s"] = facts.flops / seconds * 1e-9;
  if (facts.boundSeconds > 0)
    args["share of the profile's rates"] = facts.boundSeconds / seconds;
  return args;
}

void Profiler::writeRank(int rank, const RankProfile &profile,
                         ProfileTable *table, const LoadedModule &module,
                         CommandMetadataTable &facts) {
  trace->nameProcess(rank, fmt::format("rank {}", rank));
  trace->nameTrack(rank, 0, "host");
  for (uint8_t queue = 0; queue < QLORA_QUEUE_COUNT; ++queue)
    trace->nameTrack(rank, trackOf(queue), queueName(queue));
  for (const HostSpan &span : profile.host) {
    trace->add({rank, 0, hostWorkName(span.work), "host", span.start, span.end,
                json{{"step", span.step}}});
    if (table)
      table->add(span);
  }
  for (const TimedCommand &timed : profile.commands) {
    const CommandMetadata known = facts.of(timed);
    trace->add({rank, trackOf(known.queue), known.name, known.kind, timed.start,
                timed.end, argsOf(known, timed, module)});
    const bool isOfStep =
        module.entries()[timed.entry].kind != QLORA_ENTRY_EVALUATE;
    if (table && isOfStep)
      table->add(known, double(timed.end - timed.start) * 1e-9);
  }
}

/// Broadcasts the profile `own` of rank `rank`. All ranks call this.
static StatusOr<RankProfile> shareProfile(RankGroup &group, int rank,
                                   const RankProfile &own) {
  RankProfile none;
  const RankProfile &mine = group.rank() == rank ? own : none;
  QLORA_ASSIGN_OR_RETURN(auto commands,
                         group.collectives().allGatherValues(
                             std::span<const TimedCommand>(mine.commands)));
  QLORA_ASSIGN_OR_RETURN(auto host, group.collectives().allGatherValues(
                                        std::span<const HostSpan>(mine.host)));
  const auto from = static_cast<size_t>(rank);
  return RankProfile{std::move(commands[from]), std::move(host[from])};
}

Status Profiler::write() {
  ProfileTable table;
  std::vector<LoadedModule> stages;
  for (int number = 0; number < run.module.stages(); ++number)
    stages.push_back(run.module.ofStage(number));
  std::vector<CommandMetadataTable> facts;
  for (const LoadedModule &stage : stages)
    facts.emplace_back(
        stage, stage.stage() == run.module.stage() ? &run.device : nullptr,
        rates, run.group.size());
  for (int rank = 0; rank < run.group.size(); ++rank) {
    const auto stage =
        static_cast<size_t>(run.group.mesh().number(QLORA_GROUP_PP, rank));
    QLORA_ASSIGN_OR_RETURN(const RankProfile profile,
                           shareProfile(run.group, rank, own));
    if (trace)
      writeRank(rank, profile, rank == 0 ? &table : nullptr, stages[stage],
                facts[stage]);
  }
  own = {};
  if (!trace)
    return Status::ok();
  const RatesOrigin origin = originOf(rates, request.rates);
  QLORA_RETURN_IF_ERROR(trace->commit(table.toJson(rates, origin)));
  trace.reset();
  run.metrics->say(table.text(rates, origin) + "\n" +
                   kernelsText(run.module, run.device) +
                   fmt::format("  written to '{}'", request.path));
  return Status::ok();
}

} // namespace qlora
