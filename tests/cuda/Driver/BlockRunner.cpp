// SPDX-License-Identifier: MIT

// The threads of one block and their scheduling. There is one global state,
// because launches run one at a time. Kernels call the engine's functions on
// the stack of the calling thread.

#include "tests/cuda/Driver/BlockRunner.h"

#include "tests/cuda/Driver/Codes.h"
#include "tests/cuda/Driver/Faults.h"
#include "tests/cuda/Driver/Fiber.h"
#include "tests/cuda/Driver/Memory.h"
#include "tests/cuda/Driver/SharedMemory.h"

#include <bit>
#include <fmt/format.h>

namespace qlora::platform {

namespace {
struct Thread {
  void *stackPointer = nullptr; ///< null if not started
  size_t stack = 0;
  qlora_host_dim at = {};
  uint64_t value = 0;  ///< operand of a warp operation
  uint64_t result = 0; ///< result of the warp operation
  int source = 0;
};

/// Bit masks of lanes. A lane is ready, waits in the warp's operation, waits at
/// the block's barrier, or has finished.
struct Warp {
  uint32_t ready = 0;
  uint32_t arrived = 0;
  uint32_t finished = 0;
  uint32_t mask = 0; ///< mask of the operation for which lanes wait
  qlora_host_warp_operation operation = QLORA_HOST_SYNC;
  int line = 0;
};

class Runner {
public:
  LaunchResult run(const Launch &toRun);
  int meetBlock(qlora_host_block_operation operation, int predicate, int line);
  uint64_t meetWarp(qlora_host_warp_operation operation, uint32_t mask,
                    uint64_t value, int source, int line);
  void *dynamicShared() { return shared.dynamic(); }
  [[noreturn]] void fail(std::string what);
  /// The main function of every stack: runs threads, one after the other.
  [[noreturn]] void loop();

private:
  void runAll();
  void beginBlock(const qlora_host_dim &block);
  void describeDeadlock();
  LaunchResult describe(const Fault &fault) const;
  std::string where() const;
  bool pickNext();
  void leave();
  void finishWarpOperation(Warp &warp);
  Warp &warp() { return warps[current / 32]; }
  Thread &thread() { return threads[current]; }
  uint32_t laneBit() const { return 1u << (current % 32); }

