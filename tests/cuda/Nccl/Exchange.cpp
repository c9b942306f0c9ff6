// SPDX-License-Identifier: MIT

// A file in memory that is found through its owner's descriptor.

#include "tests/cuda/Nccl/Exchange.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace qlora::platform {

namespace {
/// What a unique id holds.
struct Address {
  char mark[16];
  int64_t process;
  int64_t file;
};
} // namespace

static constexpr char kMark[16] = "qlora-nccl-id";
static constexpr size_t kHeadBytes = 1 << 16;
static constexpr size_t kPlaceBytes = Exchange::kMostFloats * sizeof(float);
/// Reserved only; pages come when they are written.
static constexpr size_t kBytes =
    kHeadBytes + 2 * Exchange::kMostRanks * kPlaceBytes;

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

std::string Exchange::join(int device) {
  for (const Rank &other : shared->ranks)
    if (other.joined && other.size != size)
      return fmt::format("the group has {} ranks here, {} elsewhere", size,
                         other.size.load());
  own().size = size;
  int nobody = 0;
  if (!own().joined.compare_exchange_strong(nobody, device + 1))
    return fmt::format("there are two of rank {}", rank);
  return "";
}

bool Exchange::haveAllJoined() const {
  return isEach([](const Rank &each) { return each.joined != 0; });
}

int Exchange::rankOnSameCard() const {
  for (int other = 0; other < size; ++other)
    if (other != rank && shared->ranks[other].joined == own().joined)
      return other;
  return -1;
}

float *Exchange::place(int ofRank, uint64_t number) const {
  char *const places = reinterpret_cast<char *>(shared) + kHeadBytes;
  return reinterpret_cast<float *>(
      places + (2 * size_t(ofRank) + number % 2) * kPlaceBytes);
}

std::string CollectiveCall::text() const {
  return fmt::format(
      "{} {}", isCaptured ? "replays what it captured in its call" : "runs its call",
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
    // Read first: who meets this rank in the capture goes on after it.
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
                       const float *data, size_t count) {
  if (!isEach([=](const Rank &each) { return each.summed + 1 >= number; }))
    return false;
  std::memcpy(place(rank, number), data, count * sizeof(float));
  own().counts[number % 2] = count;
  own().calls[number % 2] = call;
  own().published = number + 1;
  return true;
}

bool Exchange::haveAllPublished(uint64_t number) const {
  return isEach([=](const Rank &each) { return each.published > number; });
}

std::string Exchange::objectionToSum(uint64_t number) const {
  const Rank &mine = own();
  for (int other = 0; other < size; ++other) {
    const Rank &each = shared->ranks[other];
    const CollectiveCall &call = each.calls[number % 2];
    if (call != mine.calls[number % 2])
      return fmt::format("collective {}: rank {} {}, rank {} {}", number + 1,
                         rank, mine.calls[number % 2].text(), other,
                         call.text());
    if (each.counts[number % 2] != mine.counts[number % 2])
      return fmt::format("rank {} adds {} values up, rank {} {}", rank,
                         mine.counts[number % 2], other,
                         each.counts[number % 2]);
  }
  return "";
}

void Exchange::sum(uint64_t number, float *data, size_t count) {
  std::memcpy(data, place(0, number), count * sizeof(float));
  for (int other = 1; other < size; ++other) {
    const float *more = place(other, number);
    for (size_t i = 0; i < count; ++i)
      data[i] += more[i];
  }
  own().summed = number + 1;
}

void Exchange::finish() { own().hasFinished = true; }

bool Exchange::haveAllFinished() const {
  return isEach([](const Rank &each) { return each.hasFinished.load(); });
}

} // namespace qlora::platform
