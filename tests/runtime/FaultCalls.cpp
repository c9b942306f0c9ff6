// SPDX-License-Identifier: MIT

// Replacements of C library functions. Each asks faultAt() whether to fail. If
// not, it calls the next definition of its name, the C library's or a
// sanitizer's.
//
// ThreadSanitizer calls some of these functions before our code can run. Its
// builds therefore have no replacements, and no call fails.

#ifndef __SANITIZE_THREAD__

#include "tests/runtime/FaultCalls.h"
#include "tests/runtime/LibraryCalls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

using namespace qlora;

namespace {

template <typename Function> Function *nextOf(const char *name) {
  return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

std::string placeOf(int descriptor) {
  char path[512] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return readlink(link.c_str(), path, sizeof path - 1) > 0 ? path : "";
}
std::string placeOf(const char *path) {
  if (!path || *path == '/')
    return path ? path : "";
  char folder[512] = {};
  return getcwd(folder, sizeof folder) ? std::string(folder) + "/" + path
                                       : path;
}
std::string placeOf(FILE *file) { return file ? placeOf(fileno(file)) : ""; }
/// The place of a call that uses no file.
struct Nowhere {};
std::string placeOf(Nowhere) { return ""; }

/// Returns the full path of `path`, relative to the open folder `folder`.
std::string placeIn(int folder, const char *path) {
  return folder == AT_FDCWD || *path == '/' ? placeOf(path)
                                            : placeOf(folder) + "/" + path;
}
std::string placeOf(const std::string &path) { return path; }

template <typename Where>
int verdict(const char *name, unsigned traits, Where &&where) {
  if (!areFaultsArmed())
    return 0;
  const int before = errno;
  const int error = faultAt(name, traits, placeOf(where()));
  errno = error > 0 ? error : before;
  return error;
}

unsigned traitsOf(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT)
             ? kChanges | kNeedsSpace
             : unsigned{kReads};
}
unsigned traitsOf(const char *mode) {
  return *mode == 'r' ? unsigned{kReads} : kChanges | kNeedsSpace;
}
/// Returns the traits of close(), whose failure matters only for a file opened
/// for writing.
unsigned traitsOfClose(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY ? unsigned{kChanges} : 0;
}

} // namespace

// Each macro ends like a declaration, so that a semicolon follows its use.
#define NEXT(name) static auto *const next = nextOf<decltype(name)>(#name)

