// SPDX-License-Identifier: MIT

// A device: the arenas of a module and something that runs its commands.
// Drivers are thin; argument checks, counting and timing are done once, in
// the non-virtual half (Device.cpp).
//
//   QLORA_ASSIGN_OR_RETURN(auto device, createDevice("cpu", options));
//   QLORA_RETURN_IF_ERROR(device->load(module, nullptr)); // all allocation
//   fill the FROZEN and TRAINABLE arenas
//   each entry: device->write(inputs); Executor::run; device->read(results),
//               or device->startRead(results) and, entries later, finishRead
//
// Queues. Commands of one queue run in order; across queues only RECORD and
// WAIT order them. Whatever follows synchronize() sees the entry done; a
// device whose queues are elsewhere may still be working, and the host then
// waits in read() and finishRead(). An error on any queue surfaces at the
// latest where the host has waited, and the device runs nothing more after it.
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

/// What a device needs to know of its rank. The pointers outlive it.
struct DeviceOptions {
  GroupCollectives collectives = {};
  SweepTurns *turns = nullptr; ///< CPU: of the runs that share its base, or null
  size_t run = 0;              ///< which of them this is
  KernelObserver *observer = nullptr; ///< null: nothing is observed
  int threads = 0;    ///< compute threads of this rank; 0: all of this process
  int ranks = 1;      ///< of DP, for devices that only count
  int ordinal = 0;    ///< which GPU of this machine
  bool graphs = true; ///< GPU: an entry is one launch of a captured graph
  std::vector<std::string> disabledKernels; ///< rows of Kernels.def, by name
  std::vector<std::string> referenceKernels; ///< ops to do by their oracles
  /// GPU: the algorithms of matrix products (Cuda/GemmTuner.h): kMeasureGemms,
  /// kFirstGemms or the file of a table.
  std::string gemmTable = kFirstGemms;
  std::string gemmCache; ///< file of what was measured before; empty: none
  static constexpr const char *kMeasureGemms = "measure";
  static constexpr const char *kFirstGemms = "heuristic";
};

/// What commands asked for since load(), whatever the driver.
struct DeviceCounters {
  std::array<uint64_t, QLORA_COMMAND_KIND_COUNT> commands{}; ///< by kind
  uint64_t bytesRead = 0; ///< operands, at operand granularity
  uint64_t bytesWritten = 0;
  /// By group and kind: of the larger operand, on one rank.
  std::array<std::array<uint64_t, QLORA_COLLECTIVE_COUNT>, QLORA_GROUP_COUNT>
      collectiveBytes{};
};

/// One arena, as planned by the module and as the device holds it.
struct ArenaUse {
  qlora_arena_kind kind;
  uint64_t plannedBytes = 0;
  uint64_t allocatedBytes = 0; ///< 0 on devices that only count
  bool shared = false;         ///< one copy for all ranks of this host
  bool onHost = false;         ///< beside the device's memory and its limit
};

/// Memory of the device that is in no arena.
struct ReserveUse {
  std::string name;
  uint64_t bytes = 0;
};

/// What a card says of itself, where it does.
struct CardReadings {
  std::optional<double> utilization; ///< percent of the time with a kernel
  std::optional<double> watts;       ///< drawn by the whole card
};

class Device {
public:
  explicit Device(const DeviceOptions &options = {});
  virtual ~Device() = default;

  /// Before the end, also after an error: waits, but not for long, until
  /// nothing runs any more. False where work does not end: the device is then
  /// not destroyed, since its memory is in use.
  virtual bool settle() { return true; }

  virtual std::string_view name() const = 0;

  /// Allocates every arena once (zeroed) and prepares every kernel. `frozen`,
  /// where not null, is used for the FROZEN arena and must have its bytes;
  /// otherwise the device makes its own. `module` and `frozen` outlive the
  /// device. kResourceExhausted names the arena and its bytes.
  Status load(const LoadedModule &module, FrozenArena *frozen);

