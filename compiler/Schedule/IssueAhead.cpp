// SPDX-License-Identifier: MIT

// Finds the launches that can run ahead, and how far (IssueAhead.h).

#include "compiler/Schedule/IssueAhead.h"

#include "compiler/Schedule/Commands.h"
#include "runtime/Kernels/CostModel.h"

#include "llvm/ADT/MapVector.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::program;

/// A launch of t seconds needs kCover * t seconds of concurrent arithmetic: the
/// cost model is off by up to 1.5x, and kernels slow each other down.
static constexpr double kCover = 2.0;

namespace {

/// Launches whose buffers have the same first reader.
struct Prepared {
  size_t reader = 0;   ///< position of the reader
  size_t earliest = 0; ///< first position at which all operands are available
  SmallVector<LaunchOp> launches;
};

class AheadIssuer {
public:
  AheadIssuer(EntryOp entry, const SymbolTable &symbols,
              const DeviceProfile &device)
      : commands(commandsOf(entry)), symbols(symbols), device(device),
        gathered(gatheredBuffers(commands)) {
    size_t count = 0;
    for (Operation &op : entry.getBody().front())
      order[&op] = 2 * ++count;
  }

  unsigned run();

private:
  BufferOp preparedBy(Operation *command) const;
  size_t gatheredBefore(LaunchOp launch) const;
  std::vector<Prepared> collect();
  size_t placeFor(const Prepared &prepared, size_t earliest);
  std::vector<Work> worksOf(LaunchOp launch);
  double coverOf(Operation *command);
  void moveBefore(Operation *op, Operation *place);
  void hoist(Value buffer, Operation *user);

  SmallVector<Operation *> commands;
  const SymbolTable &symbols;
  const DeviceProfile &device;
  DenseSet<Operation *> ahead;
  const DenseMap<Operation *, size_t> gathered;
  /// Sort key of each op of the block, kept up to date as ops move. An op that
  /// has not moved has an even key; a moved op has the odd key just below that
  /// of the next op. (isBeforeInBlock would renumber the block too often.)
  DenseMap<Operation *, size_t> order;
};

} // namespace

//===----------------------------------------------------------------------===//
// Launches to move
//===----------------------------------------------------------------------===//

/// Returns the buffer that a launch computes only from frozen parameters
/// (gathered or not), or null for any other command.
BufferOp AheadIssuer::preparedBy(Operation *command) const {
  auto launch = dyn_cast<LaunchOp>(command);
  if (!launch)
    return {};
  bool readsFrozen = false;
  BufferOp made;
  for (auto [operand, access] :
       llvm::zip_equal(launch.getOperands(), launch.getAccess())) {
    BufferOp buffer = rootOf(operand);
    if (access == QLORA_READ && (buffer.getArena() == Arena::Frozen ||
                                 gathered.contains(buffer)))
      readsFrozen = true;
    else if (access == QLORA_WRITE && !made &&
             buffer.getArena() == Arena::Activation)
      made = buffer;
    else
      return {};
  }
  return readsFrozen ? made : BufferOp();
}

/// Returns the position after the last gather that the launch depends on.
size_t AheadIssuer::gatheredBefore(LaunchOp launch) const {
  size_t position = 0;
  for (Value operand : launch.getOperands())
    if (auto found = gathered.find(rootOf(operand)); found != gathered.end())
      position = std::max(position, found->second + 1);
  return position;
}

/// Returns the launches to move, grouped by first reader, in reader order.
std::vector<Prepared> AheadIssuer::collect() {
  llvm::MapVector<Operation *, SmallVector<LaunchOp>> waiting;
  DenseSet<Operation *> touched; // buffers that other commands use
  std::vector<Prepared> found;
  for (auto [position, command] : llvm::enumerate(commands)) {
    BufferOp made = preparedBy(command);
    if (made && !touched.contains(made)) {
      waiting[made].push_back(cast<LaunchOp>(command));
      continue;
    }
    Prepared prepared{position, 0, {}};
    for (Value operand : command->getOperands()) {
      Operation *buffer = rootOf(operand);
      if (touched.insert(buffer).second)
        if (auto it = waiting.find(buffer); it != waiting.end())
          llvm::append_range(prepared.launches, it->second);
    }
    if (prepared.launches.empty())
      continue;
    for (LaunchOp launch : prepared.launches)
      prepared.earliest = std::max(prepared.earliest, gatheredBefore(launch));
    ahead.insert_range(prepared.launches);
    found.push_back(std::move(prepared));
  }
  return found;
}

//===----------------------------------------------------------------------===//
// Positions of the moved launches
//===----------------------------------------------------------------------===//

/// Returns the work of each device kernel of a launch. Assumes the GPU's
/// kernels, because only GPUs have a concurrent copy queue.
std::vector<Work> AheadIssuer::worksOf(LaunchOp launch) {
  auto kernel = symbols.lookup<program::KernelOp>(launch.getKernel());
  if (kernel.getOp())
    return cudaKernelWork(requestOf(launch, findKernelOp(*kernel.getOp())),
                          findKernelRow(kernel.getSymName()));
  double bytes = 0;
  for (Value operand : launch.getOperands())
    bytes += rangeOf(operand).bytes;
  return {rowWork(bytes, 0)};
}

/// Returns the seconds for which a command leaves memory bandwidth unused.
double AheadIssuer::coverOf(Operation *command) {
  auto launch = dyn_cast<LaunchOp>(command);
  if (!launch || ahead.contains(launch))
    return 0;
  double seconds = 0;
  for (const Work &work : worksOf(launch)) {
    const Demand demand = demandOf(work, device);
    seconds += demand.busy() - demand.memory;
  }
  return seconds;
}

/// Returns the position, at least `earliest`, before which the launches move.
size_t AheadIssuer::placeFor(const Prepared &prepared, size_t earliest) {
  double needed = 0;
  for (LaunchOp launch : prepared.launches)
    for (const Work &work : worksOf(launch))
      needed += kCover * secondsOf(work, device);
  size_t place = prepared.reader;
  for (double cover = 0; place > earliest && cover < needed;)
    cover += coverOf(commands[--place]);
  // Skip launches that are moved too: they cannot mark the position.
  while (ahead.contains(commands[place]))
    ++place;
  return place;
}

void AheadIssuer::moveBefore(Operation *op, Operation *place) {
  op->moveBefore(place);
  order[op] = (order[place] - 1) | 1;
}

/// Moves the op that makes `buffer` before `user`, if it comes after `user`.
void AheadIssuer::hoist(Value buffer, Operation *user) {
  Operation *maker = buffer.getDefiningOp();
  if (order[maker] <= order[user])
    return;
  moveBefore(maker, user);
  for (Value source : maker->getOperands())
    hoist(source, maker);
}

unsigned AheadIssuer::run() {
  unsigned moved = 0;
  size_t earliest = 0;
  for (const Prepared &prepared : collect()) {
    Operation *place = commands[placeFor(
        prepared, std::max(earliest, prepared.earliest))];
    for (LaunchOp launch : prepared.launches) {
      moveBefore(launch, place);
      for (Value operand : launch.getOperands())
        hoist(operand, launch);
      launch.setQueue(Queue::Copy);
    }
    moved += prepared.launches.size();
    earliest = prepared.reader;
  }
  return moved;
}

unsigned qlora::issueAhead(EntryOp entry, const SymbolTable &symbols,
                           const DeviceProfile &device) {
  return AheadIssuer(entry, symbols, device).run();
}
