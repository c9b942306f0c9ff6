// SPDX-License-Identifier: MIT

// Repeats an operation in turns. In turn n, the n-th matching call fails.
// The last turn is the first one without a failed call.
//
//   for (FaultSweep sweep({.calls = kChanges, .error = ENOSPC,
//                          .below = folder.path()}); sweep.next();) {
//     const Status status = sweep.run([&] { return write(); });
//     EXPECT_EQ(status.isOk(), !sweep.hasFailed()) << sweep.call();
//   }
//
// FaultCalls.cpp defines functions of the C library, and thus replaces them in
// the whole test program. run() also expects that no descriptor is left open
// and that the operation ends soon.

#ifndef QLORA_TESTS_RUNTIME_FAULTS_H
#define QLORA_TESTS_RUNTIME_FAULTS_H

#include <cerrno>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace qlora {

/// Kinds of calls, as bits.
enum FaultCalls : unsigned {
  kChanges = 1,   ///< create, change, flush or remove a file or folder
  kReads = 2,     ///< open and read a file
  kSockets = 4,   ///< create and use sockets, wait for them
  kMemory = 8,    ///< get memory from the system
  kStarts = 16,   ///< start a process or a thread, open a pipe
  kCuda = 32,     ///< call CUDA, cuBLASLt, cuDNN or NVML
  kCudaWork = 64, ///< what a stream of the software platform runs
  kNccl = 128,    ///< call NCCL
};

struct FaultPlan {
  enum class How {
    kOnce,    ///< the n-th call fails
    kFull,    ///< all calls that need disk space fail, from the n-th on
    kOnwards, ///< all calls fail, from the n-th on
    kShort,   ///< the n-th write writes half of its bytes and succeeds
    kKill     ///< the process is killed at the n-th call
  };
  unsigned calls = 0; ///< kinds that count
  /// An errno value, or a library's error code for kCuda, kCudaWork and kNccl.
  /// With EINTR, only system calls that a signal can interrupt count.
  int error = EIO;
  How how = How::kOnce;
  std::string below = {}; ///< only files in this folder count; empty: all files
  std::string only = {};  ///< name of the only function that counts, or empty
};

/// Output and exit code of a child process.
struct FaultyRun {
  int exitCode = 0; ///< 128 + the number of the signal that ended it
  std::string out, errors;
};

class FaultSweep {
public:
  explicit FaultSweep(FaultPlan plan);
  FaultSweep(const FaultSweep &) = delete;
  ~FaultSweep();

  /// Starts the next turn. Returns false after a turn without a failed call.
  bool next();

  /// Runs the operation in this process, with this turn's call failing.
  template <typename Operation> auto run(Operation &&operation) {
    const Armed armed(*this);
    return operation();
  }
  /// Runs the operation, which returns an exit code, in a child process.
  FaultyRun runChild(const std::function<int()> &operation);

  /// Returns whether a call has failed in this turn. The operation itself may
  /// call this, too.
  bool hasFailed() const;
  /// Describes the failed call: "call 3, fsync of '/tmp/x'".
  std::string call() const;
  /// Returns the name of the failed function; empty if none has failed.
  const std::string &name() const { return function; }
  /// Returns the number of turns with a failed call.
  long failures() const { return number - 1; }

private:
  /// Enables faults during an operation, and checks for leaked descriptors and
  /// hangs.
  class Armed {
  public:
    explicit Armed(FaultSweep &sweep);
    ~Armed();

  private:
    FaultSweep &sweep;
    size_t descriptors;
  };
  void arm();
  void disarm();

  FaultPlan plan;
  long number = 0;             ///< index, from 1, of this turn's failing call
  std::string function, place; ///< of the first failed call of this turn
};

/// Exempts this process from the sweep: its calls neither count nor fail. Used
/// by the peer of the process under test.
void spareThisProcess();

/// Runs the operation in a child process without a fault.
FaultyRun runInChild(const std::function<int()> &operation);

/// Records, in order, the calls of the given kinds that this process makes.
class RecordedCalls {
public:
  struct Call {
    std::string function, place; ///< new path of a rename
    std::string from = {};       ///< old path of a rename
  };
  explicit RecordedCalls(unsigned kinds);
  RecordedCalls(const RecordedCalls &) = delete;
  ~RecordedCalls();
  void add(unsigned traits, Call call);

  std::vector<Call> all;

private:
  const unsigned kinds;
};


} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_FAULTS_H
