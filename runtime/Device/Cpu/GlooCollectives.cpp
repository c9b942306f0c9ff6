// SPDX-License-Identifier: MIT

// Gloo behind Collectives.

#include "runtime/Device/Cpu/GlooCollectives.h"

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

GlooCollectives::GlooCollectives(std::shared_ptr<gloo::Context> context)
    : context(std::move(context)) {}

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
                         std::chrono::milliseconds timeout) {
  const NoPipeSignal noSignal;
  try {
    gloo::transport::tcp::attr attributes(store.localAddress().c_str());
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(timeout);
    StoreForGloo forGloo(store, timeout);
    context->connectFullMesh(forGloo, device);
    std::unique_ptr<GlooCollectives> group(new GlooCollectives(context));
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

int64_t GlooCollectives::partSize(int rank, int64_t count) const {
  return partBegin(rank + 1, count) - partBegin(rank, count);
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

void GlooCollectives::sumOwnPart(float *data, int64_t count) {
  int self = context->rank;
  int64_t size = partSize(self, count);
  float *part = data + partBegin(self, count);
  std::copy_n(part, size, scratch.data() + self * size);
  std::copy_n(scratch.data(), size, part);
  for (int rank = 1; rank < context->size; ++rank)
    for (int64_t i = 0; i < size; ++i)
      part[i] += scratch[rank * size + i];
}

void GlooCollectives::collectParts(Buffer &data, Buffer &parts, int64_t count) {
  size_t ownBytes = partSize(context->rank, count) * sizeof(float);
  int64_t sent = 0, received = 0;
  for (int rank = 0; rank < context->size; ++rank) {
    if (rank == context->rank)
      continue;
    if (ownBytes > 0) {
      parts.recv(rank, slot, rank * ownBytes, ownBytes);
      ++received;
    }
    if (size_t bytes = partSize(rank, count) * sizeof(float)) {
      data.send(rank, slot, partBegin(rank, count) * sizeof(float), bytes);
      ++sent;
    }
  }
  waitForReceives(parts, received);
  waitForSends(data, sent);
  ++slot;
}

void GlooCollectives::spreadSums(Buffer &data, int64_t count) {
  int self = context->rank;
  size_t ownBytes = partSize(self, count) * sizeof(float);
  int64_t sent = 0, received = 0;
  for (int rank = 0; rank < context->size; ++rank) {
    if (rank == self)
      continue;
    if (size_t bytes = partSize(rank, count) * sizeof(float)) {
      data.recv(rank, slot, partBegin(rank, count) * sizeof(float), bytes);
      ++received;
    }
    if (ownBytes > 0) {
      data.send(rank, slot, partBegin(self, count) * sizeof(float), ownBytes);
      ++sent;
    }
  }
  waitForReceives(data, received);
  waitForSends(data, sent);
  ++slot;
}

Status GlooCollectives::allReduceSum(float *data, int64_t count) {
  const NoPipeSignal noSignal;
  size_t ownCount = partSize(context->rank, count);
  scratch.resize(std::max(scratch.size(), ownCount * context->size));
  try {
    auto whole = context->createUnboundBuffer(data, count * sizeof(float));
    auto parts = context->createUnboundBuffer(scratch.data(),
                                              scratch.size() * sizeof(float));
    ActiveCall call(*this, {whole.get(), parts.get()});
    collectParts(*whole, *parts, count);
    sumOwnPart(data, count);
    spreadSums(*whole, count);
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
