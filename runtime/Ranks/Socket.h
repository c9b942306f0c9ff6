// SPDX-License-Identifier: MIT

// TCP sockets: blocking reads and writes of whole buffers with a time limit.

#ifndef QLORA_RUNTIME_RANKS_SOCKET_H
#define QLORA_RUNTIME_RANKS_SOCKET_H

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Raises the descriptor limit of this process and its children to the hard
/// limit: a job's rank 0 and its launcher need one descriptor per rank.
void raiseDescriptorLimit();

/// Returns the text of an errno, and the remedy if descriptors ran out.
std::string socketErrorText(int error);

/// Whether this errno of a non-blocking read or write ends the connection.
bool isOver(int error);

/// Listens on `host` (a name or address; empty: every interface). Port 0: any
/// free port, see portOf(). kResourceExhausted: another program has the port.
StatusOr<FileDescriptor> listenOn(const std::string &host, int port);

/// Connects. Retries until `timeout`, as the other side may start later. Calls
/// `check` after each attempt; its error ends the retries.
StatusOr<FileDescriptor> connectTo(const std::string &host, int port,
                                   std::chrono::milliseconds timeout,
                                   const std::function<Status()> &check = {});

/// Returns the port of a listening socket.
StatusOr<int> portOf(const FileDescriptor &socket);

/// Returns this machine's numeric address on a connected socket.
StatusOr<std::string> localAddressOf(const FileDescriptor &socket);

/// Makes reads and writes fail after `timeout` without progress. Zero: never.
Status setTimeout(const FileDescriptor &socket,
                  std::chrono::milliseconds timeout);

/// Makes closing the socket drop unsent data. Otherwise the system would try
/// for minutes to send it to a machine that is gone.
void dropUnsent(const FileDescriptor &socket);

/// Returns the numeric address of the other end.
StatusOr<std::string> peerAddressOf(const FileDescriptor &socket);

/// Sends all of the bytes, or fails (kAborted: the other side has closed).
Status sendAll(const FileDescriptor &socket, const void *data, size_t bytes);
Status receiveAll(const FileDescriptor &socket, void *data, size_t bytes);
/// Receives all of the bytes by `deadline`, even if they arrive slowly.
Status receiveBy(const FileDescriptor &socket, void *data, size_t bytes,
                 std::chrono::steady_clock::time_point deadline);

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_SOCKET_H
