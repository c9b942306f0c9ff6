// SPDX-License-Identifier: MIT

// A device holds the arenas of a module and runs its commands. Device.cpp does
// argument checks, counting and timing for all drivers. A driver implements six
// functions; everything else has a default here
// (docs/internals/new-device.md).
//
//   QLORA_ASSIGN_OR_RETURN(auto device, createDevice("cpu", options));
//   QLORA_RETURN_IF_ERROR(device->load(module, nullptr)); // all allocation
//   fill the FROZEN and TRAINABLE arenas
//   each entry: device->write(inputs); runEntry(); device->read(results), or
//               device->startRead(results) and, entries later, finishRead()
//
// Queues. Commands of one queue run in order; RECORD and WAIT order commands of
// different queues. Calls after synchronize() see the results of the entry. A
// GPU may still be working then, and the host waits in read() and finishRead().
// An error on any queue is returned when the host waits, or earlier. After an
// error the device runs no more commands.
//
// Threads. All methods are called from one thread per device. Nothing
// between begin() and synchronize() allocates.

#ifndef QLORA_RUNTIME_DEVICE_DEVICE_H
#define QLORA_RUNTIME_DEVICE_DEVICE_H

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Collectives.h"
#include "runtime/Device/CommandTimer.h"
#include "runtime/Device/FrozenArena.h"
#include "runtime/Kernels/LibraryKernel.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

class SweepTurns;

/// Options of a device, and resources of its rank. Pointers outlive the device.
struct DeviceOptions {
  GroupCollectives collectives = {};
  SweepTurns *turns = nullptr; ///< CPU: turns of the sweep's runs, or null
  size_t run = 0;              ///< index of this run in the sweep
  KernelObserver *observer = nullptr; ///< null: nothing is observed
  int threads = 0;    ///< compute threads of this rank; 0: OpenMP's default
  int ranks = 1;      ///< number of ranks of a run on the null device
  int ordinal = 0;    ///< GPU index on this machine
  bool graphs = true; ///< GPU: an entry is one launch of a captured graph
  std::vector<std::string> disabledKernels; ///< names of rows of Kernels.def
  std::vector<std::string> referenceKernels; ///< ops that run their reference
  /// GPU: source of GEMM algorithms (Cuda/GemmTuner.h): kMeasureGemms,
  /// kFirstGemms or the file of a table.
  std::string gemmTable = kFirstGemms;
  std::string gemmCache; ///< file of earlier measurements; empty: none
  static constexpr const char *kMeasureGemms = "measure";
  static constexpr const char *kFirstGemms = "heuristic";
};

/// Counts over all commands since load(). Every driver counts the same.
struct DeviceCounters {
  std::array<uint64_t, QLORA_COMMAND_KIND_COUNT> commands{}; ///< count by kind
  uint64_t bytesRead = 0; ///< all bytes of the operands that are read
  uint64_t bytesWritten = 0;
  /// By group and kind of collective: bytes of larger operands, on one rank.
  std::array<std::array<uint64_t, QLORA_COLLECTIVE_COUNT>, QLORA_GROUP_COUNT>
      collectiveBytes{};
};

/// Planned and allocated bytes of one arena.
struct ArenaUse {
  qlora_arena_kind kind;
  uint64_t plannedBytes = 0;
  uint64_t allocatedBytes = 0; ///< 0 on devices that only count
  bool shared = false;         ///< whether ranks share one copy
  bool onHost = false; ///< in host memory, which --memory-limit does not count
};

/// Device memory outside the arenas, for one purpose.
struct ReserveUse {
  std::string name;
  uint64_t bytes = 0;
};

/// Readings of a GPU's sensors. A reading is empty if the GPU lacks the sensor.
struct GpuReadings {
  std::optional<double> utilization; ///< percent of time with a kernel running
  std::optional<double> watts;       ///< power of the whole GPU
};

/// Constant properties of a device. A driver passes them to its Device.
struct DeviceTraits {
  std::string_view name;      ///< as in createDevice()
  std::string hardware = {};  ///< the GPU's name; empty if there is no GPU
  bool hasHostArenas = false; ///< whether Device::hostArena() is not empty
  /// Whether each rank of the run is a process. The null device simulates one
  /// rank of DeviceOptions::ranks ranks.
  bool hasRanks = true;
  /// Number of steps that the host should submit ahead of reading a step's
  /// results, so that the device never waits for the host.
  int64_t lead = 0;
};

