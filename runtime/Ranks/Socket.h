// SPDX-License-Identifier: MIT

// TCP sockets: blocking reads and writes of whole buffers with a time limit.

#ifndef QLORA_RUNTIME_RANKS_SOCKET_H
#define QLORA_RUNTIME_RANKS_SOCKET_H

#include <chrono>
#include <cstddef>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Lets this process and those that it starts have as many descriptors as the
/// system permits: a job's rank 0 and its launcher have one for each rank.
void raiseDescriptorLimit();

/// Why a socket cannot be made: text of an errno. If descriptors ran out, with
/// the limit and what to do.
std::string socketErrorText(int error);

/// Whether a read or write without blocking that has failed so is the last one.
bool isOver(int error);

/// Listens on `host` (a name or address; empty: every interface). Port 0:
/// any free one; see portOf(). kResourceExhausted: another program has it.
StatusOr<FileDescriptor> listenOn(const std::string &host, int port);

/// Connects, trying again until `timeout` has passed: the other side may not
/// have started yet.
StatusOr<FileDescriptor> connectTo(const std::string &host, int port,
                                   std::chrono::milliseconds timeout);

/// The port that a listening socket got.
StatusOr<int> portOf(const FileDescriptor &socket);

/// The numeric address of this machine on a connected socket.
StatusOr<std::string> localAddressOf(const FileDescriptor &socket);

/// From now on, a read or write that makes no progress for so long fails.
/// Zero: never.
Status setTimeout(const FileDescriptor &socket,
                  std::chrono::milliseconds timeout);

/// Closing it leaves nothing behind: what was not sent is dropped, where the
/// system would go on for minutes to send it to a machine that is gone.
void dropUnsent(const FileDescriptor &socket);

/// The numeric address at the other end.
StatusOr<std::string> peerAddressOf(const FileDescriptor &socket);

/// All of the bytes, or an error (kAborted: the other side closed).
Status sendAll(const FileDescriptor &socket, const void *data, size_t bytes);
Status receiveAll(const FileDescriptor &socket, void *data, size_t bytes);
/// All of the bytes by `deadline`, however they trickle in.
Status receiveBy(const FileDescriptor &socket, void *data, size_t bytes,
                 std::chrono::steady_clock::time_point deadline);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SOCKET_H