  const Launch *launch = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  SharedMemory shared;
  FiberStacks stacks;
  void *mainStack = nullptr;
  unsigned current = 0; ///< the running thread
  unsigned finished = 0;
  unsigned count = 0;
  bool isReversed = false;
  // State of the barrier of the block.
  unsigned waiting = 0, votes = 0;
  int blockResult = 0, blockLine = 0;
  qlora_host_block_operation blockOperation = QLORA_HOST_BARRIER;
  std::string failure;
};
} // namespace

static Runner theRunner;
static Runner &runner() { return theRunner; }

static unsigned volume(const qlora_host_dim &size) {
  return size.x * size.y * size.z;
}

/// Returns the next set bit after `from` in the order of execution, with
/// wrap-around.
static unsigned nextBit(uint32_t bits, unsigned from, bool isReversed) {
  if (isReversed) {
    const uint32_t below = bits & ((1u << from) - 1);
    return 31 - unsigned(std::countl_zero(below ? below : bits));
  }
  const uint32_t above = from == 31 ? 0 : bits & ~((2u << from) - 1);
  return unsigned(std::countr_zero(above ? above : bits));
}

/// Makes a ready thread the current one. Prefers the current thread's warp.
bool Runner::pickNext() {
  unsigned number = current / 32;
  if (!warps[number].ready) {
    uint32_t runnable = 0;
    for (unsigned i = 0; i < warps.size(); ++i)
      runnable |= uint32_t(warps[i].ready != 0) << i;
    if (!runnable)
      return false;
    number = nextBit(runnable, number, isReversed);
  }
  current = number * 32 +
            nextBit(warps[number].ready, current % 32, isReversed);
  launch->image->place->thread = threads[current].at;
  return true;
}

/// Switches from the current thread, which is not ready. It continues here when
/// it is ready again.
void Runner::leave() {
  Thread &left = thread();
  if (!pickNext()) {
    qlora_platform_switch(&left.stackPointer, mainStack);
    return;
  }
  Thread &next = thread();
  if (!next.stackPointer) {
    next.stack = stacks.take();
    next.stackPointer =
        stacks.start(next.stack, [] { runner().loop(); });
  }
  qlora_platform_switch(&left.stackPointer, next.stackPointer);
}

void Runner::loop() {
  for (;;) {
    launch->kernel->function(launch->args);
    const size_t stack = thread().stack;
    warp().ready &= ~laneBit();
    warp().finished |= laneBit();
    ++finished;
    void *unused;
    if (!pickNext()) {
      qlora_platform_switch(&unused, mainStack);
    } else if (thread().stackPointer) {
      stacks.giveBack(stack);
      qlora_platform_switch(&unused, thread().stackPointer);
    } else { // a thread that starts on this stack
      thread().stack = stack;
      thread().stackPointer = &stacks;
    }
  }
}

void Runner::fail(std::string what) {
  failure = where() + ": " + std::move(what);
  void *unused;
  qlora_platform_switch(&unused, mainStack);
  __builtin_unreachable();
}

int Runner::meetBlock(qlora_host_block_operation operation, int predicate,
                      int line) {
  if (!waiting) {
    blockOperation = operation;
    blockLine = line;
    votes = 0;
  } else if (blockOperation != operation || blockLine != line) {
    fail(fmt::format("the barrier at line {} is met by the one at line {}",
                     line, blockLine));
  }
  votes += predicate != 0;
  ++waiting;
  warp().ready &= ~laneBit();
  if (waiting < count) {
    leave();
    return blockResult;
  }
  waiting = 0;
  blockResult = int(votes);
  for (unsigned i = 0; i < warps.size(); ++i)
    warps[i].ready = count - i * 32 >= 32 ? ~0u : (1u << (count % 32)) - 1;
  return blockResult;
}

void Runner::finishWarpOperation(Warp &warp) {
  Thread *lanes = &threads[current / 32 * 32];
  uint64_t ballot = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (warp.mask >> i & 1)
      ballot |= uint64_t(lanes[i].value != 0) << i;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(warp.mask >> i & 1))
      continue;
    const int source = lanes[i].source;
    lanes[i].result = warp.operation == QLORA_HOST_SHUFFLE
                          ? lanes[source].value
                          : ballot;
  }
  warp.ready |= warp.mask;
  warp.arrived = 0;
}

uint64_t Runner::meetWarp(qlora_host_warp_operation operation, uint32_t mask,
                          uint64_t value, int source, int line) {
  Warp &own = warp();
  if (!(mask & laneBit()))
    fail(fmt::format("line {}: the mask {:#x} is without the calling lane",
                     line, mask));
  if (!own.arrived) {
    own.mask = mask;
    own.operation = operation;
    own.line = line;
  } else if (own.mask != mask || own.operation != operation ||
             own.line != line) {
    fail(fmt::format("lanes of one warp are at line {} with mask {:#x} and at "
                     "line {} with mask {:#x}",
                     line, mask, own.line, own.mask));
  }
  if (operation == QLORA_HOST_SHUFFLE &&
      (source < 0 || source > 31 || !(mask >> source & 1)))
    fail(fmt::format("line {}: reads lane {}, which is not in the mask {:#x}",
                     line, source, mask));
  Thread &self = thread();
  self.value = value;
  self.source = source;
  own.arrived |= laneBit();
  if (own.arrived == mask) {
    finishWarpOperation(own);
    return self.result;
  }
  own.ready &= ~laneBit();
  leave();
  return self.result;
}

