// SPDX-License-Identifier: MIT

// Memory shared by ranks: an anonymous file, opened through its owner's
// descriptor.

#include "tests/cuda/Nccl/Exchange.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

namespace qlora::platform {

namespace {
/// Contents of an ncclUniqueId.
struct Address {
  char mark[16];
  int64_t process;
  int64_t file;
};
} // namespace

static constexpr char kMark[16] = "qlora-nccl-id";
static constexpr size_t kHeadBytes = 1 << 16;
static constexpr size_t kPlaceBytes = Exchange::kMostBytes;
static constexpr size_t kPlacesBytes =
    2 * Exchange::kMostRanks * kPlaceBytes;
/// Address space; the system allocates pages when they are written.
static constexpr size_t kBytes =
    kHeadBytes + kPlacesBytes +
    Exchange::kMostRanks * Exchange::kMostRanks * Exchange::kMostSent;

bool Exchange::create(ncclUniqueId &id) {
  static_assert(sizeof(Shared) <= kHeadBytes);
  static_assert(sizeof(Address) <= sizeof(ncclUniqueId));
  const int file = memfd_create("nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, kBytes) != 0)
    return false;
  Address address = {{}, getpid(), file};
  std::memcpy(address.mark, kMark, sizeof kMark);
  id = {};
  std::memcpy(id.internal, &address, sizeof address);
  return true;
}

std::shared_ptr<Exchange> Exchange::open(const ncclUniqueId &id, int rank,
                                         int size) {
  Address address;
  std::memcpy(&address, id.internal, sizeof address);
  if (std::memcmp(address.mark, kMark, sizeof kMark) != 0)
    return nullptr;
  const std::string path =
      fmt::format("/proc/{}/fd/{}", address.process, address.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    return nullptr;
  void *memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (memory == MAP_FAILED)
    return nullptr;
  return std::shared_ptr<Exchange>(new Exchange(memory, rank, size));
}

Exchange::Exchange(void *memory, int rank, int size)
    : shared(static_cast<Shared *>(memory)), rank(rank), size(size) {}

Exchange::~Exchange() { munmap(shared, kBytes); }

template <typename Predicate>
bool Exchange::isEach(Predicate predicate) const {
  return std::all_of(shared->ranks, shared->ranks + size, predicate);
}

std::string Exchange::join(int device, uint64_t host) {
  for (const Rank &other : shared->ranks)
    if (other.joined && other.size != size)
      return fmt::format("the group has {} ranks here, {} elsewhere", size,
                         other.size.load());
  own().size = size;
  own().host = host;
  int nobody = 0;
  if (!own().joined.compare_exchange_strong(nobody, device + 1))
    return fmt::format("there are two of rank {}", rank);
  return "";
}

bool Exchange::haveAllJoined() const {
  return isEach([](const Rank &each) { return each.joined != 0; });
}

int Exchange::rankOnSameGpu() const {
  for (int other = 0; other < size; ++other)
    if (other != rank && shared->ranks[other].joined == own().joined &&
        shared->ranks[other].host == own().host)
      return other;
  return -1;
}

bool Exchange::hasOtherHost() const {
  return !isEach([this](const Rank &each) { return each.host == own().host; });
}

/// Alternates between two slots. When all ranks have offered this split, no
/// rank reads the previous one any more.
bool Exchange::offer(const Split &split) {
  if (!isEach(
          [this](const Rank &each) { return each.offered >= own().offered; }))
    return false;
  own().splits[own().offered % 2] = split;
  ++own().offered;
  return true;
}

bool Exchange::haveAllOffered() const {
  return isEach(
      [this](const Rank &each) { return each.offered >= own().offered; });
}

Exchange::Part Exchange::partOf() const {
  const uint64_t number = own().offered - 1;
  const auto splitOf = [&](int ofRank) -> const Split & {
    return shared->ranks[ofRank].splits[number % 2];
  };
  const Split &mine = splitOf(rank);
  Part part;
  std::pair<int, int> first(INT_MAX, 0);
  for (int other = 0; other < size; ++other) {
    const Split &theirs = splitOf(other);
    if (theirs.color != mine.color)
      continue;
    const std::pair place(theirs.key, other);
    part.rank += place < std::pair(mine.key, rank);
    ++part.size;
    if (place < first)
      part.id = theirs.id;
    first = std::min(first, place);
  }
  return part;
}

uint8_t *Exchange::place(int ofRank, uint64_t number) const {
  return reinterpret_cast<uint8_t *>(shared) + kHeadBytes +
         (2 * size_t(ofRank) + number % 2) * kPlaceBytes;
}

uint8_t *Exchange::letter(int sender, int receiver) const {
  return reinterpret_cast<uint8_t *>(shared) + kHeadBytes + kPlacesBytes +
         (size_t(sender) * kMostRanks + size_t(receiver)) * kMostSent;
}

std::string Operands::text() const {
  constexpr const char *kNames[] = {"ncclAllReduce", "ncclAllGather",
                                    "ncclReduceScatter", "ncclBroadcast"};
  return fmt::format("{} of {} bytes of type {}", kNames[kind], bytes, type) +
         (kind == kBroadcast ? fmt::format(" from rank {}", root) : "");
}

std::string CollectiveCall::text() const {
  return fmt::format("{} {}",
                     isCaptured ? "replays what it captured in its call"
                                : "runs its call",
                     number + 1);
}

void Exchange::enter(const CollectiveCall &call) {
  own().entered[call.number % kMostCallsAhead] =
      2 * (call.number + 1) + call.isCaptured;
}

bool Exchange::haveAllEntered(uint64_t number) const {
  return isEach([=](const Rank &each) {
    return each.entered[number % kMostCallsAhead] / 2 > number;
  });
}

std::string Exchange::objectionToCapture(const CollectiveCall &call,
                                         uint64_t done, bool isIdle) const {
  for (int other = 0; other < size; ++other) {
    const Rank &each = shared->ranks[other];
    // Read `published` before `entered`. In the opposite order, the other rank
    // could capture the call and launch its graph between the two reads. It
    // would then seem ahead without a capture.
    const bool isAhead = isIdle && each.published > done;
    const uint64_t entered = each.entered[call.number % kMostCallsAhead];
    if (entered == 2 * (call.number + 1) + 1)
      continue;
    if (entered / 2 > call.number)
      return fmt::format("rank {} captures its call {}, rank {} runs its own "
                         "directly",
                         rank, call.number + 1, other);
    if (isAhead)
      return fmt::format("rank {} captures its call {}, rank {} {}", rank,
                         call.number + 1, other,
                         each.calls[done % 2].text());
  }
  return "";
}

bool Exchange::publish(uint64_t number, const CollectiveCall &call,
                       const Operands &operands) {
  if (!isEach([=](const Rank &each) { return each.finished + 1 >= number; }))
    return false;
  std::memcpy(place(rank, number), operands.from, operands.bytes);
  own().operands[number % 2] = operands;
  own().calls[number % 2] = call;
  own().published = number + 1;
  return true;
}

bool Exchange::haveAllPublished(uint64_t number) const {
  return isEach([=](const Rank &each) { return each.published > number; });
}

std::string Exchange::objectionTo(uint64_t number) const {
  const Rank &mine = own();
  for (int other = 0; other < size; ++other) {
    const Rank &each = shared->ranks[other];
    const CollectiveCall &call = each.calls[number % 2];
    if (call != mine.calls[number % 2])
      return fmt::format("collective {}: rank {} {}, rank {} {}", number + 1,
                         rank, mine.calls[number % 2].text(), other,
                         call.text());
    const Operands &operands = mine.operands[number % 2];
    if (!operands.matches(each.operands[number % 2]))
      return fmt::format("rank {} runs {}, rank {} {}", rank, operands.text(),
                         other, each.operands[number % 2].text());
  }
  return "";
}

static float widened(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static uint16_t narrowed(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T, typename Add>
static void addEach(void *sum, const void *addend, size_t bytes, Add add) {
  auto *to = static_cast<T *>(sum);
  const auto *from = static_cast<const T *>(addend);
  for (size_t i = 0; i < bytes / sizeof(T); ++i)
    to[i] = add(to[i], from[i]);
}

static void add(int type, void *sum, const void *addend, size_t bytes) {
  if (type == kNcclFloat32)
    return addEach<float>(sum, addend, bytes, std::plus<float>());
  if (type == kNcclInt32)
    return addEach<uint32_t>(sum, addend, bytes, std::plus<uint32_t>());
  addEach<uint16_t>(sum, addend, bytes, [](uint16_t a, uint16_t b) {
    return narrowed(widened(a) + widened(b));
  });
}

void Exchange::finish(uint64_t number, const Operands &operands, void *to) {
  auto *result = static_cast<uint8_t *>(to);
  const bool isScattered = operands.kind == Operands::kReduceScatter;
  const size_t bytes = isScattered ? operands.bytes / size_t(size)
                                   : operands.bytes;
  const size_t offset = isScattered ? bytes * size_t(rank) : 0;
  if (operands.kind == Operands::kBroadcast)
    std::memcpy(to, place(operands.root, number), bytes);
  for (int other = 0; other < size; ++other) {
    const uint8_t *from = place(other, number) + offset;
    if (operands.kind == Operands::kAllGather)
      std::memcpy(result + size_t(other) * bytes, from, bytes);
    else if (operands.isSum() && other == 0)
      std::memcpy(to, from, bytes);
    else if (operands.isSum())
      add(operands.type, to, from, bytes);
  }
  own().finished = number + 1;
}

bool Exchange::send(int peer, const void *from, size_t bytes) {
  Mailbox &mail = shared->mail[rank][peer];
  if (mail.sent != mail.received)
    return false;
  std::memcpy(letter(rank, peer), from, bytes);
  mail.bytes = bytes;
  ++mail.sent;
  return true;
}

int Exchange::hasSent(int peer, size_t bytes) const {
  const Mailbox &mail = shared->mail[peer][rank];
  if (mail.sent == mail.received)
    return 0;
  return mail.bytes == bytes ? 1 : -1;
}

void Exchange::receive(int peer, void *to) {
  Mailbox &mail = shared->mail[peer][rank];
  std::memcpy(to, letter(peer, rank), mail.bytes);
  ++mail.received;
}

void Exchange::finish() { own().hasFinished = true; }

bool Exchange::haveAllFinished() const {
  return isEach([](const Rank &each) { return each.hasFinished.load(); });
}

} // namespace qlora::platform
