// SPDX-License-Identifier: MIT

// The part that all drivers share: order of calls, ranges, counters.

#include "runtime/Device/Device.h"

#include "runtime/Module/CommandWork.h"
#include "runtime/Module/LaunchRequest.h"

#include <algorithm>
#include <set>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace qlora {

template <typename... Args>
static Status misuse(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kInternal, format,
                       std::forward<Args>(args)...);
}

Device::Device(const DeviceOptions &options, DeviceTraits traits)
    : traits(std::move(traits)), options(options) {
#ifdef _OPENMP
  // Generated kernels, CPU library kernels and the conversion and quantization
  // of weights use one thread pool.
  if (options.threads > 0)
    omp_set_num_threads(options.threads);
#endif
}

const DeviceGauges &Device::gauges() const {
  static const DeviceGauges none;
  return none;
}

bool Device::settle() { return !async() || async()->endWork(); }

int Device::ranksOf(qlora_group group) const {
  const Collectives *ranks = options.collectives[group];
  return ranks ? ranks->size() : 1;
}

Status Device::checkGroups(const LoadedModule &loaded) const {
  const bool hasRanks = traits.hasRanks;
  const int ranks = hasRanks ? ranksOf(QLORA_GROUP_DP) : options.ranks;
  QLORA_RETURN_IF_ERROR(checkMesh(loaded, ranks));
  const GroupSizes wanted = loaded.groups().on(ranks);
  for (unsigned i = 0; hasRanks && i < QLORA_GROUP_COUNT; ++i)
    if (const auto group = static_cast<qlora_group>(i);
        ranksOf(group) != wanted[group])
      return misuse("a group {} of {} ranks for a program of {}",
                    groupName(group), ranksOf(group), wanted[group]);
  return checkCollectives(loaded, wanted);
}

Status Device::load(const LoadedModule &loaded, FrozenArena *frozen) {
  if (module)
    return misuse("the {} device has a module already", traits.name);
  const uint64_t frozenBytes = loaded.arenaBytes(QLORA_ARENA_FROZEN);
  if (frozen && frozen->bytes().size() != frozenBytes)
    return misuse("the frozen arena given has {} bytes, the module needs {}",
                  frozen->bytes().size(), frozenBytes);
  QLORA_RETURN_IF_ERROR(checkGroups(loaded));
  module = &loaded;
  frozenIsShared = frozen && frozen->isShared();
  failure = allocate(frozen);
  return failure;
}

Status Device::checkTransfer(uint32_t arena, uint64_t offset,
                             uint64_t bytes) const {
  if (!module || current)
    return misuse("arenas are written and read between entries only");
  if (arena >= module->arenas().size())
    return misuse("arena {} of {}", arena, module->arenas().size());
  const uint64_t size = module->arenas()[arena].bytes;
  if (offset > size || bytes > size - offset)
    return misuse("bytes {}+{} of the {} arena of {}", offset, bytes,
                  arenaKindName(module->arenas()[arena].kind), size);
  return failure;
}

Status Device::write(uint32_t arena, uint64_t offset,
                     std::span<const uint8_t> data) {
  QLORA_RETURN_IF_ERROR(checkTransfer(arena, offset, data.size()));
  return writeArena(arena, offset, data);
}

Status Device::read(uint32_t arena, uint64_t offset, std::span<uint8_t> data) {
  QLORA_RETURN_IF_ERROR(checkTransfer(arena, offset, data.size()));
  return readArena(arena, offset, data);
}

Status Device::startRead(uint32_t arena, uint64_t offset, uint64_t bytes) {
  QLORA_RETURN_IF_ERROR(checkTransfer(arena, offset, bytes));
  if (bytes > kMaxStartedBytes || startedReads.size() == kMaxStartedReads)
    return misuse("a started read of {} bytes after {} others", bytes,
                  startedReads.size());
  startedReads.push_back(bytes);
  return async() ? async()->startReadArena(arena, offset, bytes)
                 : readArena(arena, offset, readAhead.emplace_back(bytes));
}

Status Device::finishRead(std::span<uint8_t> data) {
  if (startedReads.empty() || startedReads.front() != data.size())
    return misuse("{} bytes of another read than the oldest", data.size());
  startedReads.pop_front();
  QLORA_RETURN_IF_ERROR(failure);
  if (async())
    return async()->finishReadArena(data);
  std::copy(readAhead.front().begin(), readAhead.front().end(), data.begin());
  readAhead.pop_front();
  return Status::ok();
}

/// Returns the first row of `target` that accepts the request.
static StatusOr<const KernelRow *> chooseRow(const KernelRequest &request,
                                             std::string_view target) {
  Status last = misuse("no row of {} for {}", request.op->name, target);
  for (const KernelRow &row : kernelRows()) {
    if (row.op != request.op || row.target != target)
      continue;
    last = checkPrepared(row, request, /*workspaceBytes=*/0);
    if (last.isOk())
      return &row;
  }
  return misuse("{}", last.message());
}

Status Device::run(const KernelOp &op, std::span<const qlora_operand> operands,
                   std::span<const int64_t> constants) {
  for (const qlora_operand &operand : operands)
    QLORA_RETURN_IF_ERROR(
        checkTransfer(operand.arena, operand.offset, operand.bytes));
  const bool isCuda = module->table().target == QLORA_TARGET_CUDA;
  const KernelRequest request{
      &op, dtypesOf(operands), {constants.begin(), constants.end()}};
  QLORA_ASSIGN_OR_RETURN(const KernelRow *row,
                         chooseRow(request, isCuda ? "cuda" : "cpu"));
  QLORA_RETURN_IF_ERROR(checkOperands(*row, request, operands));
  failure = runRow(*row, request, operands);
  return failure;
}