void Runner::beginBlock(const qlora_host_dim &block) {
  launch->image->place->block = block;
  shared.beginBlock();
  for (unsigned i = 0; i < count; ++i)
    threads[i].stackPointer = nullptr;
  for (unsigned i = 0; i < warps.size(); ++i) {
    warps[i] = {};
    warps[i].ready = count - i * 32 >= 32 ? ~0u : (1u << (count % 32)) - 1;
  }
  finished = waiting = 0;
  const uint64_t mixed = (launch->seed + block.x + 1) * 0x9e3779b97f4a7c15u;
  isReversed = mixed >> 63;
  current = isReversed ? count - 1 : 0;
}

void Runner::describeDeadlock() {
  if (waiting) {
    failure = fmt::format(
        "the barrier at line {} is reached by {} of {} threads of the block, "
        "{} have finished",
        blockLine, waiting, count, finished);
    return;
  }
  for (unsigned i = 0; i < warps.size(); ++i)
    if (warps[i].arrived) {
      failure = fmt::format("warp {}: the operation at line {} with mask {:#x} "
                            "is reached by lanes {:#x} only",
                            i, warps[i].line, warps[i].mask, warps[i].arrived);
      return;
    }
}

void Runner::runAll() {
  const qlora_host_dim &grid = launch->blocks;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        beginBlock({x, y, z});
        launch->image->place->thread = threads[current].at;
        stacks.reset();
        thread().stack = stacks.take();
        thread().stackPointer =
            stacks.start(thread().stack, [] { runner().loop(); });
        qlora_platform_switch(&mainStack, thread().stackPointer);
        if (failure.empty() && finished < count) {
          describeDeadlock();
          failure = fmt::format("block {},{},{}: {}", x, y, z, failure);
        }
        if (!failure.empty())
          return;
        shared.endBlock();
      }
}

std::string Runner::where() const {
  const qlora_host_place &at = *launch->image->place;
  return fmt::format("block {},{},{} thread {},{},{}", at.block.x, at.block.y,
                     at.block.z, at.thread.x, at.thread.y, at.thread.z);
}

LaunchResult Runner::describe(const Fault &fault) const {
  std::string what;
  const int code = codeOf(fault);
  if (code == kMisalignedAddress)
    what = "a pointer is misaligned or null";
  else if (fault.trap >= 0)
    what = "an index is outside of its array";
  else if (code == kIllegalAddress)
    what = "accesses " + describeAddress(fault.address);
  else
    what = fmt::format("signal {}", fault.signal);
  return {code, fmt::format("{}: {}: {}", launch->kernel->name, where(), what)};
}

LaunchResult Runner::run(const Launch &toRun) {
  launch = &toRun;
  count = volume(toRun.threads);
  threads.resize(std::max<size_t>(threads.size(), (count + 31) / 32 * 32));
  warps.resize((count + 31) / 32);
  shared.beginLaunch(*toRun.image->table, *toRun.kernel,
                     toRun.dynamicSharedBytes);
  for (unsigned i = 0; i < count; ++i)
    threads[i].at = {i % toRun.threads.x, i / toRun.threads.x % toRun.threads.y,
                     i / toRun.threads.x / toRun.threads.y};
  toRun.image->place->blockCount = toRun.blocks;
  toRun.image->place->threadCount = toRun.threads;
  failure.clear();
  if (const std::optional<Fault> fault = catchFaults([this] { runAll(); }))
    return describe(*fault);
  if (!failure.empty())
    return {kLaunchFailed,
            fmt::format("{}: {}", toRun.kernel->name, failure)};
  return {};
}

LaunchResult runBlocks(const Launch &launch) { return runner().run(launch); }

const qlora_host_engine *hostEngine() {
  static const qlora_host_engine engine = {
      [](qlora_host_block_operation operation, int predicate, int line) {
        return runner().meetBlock(operation, predicate, line);
      },
      [](qlora_host_warp_operation operation, uint32_t mask, uint64_t value,
         int source, int line) {
        return runner().meetWarp(operation, mask, value, source, line);
      },
      [] { return runner().dynamicShared(); },
      [](const char *what, int line) {
        runner().fail(fmt::format("{} at line {}", what, line));
      }};
  return &engine;
}

} // namespace qlora::platform