/// What a device can measure. The defaults are for devices without the gauge.
class DeviceGauges {
public:
  virtual ~DeviceGauges() = default;
  /// Measures device memory in use outside the arenas. Empty if the arenas are
  /// host memory of this process.
  virtual std::vector<ReserveUse> reserve() const { return {}; }
  /// Returns the seconds since load() in which this rank only waited for
  /// collectives, and so for other ranks. Empty if there are no other ranks, or
  /// if only startTiming() measures this.
  virtual std::optional<double> exposedCommunication() const { return {}; }
  /// Returns current sensor readings; empty if there is no GPU.
  virtual GpuReadings readings() const { return {}; }
};

/// Implemented by a device that may still work after synchronize().
class AsyncDevice {
public:
  virtual ~AsyncDevice() = default;
  /// Implements Device::settle().
  virtual bool endWork() = 0;
  /// Starts a read; finishReadArena() ends the oldest one.
  virtual Status startReadArena(uint32_t arena, uint64_t offset,
                                uint64_t bytes) = 0;
  virtual Status finishReadArena(std::span<uint8_t> data) = 0;
};

class Device {
public:
  Device(const DeviceOptions &options, DeviceTraits traits);
  virtual ~Device() = default;

  const DeviceTraits traits;
  virtual const DeviceGauges &gauges() const;

  /// Waits a short time for all work to end. Called before the device is
  /// destroyed, also after an error. Returns false if work does not end: then
  /// the device must not be destroyed, because its memory is in use.
  bool settle();

  /// Allocates every arena once (zeroed) and prepares every kernel. If `frozen`
  /// is not null, it becomes the FROZEN arena and must have that size;
  /// otherwise the device allocates one. `module` and `frozen` outlive the
  /// device. kResourceExhausted names the arena and its bytes.
  Status load(const LoadedModule &module, FrozenArena *frozen);

  /// Copies between the caller and an arena. Call only between entries.
  Status write(uint32_t arena, uint64_t offset, std::span<const uint8_t> data);
  Status read(uint32_t arena, uint64_t offset, std::span<uint8_t> data);
  /// Starts to read a result and does not wait. The result has the values after
  /// all entries so far; later entries do not change it. finishRead() waits for
  /// the oldest started read, and `data` must have the size of that read. At
  /// most kMaxStartedReads reads may be open, of at most kMaxStartedBytes each.
  Status startRead(uint32_t arena, uint64_t offset, uint64_t bytes);
  Status finishRead(std::span<uint8_t> data);
  static constexpr uint64_t kMaxStartedBytes = 64;
  static constexpr size_t kMaxStartedReads = 32;
  /// Returns the arena as memory of this process, for filling parameters in
  /// place. Empty if the device has no arenas in host memory.
  virtual std::span<uint8_t> hostArena(uint32_t) { return {}; }

  /// Runs a library op of Kernels.def once on ranges of arenas, in order with
  /// the writes and reads. Used while a model is loaded. The op must have no
  /// workspace and call no vendor library. Operands are in ABI order. Returns
  /// kInternal if the device has no row for the op.
  Status run(const KernelOp &op, std::span<const qlora_operand> operands,
             std::span<const int64_t> constants);

  /// Returns this rank's index in a group.
  uint32_t numberIn(qlora_group group) const;

  /// Starts an entry. Until synchronize(), kernels see `step`, to which begin()
  /// adds the rank's indices in groups and its cp shard of each sequence.
  /// `onAllRanks`: all ranks run this entry now, with the same labelled_rows;
  /// every rank passes the same value. Entries without collectives ignore it.
  /// `hasOneSegment`: MicroBatch::hasOneSegment of the input.
  Status begin(const qlora_entry &entry, const qlora_step_block &step,
               bool onAllRanks = true, bool hasOneSegment = false);
  /// Puts one command of the current entry on the command's queue.
  Status enqueue(const qlora_command &command);
  /// Ends the entry.
  Status synchronize();

  /// Waits for earlier entries, then times every command of later entries. A
  /// GPU then runs without graphs, and one kernel at a time (Cuda/CudaTimer.h).
  Status startTiming();
  /// Stops timing, waits for all entries, and returns times of the commands.
  StatusOr<std::vector<TimedCommand>> finishTiming();

