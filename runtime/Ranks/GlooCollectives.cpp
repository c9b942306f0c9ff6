// SPDX-License-Identifier: MIT

// Gloo behind Collectives.

#include "runtime/Ranks/GlooCollectives.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <csignal>

namespace qlora {

namespace {

/// Our store, as Gloo wants to see it. Errors become exceptions here, since
/// that is all Gloo passes on; connect() turns them back.
class StoreForGloo final : public gloo::rendezvous::Store {
public:
  StoreForGloo(TcpStore &store, std::chrono::milliseconds timeout)
      : store(store), timeout(timeout) {}

  void set(const std::string &key, const std::vector<char> &data) override {
    require(
        store.set("gloo/" + key, std::string_view(data.data(), data.size())));
  }
  std::vector<char> get(const std::string &key) override {
    auto value = store.get("gloo/" + key, timeout);
    require(value.isOk() ? Status::ok() : value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string> &keys) override {
    wait(keys, timeout);
  }
  void wait(const std::vector<std::string> &keys,
            const std::chrono::milliseconds &limit) override {
    for (const std::string &key : keys)
      require(store.get("gloo/" + key, limit).status());
  }

private:
  static void require(const Status &status) {
    if (!status.isOk())
      throw gloo::IoException(status.message());
  }

  TcpStore &store;
  std::chrono::milliseconds timeout;
};

/// Gloo writes to connections that others may have closed; that is an error of
/// the call and not the end of the process. For the calling thread, and for
/// ever in the threads that are started meanwhile: Gloo's.
class NoPipeSignal {
public:
  NoPipeSignal() {
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
  }
  ~NoPipeSignal() {
    constexpr timespec kNoTime{};
    while (sigtimedwait(&pipe, nullptr, &kNoTime) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

private:
  sigset_t pipe;
  sigset_t before;
};

} // namespace

/// A number that no round gets to.
static constexpr uint64_t kSlotOfOthers = uint64_t{1} << 48;

GlooCollectives::GlooCollectives(std::shared_ptr<gloo::Context> context,
                                 std::optional<SharedWindow> window)
    : context(std::move(context)), window(std::move(window)) {}

void GlooCollectives::watchOthers() {
  others = context->createUnboundBuffer(&neverSent, sizeof neverSent);
  for (int rank = 0; rank < context->size; ++rank)
    if (rank != context->rank)
      others->recv(rank, kSlotOfOthers);
}

/// Gloo's thread may be telling `others` of an end: it stops first.
GlooCollectives::~GlooCollectives() {
  try {
    context->closeConnections();
  } catch (const std::exception &) {
    // They are ended already.
  }
}

StatusOr<std::unique_ptr<Collectives>>
GlooCollectives::connect(TcpStore &store, int rank, int size,
                         std::chrono::milliseconds timeout,
                         std::optional<SharedWindow> window) {
  const NoPipeSignal noSignal;
  try {
    gloo::transport::tcp::attr attributes(store.localAddress().c_str());
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(timeout);
    StoreForGloo forGloo(store, timeout);
    context->connectFullMesh(forGloo, device);
    std::unique_ptr<GlooCollectives> group(
        new GlooCollectives(context, std::move(window)));
    group->watchOthers();
    // Nobody leaves before all are connected: Gloo's thread throws where the
    // other end is gone by the time it accepts a connection, and none catches.
    float present = 1;
    QLORA_RETURN_IF_ERROR(group->allReduceSum(&present, 1));
    return std::unique_ptr<Collectives>(std::move(group));
  } catch (const std::exception &error) {
    return Status::error(StatusCode::kAborted,
                         "rank {} of {} cannot connect to the others: {}", rank,
                         size, error.what());
  }
}

/// Lets abort() see what a call waits on, while it does.
struct GlooCollectives::ActiveCall {
  ActiveCall(GlooCollectives &owner, std::vector<Buffer *> buffers)
      : owner(owner) {
    std::lock_guard lock(owner.mutex);
    if (owner.isAborted)
      throw gloo::IoException("stopped");
    owner.active = std::move(buffers);
  }
  ~ActiveCall() {
    std::lock_guard lock(owner.mutex);
    owner.active.clear();
  }
  GlooCollectives &owner;
};

Status GlooCollectives::lost(const std::exception &error) const {
  return Status::error(StatusCode::kAborted,
                       "rank {} lost the other ranks: {}", context->rank,
                       error.what());
}

int GlooCollectives::rank() const { return context->rank; }
int GlooCollectives::size() const { return context->size; }

std::chrono::milliseconds GlooCollectives::timeout() const {
  return context->getTimeout();
}

Status GlooCollectives::checkOthers() {
  try {
    // A wait that is over at once: it throws where a connection has ended.
    others->abortWaitRecv();
    others->waitRecv();
    return Status::ok();
  } catch (const std::exception &error) {
    return lost(error);
  }
}

int64_t GlooCollectives::partBegin(int rank, int64_t count) const {
  int64_t size = context->size;
  return count / size * rank + std::min<int64_t>(rank, count % size);
}

GlooCollectives::Piece GlooCollectives::partOf(int rank, int64_t count) const {
  const int64_t begin = partBegin(rank, count);
  return {begin * sizeof(float),
          (partBegin(rank + 1, count) - begin) * sizeof(float)};
}

static void waitForSends(gloo::transport::UnboundBuffer &buffer,
                         int64_t messages) {
  for (int64_t i = 0; i < messages; ++i)
    if (!buffer.waitSend())
      throw gloo::IoException("stopped while sending");
}

static void waitForReceives(gloo::transport::UnboundBuffer &buffer,
                            int64_t messages) {
  for (int64_t i = 0; i < messages; ++i)
    if (!buffer.waitRecv())
      throw gloo::IoException("stopped while receiving");
}

void GlooCollectives::exchange(Buffer &from, const PieceOfRank &sent,
                               Buffer &into, const PieceOfRank &received) {
  int64_t sends = 0, receives = 0;
  for (int rank = 0; rank < context->size; ++rank) {
    if (rank == context->rank)
      continue;
    if (const Piece piece = received(rank); piece.bytes > 0) {
      into.recv(rank, slot, piece.offset, piece.bytes);
      ++receives;
    }
    if (const Piece piece = sent(rank); piece.bytes > 0) {
      from.send(rank, slot, piece.offset, piece.bytes);
      ++sends;
    }
  }
  waitForReceives(into, receives);
  waitForSends(from, sends);
  ++slot;
}

void GlooCollectives::sumOwnPart(float *data, int64_t count) {
  const Piece own = partOf(context->rank, count);
  const size_t size = own.bytes / sizeof(float);
  float *part = data + own.offset / sizeof(float);
  std::copy_n(part, size, scratch.data() + context->rank * size);
  std::copy_n(scratch.data(), size, part);
  for (int rank = 1; rank < context->size; ++rank)
    for (size_t i = 0; i < size; ++i)
      part[i] += scratch[rank * size + i];
}

std::unique_ptr<GlooCollectives::Buffer>
GlooCollectives::bufferOf(void *data, size_t bytes) {
  return context->createUnboundBuffer(data, bytes);
}

void GlooCollectives::sumByMessages(float *data, int64_t count) {
  const Piece own = partOf(context->rank, count);
  const size_t scratchBytes = own.bytes * context->size;
  scratch.resize(std::max(scratch.size(), scratchBytes / sizeof(float)));
  auto whole = bufferOf(data, count * sizeof(float));
  auto parts = bufferOf(scratch.data(), scratchBytes);
  const ActiveCall call(*this, {whole.get(), parts.get()});
  const auto partOfRank = [&](int rank) { return partOf(rank, count); };
  exchange(*whole, partOfRank, *parts, [&](int rank) {
    return Piece{rank * own.bytes, own.bytes};
  });
  sumOwnPart(data, count);
  exchange(*whole, [&](int) { return own; }, *whole, partOfRank);
}

void GlooCollectives::sumInWindow(float *data, int64_t count) {
  char here = 0;
  std::vector<char> there(context->size);
  auto sent = bufferOf(&here, sizeof here);
  auto received = bufferOf(there.data(), there.size());
  const ActiveCall call(*this, {sent.get(), received.get()});
  const auto meet = [&] {
    exchange(*sent, [](int) { return Piece{0, 1}; }, *received,
             [](int rank) { return Piece{static_cast<size_t>(rank), 1}; });
  };
  for (int64_t done = 0; done < count;) {
    const int64_t round = std::min(count - done, SharedWindow::kCapacity);
    window->write(data + done, round);
    meet();
    window->sumPart(partBegin(context->rank, round),
                    partBegin(context->rank + 1, round));
    meet();
    window->read(data + done, round);
    done += round;
  }
}

Status GlooCollectives::allReduceSum(float *data, int64_t count) {
  const NoPipeSignal noSignal;
  try {
    window ? sumInWindow(data, count) : sumByMessages(data, count);
    return Status::ok();
  } catch (const std::exception &error) {
    return lost(error);
  }
}

void GlooCollectives::abort() {
  {
    std::lock_guard lock(mutex);
    isAborted = true;
    for (Buffer *buffer : active) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  try {
    context->closeConnections();
  } catch (const std::exception &) {
    // It was already broken, which is what the caller wants.
    return;
  }
}

} // namespace qlora