  /// Copies between the caller and an arena, between entries only.
  Status write(uint32_t arena, uint64_t offset, std::span<const uint8_t> data);
  Status read(uint32_t arena, uint64_t offset, std::span<uint8_t> data);
  /// A read of a result that does not wait: its bytes (kMaxStartedBytes at
  /// most, of kMaxStartedReads reads) are those after the entries so far,
  /// whatever runs later. finishRead() waits for the oldest one alone, and
  /// `data` has its size.
  Status startRead(uint32_t arena, uint64_t offset, uint64_t bytes);
  Status finishRead(std::span<uint8_t> data);
  static constexpr uint64_t kMaxStartedBytes = 64;
  static constexpr size_t kMaxStartedReads = 32;
  /// Steps that the host should be ahead of the results that it reads, so that
  /// the device never waits for the host.
  virtual int64_t lead() const { return 0; }
  /// The arena as memory of this process, for filling parameters in place;
  /// empty on devices whose arenas are elsewhere or do not exist.
  virtual std::span<uint8_t> hostArena(uint32_t arena) = 0;
  /// Whether hostArena is not empty; known before load().
  virtual bool hasHostArenas() const = 0;

  /// Runs a library op of Kernels.def on ranges of arenas, once, in the order
  /// of the writes and reads: for what is done when a model is loaded. The op
  /// has no workspace and calls no vendor's library; its operands are in ABI
  /// order. kInternal where no row of the device does it.
  Status run(const KernelOp &op, std::span<const qlora_operand> operands,
             std::span<const int64_t> constants);

  /// This rank's number in a group.
  uint32_t numberIn(qlora_group group) const;

  /// Starts an entry; kernels see `step`, with this rank's numbers in groups and
  /// what it has of each line, until synchronize(). `onAllRanks`: the others run
  /// this entry now too, with the same labelled_rows, which an
  /// entry without collectives has no use for. Whether they do is the same for
  /// all of them. `hasOneSegment`: MicroBatch::hasOneSegment, of its input.
  Status begin(const qlora_entry &entry, const qlora_step_block &step,
               bool onAllRanks = true, bool hasOneSegment = false);
  /// Puts one command of that entry on its queue.
  Status enqueue(const qlora_command &command);
  /// Ends the entry.
  Status synchronize();

  /// From the next entry on, every command is timed; a GPU then runs each by
  /// itself, not as a part of a graph. Waits for the entries before.
  Status startTiming();
  /// Ends that, waits for all entries, and returns their commands.
  StatusOr<std::vector<TimedCommand>> finishTiming();

