// SPDX-License-Identifier: MIT

// Runs each training of a sweep on its own thread.

#include "runtime/Extras/Sweep.h"

#include <malloc.h>
#include <signal.h>

#include <algorithm>
#include <latch>
#include <mutex>
#include <thread>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/Exceptions.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Device/Cpu/SweepTurns.h"
#include "runtime/Session/OutputFolder.h"
#include "runtime/Session/Session.h"
#include "runtime/Watch/RunComparison.h"

namespace qlora {

namespace {
/// A run before it starts.
struct SweepRun {
  std::string name;
  SessionRequest request;
  std::string outputs = {}; ///< --output-dir that all runs share
  bool asJson = false;
  // Planned bytes: the base and workspace that runs share, and the rest.
  uint64_t baseBytes = 0, workspaceBytes = 0, ownBytes = 0;
  StatusOr<int> end = 0;

  std::string folder() const { return outputs + "/" + name; }
};
} // namespace

static Status checkSweep(const SweepRequest &request) {
  const auto refuse = [](const char *what) {
    return Status::invalid(
        "--sweep trains all runs in one process and does not support {}. Fix: "
        "qlora compare --sweep, which trains one run after another",
        what);
  };
  if (request.ranks > 1)
    return refuse("several ranks");
  if (!request.common.profile.path.empty())
    return refuse("--profile");
  if (!request.common.dumpFile.empty())
    return refuse("--dump");
  return Status::ok();
}

static Status checkRun(const LoadedRequest &loaded) {
  if (loaded.module.table().target != QLORA_TARGET_CPU)
    return Status::invalid(
        "'{}' was compiled for cuda, but --sweep supports CPUs only. Fix: "
        "qlora compare --sweep, which trains one run after another",
        loaded.module.path());
  if (const int ranks = loaded.module.meshSize(); ranks > 1)
    return Status::invalid("'{}' was compiled for {} ranks, but --sweep runs "
                           "on one. Fix: compile without --parallel",
                           loaded.module.path(), ranks);
  if (loaded.options.boolean("push_to_hub"))
    return Status::invalid(
        "--push-to-hub would push all runs of a --sweep to one name. Fix: "
        "leave it out, and push the best run with hf upload");
  return Status::ok();
}

/// Loads the first module that was compiled for the run's values.
static StatusOr<LoadedRequest> loadFirst(const SweepRequest &request,
                                         SweepRun &run) {
  Status refused;
  for (const std::string &module : request.modules) {
    run.request.modulePath = module;
    auto loaded = loadRequest(run.request);
    if (loaded.isOk())
      return loaded;
    if (refused.isOk())
      refused = loaded.status();
  }
  return refused;
}

static StatusOr<SweepRun> prepareRun(const SweepRequest &request,
                                     const SweepPoint &point) {
  SweepRun run{.name = point.name(), .request = request.common};
  const std::span<const OptionRow> tables[] = {optionTable()};
  QLORA_ASSIGN_OR_RETURN(const auto settings, point.settings(tables));
  std::vector<OptionSetting> &all = run.request.settings;
  all.insert(all.end(), settings.begin(), settings.end());
  QLORA_ASSIGN_OR_RETURN(LoadedRequest loaded, loadFirst(request, run));
  QLORA_RETURN_IF_ERROR(checkRun(loaded));
  run.outputs = loaded.options.text("output_dir");
  run.asJson = loaded.options.text("log_format") == "json";
  all.push_back({findOption(optionTable(), "output_dir"), run.folder(),
                 "--output-dir"});
  QLORA_RETURN_IF_ERROR(loaded.options.applySettings({&all.back(), 1}));
  QLORA_RETURN_IF_ERROR(checkOutputFolder(loaded.options));
  for (const qlora_arena &arena : loaded.module.arenas())
    run.ownBytes += arena.bytes;
  run.baseBytes = loaded.module.arenaBytes(QLORA_ARENA_FROZEN);
  run.workspaceBytes = loaded.module.arenaBytes(QLORA_ARENA_WORKSPACE);
  run.ownBytes -= run.baseBytes + run.workspaceBytes;
  return run;
}

static uint64_t workspaceOf(const std::vector<SweepRun> &runs) {
  uint64_t bytes = 0;
  for (const SweepRun &run : runs)
    bytes = std::max(bytes, run.workspaceBytes);
  return bytes;
}

static void announce(const std::vector<SweepRun> &runs) {
  if (runs[0].asJson)
    return;
  uint64_t base = 0, own = 0;
  std::string lines;
  for (const SweepRun &run : runs) {
    base = std::max(base, run.baseBytes);
    own += run.ownBytes;
    lines += fmt::format("         {}: {} besides the base, in {}\n", run.name,
                         formatBytes(run.ownBytes), shownPath(run.folder()));
  }
  fmt::print("sweep    {} runs share one base of {}; {} planned\n{}\n",
             runs.size(), formatBytes(base),
             formatBytes(base + workspaceOf(runs) + own), lines);
}

/// Trains all runs in threads. This thread waits and receives the signals.
static Status trainAll(const SweepRequest &request, const RankEnvironment &env,
                       std::vector<SweepRun> &runs) {
  mallopt(M_ARENA_MAX, 1); // one thread works at a time
  SweepTurns turns(runs.size());
  QLORA_RETURN_IF_ERROR(turns.allocateWorkspace(workspaceOf(runs)));
  SharedBase base;
  std::mutex reporting;
  std::latch ready(1); // starts all runs at once
  Status started;
  const auto train = [&](size_t number) {
    ready.wait();
    if (!started.isOk())
      return;
    SweepRun &run = runs[number];
    const SweepPart part{run.name, turns, number, base};
    run.request.sweep = &part;
    turns.begin(number);
    run.end = endExceptions(run.name, [&] {
      return runSession(run.request, env, FileDescriptor());
    });
    turns.leave(number);
    run.request.sweep = nullptr;
    const std::scoped_lock lock(reporting);
    if (!run.end.isOk())
      request.report(run.end.status().withContext(run.name));
  };
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::vector<std::thread> threads;
  started = endExceptions("a thread for each run", [&] {
    for (size_t i = 0; i < runs.size(); ++i)
      threads.emplace_back(train, i);
    threads.emplace_back([&turns] { turns.runEntries(); });
    return Status::ok();
  });
  ready.count_down();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (std::thread &thread : threads)
    thread.join();
  return started;
}

/// Compares the runs that have logged something.
static Status compare(const std::vector<SweepRun> &runs) {
  std::vector<RunFolder> folders;
  for (const SweepRun &run : runs)
    if (auto folder = RunFolder::read(run.folder()); folder.isOk())
      folders.push_back(std::move(*folder));
  if (folders.empty())
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(
      const std::string table,
      writeComparison(folders, runs[0].outputs + "/compare.html"));
  if (!runs[0].asJson)
    fmt::print("\n{}", table);
  return Status::ok();
}

StatusOr<int> runSweep(const SweepRequest &request,
                       const RankEnvironment &env) {
  QLORA_RETURN_IF_ERROR(checkSweep(request));
  std::vector<SweepRun> runs;
  for (const SweepPoint &point : sweepPoints(request.axes)) {
    auto run = prepareRun(request, point);
    if (!run.isOk())
      return run.status().withContext(point.name());
    runs.push_back(std::move(*run));
  }
  announce(runs);
  QLORA_RETURN_IF_ERROR(trainAll(request, env, runs));
  QLORA_RETURN_IF_ERROR(compare(runs));
  int code = 0;
  for (SweepRun &run : runs)
    code = std::max(code, run.end.isOk() ? *run.end : 1);
  return code;
}

} // namespace qlora