uint32_t Device::numberIn(qlora_group group) const {
  const Collectives *ranks = options.collectives[group];
  return ranks ? static_cast<uint32_t>(ranks->rank()) : 0;
}

Status Device::begin(const qlora_entry &entry,
                     const qlora_step_block &stepBlock, bool isOnAll,
                     bool inputHasOneSegment) {
  if (!module || current)
    return misuse("an entry starts before the one before it has ended");
  QLORA_RETURN_IF_ERROR(failure);
  step = stepBlock;
  step.shard = numberIn(shardGroup(*module));
  step.line_parts = static_cast<uint32_t>(module->contextRanks());
  step.line_part = numberIn(QLORA_GROUP_CP);
  step.expert_part = numberIn(QLORA_GROUP_EP);
  // At least 1, because kernels divide by line_tokens even without sequences.
  step.line_tokens = static_cast<uint32_t>(
      std::max<int64_t>(1, entry.length / module->contextRanks()));
  onAllRanks = isOnAll;
  hasOneSegment = inputHasOneSegment;
  current = &entry;
  failure = beginEntry(entry);
  if (timer && failure.isOk())
    failure = timer->begin(*module, entry, step.labelled_rows);
  if (!failure.isOk())
    current = nullptr;
  return failure;
}

Status Device::enqueue(const qlora_command &command) {
  QLORA_RETURN_IF_ERROR(failure);
  if (!current)
    return misuse("a command outside an entry");
  const auto commands = module->commands(*current);
  if (&command < commands.data() ||
      &command >= commands.data() + commands.size())
    return misuse("a command of another entry");
  if (command.kind >= QLORA_COMMAND_KIND_COUNT)
    return misuse("unknown command kind {}", command.kind);
  countCommand(command);
  if (isReplaying)
    return Status::ok();
  failure = timer ? executeTimed(command) : execute(command);
  if (!failure.isOk())
    cancel();
  return failure;
}

Status Device::executeTimed(const qlora_command &command) {
  if (command.kind == QLORA_COMMAND_RECORD)
    return execute(command);
  QLORA_RETURN_IF_ERROR(timer->before(command));
  QLORA_RETURN_IF_ERROR(execute(command));
  return timer->after(command);
}

Status Device::startTiming() {
  if (!module || current || timer)
    return misuse("timing starts once, between entries");
  QLORA_RETURN_IF_ERROR(failure);
  QLORA_ASSIGN_OR_RETURN(timer, makeTimer());
  return timer ? Status::ok()
               : misuse("the {} device runs nothing to time", traits.name);
}

StatusOr<std::vector<TimedCommand>> Device::finishTiming() {
  if (!timer || current)
    return misuse("timing ends after it has started, between entries");
  const std::unique_ptr<CommandTimer> ended = std::move(timer);
  QLORA_RETURN_IF_ERROR(failure);
  return ended->finish();
}

void Device::countCommand(const qlora_command &command) {
  ++count.commands[command.kind];
  if (command.kind == QLORA_COMMAND_COLLECTIVE)
    count.collectiveBytes[command.group][command.collective] +=
        collectiveBytes(*module, command);
  for (const qlora_operand &operand : module->operands(command)) {
    if (operand.access & QLORA_READ)
      count.bytesRead += operand.bytes;
    if (operand.access & QLORA_WRITE)
      count.bytesWritten += operand.bytes;
  }
}

Status Device::synchronize() {
  if (!current)
    return misuse("no entry to wait for");
  current = nullptr;
  Status status = finishEntry();
  if (failure.isOk())
    failure = status;
  if (timer && failure.isOk())
    failure = timer->end();
  return failure;
}

std::vector<ArenaUse> Device::memory() const {
  std::vector<ArenaUse> uses;
  if (!module)
    return uses;
  for (uint32_t i = 0; i < module->arenas().size(); ++i) {
    const qlora_arena &arena = module->arenas()[i];
    uses.push_back({static_cast<qlora_arena_kind>(arena.kind), arena.bytes,
                    i < allocated.size() ? allocated[i] : 0,
                    arena.kind == QLORA_ARENA_FROZEN && frozenIsShared,
                    isOnHost(arena)});
  }
  return uses;
}

std::string Device::kernelName(uint32_t launch) const {
  if (const KernelRow *row = rowOf(launch))
    return row->fullName();
  return module->kernels()[module->launches()[launch].kernel].name;
}

static bool hasAlternatives(const KernelRow &row) {
  return std::any_of(kernelRows().begin(), kernelRows().end(),
                     [&](const KernelRow &other) {
                       return other.op == row.op && &other != &row &&
                              other.target == row.target && !other.isOracle;
                     });
}

std::string kernelsText(const LoadedModule &module, const Device &device) {
  std::set<std::pair<const KernelRow *, const KernelRow *>> choices;
  for (uint32_t i = 0; i < module.launches().size(); ++i)
    if (const KernelRow *planned =
            findLaunchRow(module, module.launches()[i])) {
      const KernelRow *runs = findKernelRow(device.kernelName(i));
      if (runs != planned || hasAlternatives(*planned))
        choices.emplace(runs, planned);
    }
  // Row pointers sort in the order of Kernels.def: all rows are in one array.
  std::vector<std::string> names;
  for (const auto &[row, planned] : choices) {
    names.push_back(row->fullName());
    if (row != planned)
      names.back() += " (planned: ." + planned->implementation + ")";
  }
  return names.empty() ? ""
                       : fmt::format("  kernels  {}\n", fmt::join(names, ", "));
}

} // namespace qlora
