// SPDX-License-Identifier: MIT

// When to profile, and what becomes of it.

#include "runtime/Watch/Profiler.h"

#include <utility>

#include "runtime/Device/Device.h"
#include "runtime/Predict/CommandFacts.h"
#include "runtime/Watch/ProfileTable.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// The host's track is the first one.
static int trackOf(uint8_t queue) { return 1 + queue; }

StatusOr<std::unique_ptr<Profiler>>
Profiler::open(const ProfileRequest &request, const ProfiledRun &run,
               int64_t totalSteps) {
  if (totalSteps < request.warmup + request.active)
    return Status::invalid(
        "--profile: {} steps after {} others, but the run has {}; give fewer "
        "with --profile-active and --profile-warmup, or train more",
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
    run.metrics->warn(fmt::format("'{}' is not written: the run ended before "
                                  "the steps to be profiled",
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

static json argsOf(const CommandFacts &facts, const TimedCommand &timed,
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
                         ProfileTable *table, CommandFactsTable &facts) {
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
    const CommandFacts known = facts.of(timed);
    trace->add({rank, trackOf(known.queue), known.name, known.kind, timed.start,
                timed.end, argsOf(known, timed, run.module)});
    const bool isOfStep =
        run.module.entries()[timed.entry].kind != QLORA_ENTRY_EVALUATE;
    if (table && isOfStep)
      table->add(known, double(timed.end - timed.start) * 1e-9);
  }
}

Status Profiler::write() {
  ProfileTable table;
  CommandFactsTable facts(run.module, run.device, rates, run.group.size());
  for (int rank = 0; rank < run.group.size(); ++rank) {
    QLORA_ASSIGN_OR_RETURN(const RankProfile profile,
                           shareProfile(run.group, rank, own));
    if (trace)
      writeRank(rank, profile, rank == 0 ? &table : nullptr, facts);
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
