// SPDX-License-Identifier: MIT

// Rank 0's side of the rendezvous (RendezvousProtocol.h).

#ifndef QLORA_RUNTIME_RANKS_RENDEZVOUSSERVER_H
#define QLORA_RUNTIME_RANKS_RENDEZVOUSSERVER_H

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/ConnectionLoop.h"
#include "runtime/Ranks/RendezvousProtocol.h"

namespace qlora {

/// Serves all connections on one thread until it is destroyed.
class RendezvousServer : private ConnectionLoop::Protocol {
public:
  struct Terms {
    std::string secret;
    int ranks = 1;
    std::string version; ///< the version that all ranks must have
    std::string place;   ///< address and port of the server, for messages
    std::chrono::milliseconds patience = std::chrono::minutes(1);
    RankTimeLimits limits;
  };

  /// `listening`: from listenOn(), or inherited. `warn` is called from the
  /// server's thread, at most once, if descriptors run out.
  static StatusOr<std::unique_ptr<RendezvousServer>>
  start(FileDescriptor listening, Terms terms,
        std::function<void(const std::string &)> warn = nullptr);
  ~RendezvousServer() override;

  /// Waits, at most for `patience`, until all ranks have received the result.
  void waitUntilTold(std::chrono::milliseconds patience);

private:
  using Clock = ConnectionLoop::Clock;
  using Connection = ConnectionLoop::Connection;
  struct Exchange {
    /// Text of each rank; nullopt before it arrives.
    std::vector<std::optional<std::string>> values;
    size_t missing = 0;
  };
  static constexpr size_t kExchanges = 2;

  RendezvousServer(ConnectionLoop loop, Terms terms,
                   std::function<void(const std::string &)> warn);
  void serve();
  void accept(Connection &client) override;
  void receive(Connection &client) override;
  void close(Connection &client) override;
  void authenticate(Connection &client);
  void answer(Connection &client);
  void expectRequest(Connection &client);
  void give(Connection &client, const std::string &text);
  void refuse(Connection &client);
  std::chrono::milliseconds ringPatience() const {
    return terms.limits.secondExchange() + terms.limits.longer;
  }
  void complete(size_t number);
  bool isWelcome(const RendezvousRequest &request, uint32_t rank,
                 size_t number);
  void noteStranger(const Connection &client, uint32_t rank);
  void noteShortage();
  void fail(std::string why);
  void failForMissing(size_t number);
  void noteAnswered(uint32_t rank);
  std::string missingText(const Exchange &exchange) const;

  const Terms terms;
  const std::function<void(const std::string &)> warn;
  ConnectionLoop loop;
  // Only the server's thread uses the members from here to `mutex`.
  std::array<Exchange, kExchanges> exchanges;
  Clock::time_point deadline;     ///< time limit of the incomplete exchange
  std::string stranger;           ///< error for a client with another secret
  std::string failure;            ///< the first error, which all ranks get
  std::vector<std::string> hosts; ///< index: rank
  bool hasWarned = false;
  std::mutex mutex; ///< guards everything below
  std::condition_variable changed;
  bool isStopping = false;
  std::vector<bool> isTold; ///< index: rank
  std::thread thread;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RENDEZVOUSSERVER_H