  const DeviceCounters &counters() const { return count; }
  std::vector<ArenaUse> memory() const;
  /// What the device's own memory holds beside the arenas, as measured now.
  /// Empty where arenas are this process's memory.
  virtual std::vector<ReserveUse> reserve() const { return {}; }
  /// Seconds since load() in which this rank computed nothing because it
  /// waited for collectives, and so for other ranks. Nothing where there is no
  /// other, or where that is measured by startTiming() alone.
  virtual std::optional<double> exposedCommunication() const { return {}; }
  /// The card's name, or empty.
  virtual std::string hardware() const { return {}; }
  /// Of now; empty where there is no card.
  virtual CardReadings readings() const { return {}; }
  /// Name of the kernel that runs a launch of the module.
  std::string kernelName(uint32_t launch) const;
  /// The algorithms that matrix products use, as the text of a table that can
  /// be pinned; of every kind of card in the group. Empty where the device
  /// chooses none. After load().
  virtual std::string gemmTable() const { return {}; }
  /// Why a kernel is not the one the compiler chose, and the like; one line
  /// each.
  const std::vector<std::string> &remarks() const { return notes; }
  void addRemark(std::string line) { notes.push_back(std::move(line)); }

protected:
  // The driver's half. Operands are checked and in ABI order.
  /// Whether there are ranks to do something together with; else they are only
  /// counted (DeviceOptions::ranks).
  virtual bool hasRanks() const { return true; }
  virtual Status allocate(FrozenArena *frozen) = 0;
  virtual Status writeArena(uint32_t arena, uint64_t offset,
                            std::span<const uint8_t> data) = 0;
  virtual Status readArena(uint32_t arena, uint64_t offset,
                           std::span<uint8_t> data) = 0;
  /// The oldest of the started reads. By default the bytes were read at once.
  virtual Status startReadArena(uint32_t arena, uint64_t offset,
                                uint64_t bytes);
  virtual Status finishReadArena(std::span<uint8_t> data);
  /// A row of the module's target that accepts the request.
  virtual Status runRow(const KernelRow &row, const KernelRequest &request,
                        std::span<const qlora_operand> operands) = 0;
  virtual uint64_t allocatedBytes(uint32_t arena) const = 0;
  /// The row that runs a launch; null where the module knows best.
  virtual const KernelRow *rowOf(uint32_t) const { return nullptr; }
  virtual Status beginEntry(const qlora_entry &entry) = 0;
  /// Whether its commands are run as a whole, by that or by finishEntry().
  virtual bool isReplaying() const { return false; }
  virtual Status launch(const qlora_command &command) = 0;
  virtual Status fill(const qlora_command &command) = 0;
  virtual Status copy(const qlora_command &command) = 0;
  virtual Status collective(const qlora_command &command) = 0;
  virtual Status record(const qlora_command &command) = 0;
  virtual Status wait(const qlora_command &command) = 0;
  /// All commands are on their queues; returns the first error known of any.
  virtual Status finishEntry() = 0;
  /// Puts a command on its queue.
  Status dispatch(const qlora_command &command);
  /// A command has failed: makes the other queues end soon, and blocked
  /// collectives return. finishEntry() follows.
  virtual void cancel() {}
  /// All earlier entries have ended when it returns. Null where nothing runs.
  virtual StatusOr<std::unique_ptr<CommandTimer>> makeTimer() {
    return std::unique_ptr<CommandTimer>();
  }
  bool isTimed() const { return timer != nullptr; }
  /// For the driver's destructor, where its timer needs what the driver owns.
  void dropTimer() { timer.reset(); }

  const LoadedModule *module = nullptr;
  const DeviceOptions options;
  bool frozenIsShared = false;
  qlora_step_block step{};
  bool onAllRanks = true; ///< of the current entry
  bool hasOneSegment = false; ///< its input
  std::vector<std::string> notes;

private:
  int ranksOf(qlora_group group) const;
  Status checkGroups(const LoadedModule &loaded) const;
  Status checkTransfer(uint32_t arena, uint64_t offset, uint64_t bytes) const;
  Status dispatchTimed(const qlora_command &command);
  void countCommand(const qlora_command &command);

  const qlora_entry *current = nullptr;
  std::unique_ptr<CommandTimer> timer; ///< null: commands are not timed
  Status failure; ///< the first error; everything after it is refused
  std::deque<uint64_t> startedReads; ///< their bytes
  std::deque<std::vector<uint8_t>> readAhead; ///< where they were read at once
  DeviceCounters count;
};

/// One line that names the rows of Kernels.def that a program's launches run, of
/// ops with more than one for the target:
///
///   kernels  attention.cudnn, attention_grad.cuda (planned: .cudnn)
///
/// A loaded device says what runs, the null device what was planned. Empty
/// where there is no such op. Why a planned row does not run is a remark of
/// the device.
std::string kernelsText(const LoadedModule &module, const Device &device);

/// "cpu", "cuda" (kNotFound where there is no GPU) or "null".
StatusOr<std::unique_ptr<Device>> createDevice(std::string_view name,
                                               const DeviceOptions &options);

// The drivers, each in a folder of its own.
std::unique_ptr<Device> createCpuDevice(const DeviceOptions &options);
std::unique_ptr<Device> createNullDevice(const DeviceOptions &options);
StatusOr<std::unique_ptr<Device>> createCudaDevice(const DeviceOptions &options);

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_DEVICE_H