/// Replaces a function that returns -1 and sets errno if it fails.
#define ENTRY(Result, name, Parameters, Arguments, traits, where, Throws)      \
  extern "C" Result name Parameters Throws {                                   \
    NEXT(name);                                                                \
    if (verdict(#name, traits, [&] { return where; }) > 0)                     \
      return (Result)-1;                                                       \
    return next Arguments;                                                     \
  }                                                                            \
  static_assert(true)

ENTRY(int, flock, (int fd, int how), (fd, how), kChanges, fd, noexcept);
ENTRY(int, ftruncate, (int fd, off_t size), (fd, size),
      kChanges | kMemory | kNeedsSpace, fd, noexcept);
ENTRY(int, fallocate, (int fd, int mode, off_t at, off_t size),
      (fd, mode, at, size), kChanges | kNeedsSpace, fd, );
ENTRY(int, unlink, (const char *path), (path), kChanges, path, noexcept);
ENTRY(int, unlinkat, (int folder, const char *path, int flags),
      (folder, path, flags), kChanges, placeIn(folder, path), noexcept);
ENTRY(int, remove, (const char *path), (path), kChanges, path, noexcept);
ENTRY(int, rmdir, (const char *path), (path), kChanges, path, noexcept);
ENTRY(int, mkdir, (const char *path, mode_t mode), (path, mode),
      kChanges | kNeedsSpace, path, noexcept);
ENTRY(ssize_t, writev, (int fd, const iovec *parts, int count),
      (fd, parts, count), kChanges | kNeedsSpace, fd, );
ENTRY(ssize_t, sendfile, (int to, int from, off_t *at, size_t bytes),
      (to, from, at, bytes), kChanges | kNeedsSpace, to, noexcept);
ENTRY(int, fputs, (const char *text, FILE *file), (text, file),
      kChanges | kNeedsSpace, file, );
ENTRY(int, fflush, (FILE * file), (file), kChanges | kNeedsSpace, file, );

ENTRY(ssize_t, read, (int fd, void *to, size_t bytes), (fd, to, bytes),
      kReads | kIsInterrupted, fd, );
ENTRY(ssize_t, pread, (int fd, void *to, size_t bytes, off_t at),
      (fd, to, bytes, at), kReads | kIsInterrupted, fd, );
ENTRY(int, fstat, (int fd, struct stat *info), (fd, info), kReads, fd,
      noexcept);
ENTRY(int, stat, (const char *path, struct stat *info), (path, info), kReads,
      path, noexcept);
ENTRY(int, lstat, (const char *path, struct stat *info), (path, info), kReads,
      path, noexcept);

ENTRY(int, socket, (int family, int type, int protocol),
      (family, type, protocol), kSockets, Nowhere(), noexcept);
ENTRY(int, socketpair, (int family, int type, int protocol, int *ends),
      (family, type, protocol, ends), kSockets | kStarts, Nowhere(), noexcept);
ENTRY(int, bind, (int fd, const sockaddr *address, socklen_t bytes),
      (fd, address, bytes), kSockets, fd, noexcept);
ENTRY(int, listen, (int fd, int waiting), (fd, waiting), kSockets, fd,
      noexcept);
ENTRY(int, connect, (int fd, const sockaddr *address, socklen_t bytes),
      (fd, address, bytes), kSockets | kIsInterrupted, fd, );
ENTRY(int, accept4, (int fd, sockaddr *address, socklen_t *bytes, int flags),
      (fd, address, bytes, flags), kSockets | kIsInterrupted, fd, );
ENTRY(ssize_t, send, (int fd, const void *from, size_t bytes, int flags),
      (fd, from, bytes, flags), kSockets | kIsInterrupted, fd, );
ENTRY(ssize_t, recv, (int fd, void *to, size_t bytes, int flags),
      (fd, to, bytes, flags), kSockets | kIsInterrupted, fd, );
ENTRY(ssize_t, sendmsg, (int fd, const msghdr *message, int flags),
      (fd, message, flags), kSockets | kIsInterrupted, fd, );
ENTRY(ssize_t, recvmsg, (int fd, msghdr *message, int flags),
      (fd, message, flags), kSockets | kIsInterrupted, fd, );
ENTRY(int, poll, (pollfd * events, nfds_t count, int timeout),
      (events, count, timeout), kSockets | kIsInterrupted, Nowhere(), );
ENTRY(int, setsockopt,
      (int fd, int level, int name, const void *value, socklen_t bytes),
      (fd, level, name, value, bytes), kSockets, fd, noexcept);
ENTRY(int, getsockopt,
      (int fd, int level, int name, void *value, socklen_t *bytes),
      (fd, level, name, value, bytes), kSockets, fd, noexcept);
ENTRY(int, getsockname, (int fd, sockaddr *address, socklen_t *bytes),
      (fd, address, bytes), kSockets, fd, noexcept);
ENTRY(int, getpeername, (int fd, sockaddr *address, socklen_t *bytes),
      (fd, address, bytes), kSockets, fd, noexcept);
ENTRY(int, eventfd, (unsigned first, int flags), (first, flags), kSockets,
      Nowhere(), noexcept);

ENTRY(void *, mmap,
      (void *at, size_t bytes, int protection, int flags, int fd, off_t from),
      (at, bytes, protection, flags, fd, from), kMemory, fd, noexcept);
ENTRY(int, mprotect, (void *at, size_t bytes, int protection),
      (at, bytes, protection), kMemory, Nowhere(), noexcept);
ENTRY(int, memfd_create, (const char *name, unsigned flags), (name, flags),
      kMemory, std::string(name), noexcept);

ENTRY(pid_t, fork, (), (), kStarts, Nowhere(), noexcept);
ENTRY(int, pipe2, (int *ends, int flags), (ends, flags), kStarts, Nowhere(),
      noexcept);

extern "C" int rename(const char *from, const char *to) noexcept {
  NEXT(rename);
  if (areFaultsArmed())
    if (const int error =
            faultAt("rename", kChanges, placeOf(to), placeOf(from))) {
      errno = error;
      return -1;
    }
  return next(from, to);
}

/// Replaces functions that take a mode if they create a file.
#define OPEN(name, Parameters, Arguments, where)                               \
  extern "C" int name Parameters {                                             \
    NEXT(name);                                                                \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;            \
    va_end(list);                                                              \
    if (verdict(#name, traitsOf(flags), [&] { return where; }) > 0)            \
      return -1;                                                               \
    return next Arguments;                                                     \
  }                                                                            \
  static_assert(true)
OPEN(open, (const char *path, int flags, ...), (path, flags, mode), path);
OPEN(openat, (int folder, const char *path, int flags, ...),
     (folder, path, flags, mode), placeIn(folder, path));

#define OPEN_STREAM(name)                                                      \
  extern "C" FILE *name(const char *path, const char *mode) {                  \
    NEXT(name);                                                                \
    if (verdict(#name, traitsOf(mode), [&] { return path; }) > 0)              \
      return nullptr;                                                          \
    return next(path, mode);                                                   \
  }                                                                            \
  static_assert(true)
OPEN_STREAM(fopen);
OPEN_STREAM(fopen64);

/// Replaces functions that may write fewer bytes than they are given.
#define WRITE(name, Parameters, Arguments)                                     \
  extern "C" ssize_t name Parameters {                                         \
    NEXT(name);                                                                \
    const int error =                                                          \
        verdict(#name, kChanges | kNeedsSpace | kWrites | kIsInterrupted,      \
                [&] { return fd; });                                           \
    if (error > 0)                                                             \
      return -1;                                                               \
    if (error == kShortWrite && bytes > 1)                                     \
      bytes /= 2;                                                              \
    return next Arguments;                                                     \
  }                                                                            \
  static_assert(true)
WRITE(write, (int fd, const void *from, size_t bytes), (fd, from, bytes));
WRITE(pwrite, (int fd, const void *from, size_t bytes, off_t at),
      (fd, from, bytes, at));

/// Also called by libstdc++, to list folders.
extern "C" dirent *readdir(DIR *folder) {
  NEXT(readdir);
  if (verdict("readdir", kReads, [&] { return dirfd(folder); }) > 0)
    return nullptr;
  return next(folder);
}

/// Closes the file even if it returns an error, as Linux does.
extern "C" int close(int fd) {
  NEXT(close);
  const int error = areFaultsArmed() ? verdict("close", traitsOfClose(fd),
                                               [&] { return fd; })
                                     : 0;
  const int result = next(fd);
  if (error <= 0)
    return result;
  errno = error;
  return -1;
}

/// Does not wait for the disk during a sweep: waiting would take most of the
/// time, and the data need not survive a crash of the machine.
extern "C" int fsync(int fd) {
  NEXT(fsync);
  if (verdict("fsync", kChanges | kNeedsSpace, [&] { return fd; }) > 0)
    return -1;
  return isDiskSpared() ? 0 : next(fd);
}

/// Functions that return the error instead of setting errno.
extern "C" int posix_fallocate(int fd, off_t at, off_t size) {
  NEXT(posix_fallocate);
  const int error = verdict("posix_fallocate", kChanges | kNeedsSpace,
                            [&] { return fd; });
  return error > 0 ? error : next(fd, at, size);
}
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                              void *(*body)(void *), void *argument) noexcept {
  NEXT(pthread_create);
  const int error =
      verdict("pthread_create", kStarts, [] { return Nowhere(); });
  return error > 0 ? error : next(thread, attr, body, argument);
}

/// The software CUDA platform (tests/cuda/Driver/Settings.cpp) calls this at
/// each library call, and before a stream runs an operation.
extern "C" int qloraPlatformFault(const char *symbol) {
  if (!areFaultsArmed())
    return 0;
  const std::string_view name = symbol;
  const unsigned kind = name == "run"              ? kCudaWork
                        : name.starts_with("nccl") ? kNccl
                                                   : kCuda;
  return faultAt(symbol, kind | (onlyFrees(name) ? kFrees : 0), "");
}

#endif // __SANITIZE_THREAD__