  const DeviceCounters &counters() const { return count; }
  std::vector<ArenaUse> memory() const;
  /// Returns the name of the kernel that runs a launch of the module.
  std::string kernelName(uint32_t launch) const;
  /// Returns the GEMM algorithms in use for every GPU model in the group, as
  /// the text of a table that can be pinned. Empty if the device chooses no
  /// algorithms. Call only after load().
  const std::string &gemmTable() const { return gemmText; }
  /// Returns one-line remarks, for example why a planned kernel does not run.
  const std::vector<std::string> &remarks() const { return notes; }
  void addRemark(std::string line) { notes.push_back(std::move(line)); }

protected:
  // Implemented by every driver. Operands are checked and in ABI order.
  /// Allocates all arenas, sets `allocated`, and prepares the kernels.
  virtual Status allocate(FrozenArena *frozen) = 0;
  virtual Status writeArena(uint32_t arena, uint64_t offset,
                            std::span<const uint8_t> data) = 0;
  virtual Status readArena(uint32_t arena, uint64_t offset,
                           std::span<uint8_t> data) = 0;
  /// Runs `row`, which is for the module's target and accepts the request.
  virtual Status runRow(const KernelRow &row, const KernelRequest &request,
                        std::span<const qlora_operand> operands) = 0;
  /// Puts a command on its queue.
  virtual Status execute(const qlora_command &command) = 0;
  /// Called after all commands are queued. Returns the first known error.
  virtual Status finishEntry() = 0;

  // Implemented by drivers that need them.
  /// Prepares an entry, and sets `isReplaying`.
  virtual Status beginEntry(const qlora_entry &) { return Status::ok(); }
  /// Called when a command has failed: makes the other queues end soon and
  /// blocked collectives return. finishEntry() follows.
  virtual void cancel() {}
  /// Returns the row that runs a launch; null if the planned kernel runs.
  virtual const KernelRow *rowOf(uint32_t) const { return nullptr; }
  /// Waits for earlier entries and returns a timer; null if nothing is timed.
  virtual StatusOr<std::unique_ptr<CommandTimer>> makeTimer() {
    return std::unique_ptr<CommandTimer>();
  }
  /// Returns null if all work has ended after synchronize().
  virtual AsyncDevice *async() { return nullptr; }

  bool isTimed() const { return timer != nullptr; }
  /// For destructors of drivers whose members the timer uses.
  void dropTimer() { timer.reset(); }

  const LoadedModule *module = nullptr;
  const DeviceOptions options;
  bool frozenIsShared = false;
  qlora_step_block step{};
  bool onAllRanks = true;     ///< argument of begin() for the current entry
  bool hasOneSegment = false; ///< argument of begin() for the current entry
  std::vector<std::string> notes;

  // Set by drivers.
  std::vector<uint64_t> allocated; ///< bytes per arena; empty: only counts
  std::string gemmText;            ///< gemmTable()
  /// Whether beginEntry() or finishEntry() runs all commands of the entry.
  bool isReplaying = false;

private:
  int ranksOf(qlora_group group) const;
  Status checkGroups(const LoadedModule &loaded) const;
  Status checkTransfer(uint32_t arena, uint64_t offset, uint64_t bytes) const;
  Status executeTimed(const qlora_command &command);
  void countCommand(const qlora_command &command);

  const qlora_entry *current = nullptr;
  std::unique_ptr<CommandTimer> timer; ///< null: commands are not timed
  Status failure; ///< the first error; all later calls return it
  std::deque<uint64_t> startedReads; ///< bytes of each open read, oldest first
  /// Results of the open reads, oldest first, if async() is null.
  std::deque<std::vector<uint8_t>> readAhead;
  DeviceCounters count;
};

/// Returns one line with the rows of Kernels.def that a program's launches run,
/// for ops that have more than one row for the target:
///
///   kernels  attention.cudnn, attention_grad.cuda (planned: .cudnn)
///
/// For a loaded device these rows run; for the null device they are planned.
/// Empty if there is no such op. Device::remarks() says why a planned row does
/// not run.
std::string kernelsText(const LoadedModule &module, const Device &device);

/// Creates the device "cpu", "cuda" (kNotFound without a GPU) or "null".
StatusOr<std::unique_ptr<Device>> createDevice(std::string_view name,
                                               const DeviceOptions &options);

std::unique_ptr<Device> createCpuDevice(const DeviceOptions &options);
std::unique_ptr<Device> createNullDevice(const DeviceOptions &options);
StatusOr<std::unique_ptr<Device>>
createCudaDevice(const DeviceOptions &options);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_DEVICE_H
