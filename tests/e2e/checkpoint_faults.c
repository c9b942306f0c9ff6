/* SPDX-License-Identifier: MIT */

/* LD_PRELOAD: kills the process, or makes a call fail, at the N-th call that
 * changes a file or folder below FAULT_FOLDER.
 *
 *   FAULT_FOLDER  calls on files below it count
 *   FAULT_AT      number of the call, from 1; 0: none
 *   FAULT_KIND    kill; short (a write of half the bytes, then of all); ENOSPC,
 *                 EIO, EROFS: this call; full: ENOSPC in this one and all later
 *                 calls that need space
 *   FAULT_NO_EXCHANGE  set: folders cannot be exchanged, as on NFS and FUSE
 *   FAULT_COUNT   file: the number of calls is written there at the end
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static int is_below(const char *path) {
  const char *folder = getenv("FAULT_FOLDER");
  char whole[4096] = "";
  if (!folder || !path)
    return 0;
  if (path[0] != '/' && getcwd(whole, sizeof whole / 2))
    strcat(whole, "/");
  strncat(whole, path, sizeof whole / 2 - 2);
  return strncmp(whole, folder, strlen(folder)) == 0;
}

static int is_file_below(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0)
    return 0;
  path[n] = 0;
  return is_below(path);
}

/* Returns the error of this call, or 0; -1: a short write. */
static int fault(int counts, int needs_space) {
  if (!counts)
    return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  const char *at = getenv("FAULT_AT"), *kind = getenv("FAULT_KIND");
  const long wanted = at ? atol(at) : 0;
  if (!wanted || !kind)
    return 0;
  if (!strcmp(kind, "full"))
    return number >= wanted && needs_space ? ENOSPC : 0;
  if (number != wanted)
    return 0;
  if (!strcmp(kind, "kill"))
    kill(getpid(), SIGKILL);
  if (!strcmp(kind, "short"))
    return -1;
  return !strcmp(kind, "EIO") ? EIO : !strcmp(kind, "EROFS") ? EROFS : ENOSPC;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(counts, needs_space)                                           \
  do {                                                                         \
    const int error = fault(counts, needs_space);                              \
    if (error > 0) {                                                           \
      errno = error;                                                           \
      return -1;                                                               \
    }                                                                          \
  } while (0)

static int is_changing(int flags) {
  return (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0;
}

#define OPEN(name)                                                             \
  int name(const char *path, int flags, ...) {                                 \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    const mode_t mode = va_arg(list, mode_t);                                  \
    va_end(list);                                                              \
    FAIL_IF(is_changing(flags) && is_below(path), 1);                          \
    return REAL(name)(path, flags, mode);                                      \
  }
OPEN(open)
OPEN(open64)

#define WRITE(name, offset_parameter, offset_argument)                         \
  ssize_t name(int fd, const void *data, size_t bytes offset_parameter) {      \
    const int error = fault(is_file_below(fd), 1);                             \
    if (error > 0) {                                                           \
      errno = error;                                                           \
      return -1;                                                               \
    }                                                                          \
    return REAL(name)(fd, data,                                                \
                      error < 0 && bytes > 1 ? bytes / 2                       \
                                             : bytes offset_argument);         \
  }
#define COMMA ,
WRITE(write, , )
WRITE(pwrite, COMMA off_t offset, COMMA offset)
WRITE(pwrite64, COMMA off64_t offset, COMMA offset)

int fsync(int fd) {
  FAIL_IF(is_file_below(fd), 1);
  return REAL(fsync)(fd);
}
int close(int fd) {
  FAIL_IF(is_file_below(fd) && is_changing(fcntl(fd, F_GETFL)), 0);
  return REAL(close)(fd);
}
int mkdir(const char *path, mode_t mode) {
  FAIL_IF(is_below(path), 1);
  return REAL(mkdir)(path, mode);
}
int rename(const char *from, const char *to) {
  FAIL_IF(is_below(to), 0);
  return REAL(rename)(from, to);
}
int renameat2(int a, const char *from, int b, const char *to,
              unsigned int flags) {
  FAIL_IF(is_below(to), 0);
  if (flags && getenv("FAULT_NO_EXCHANGE")) {
    errno = EINVAL;
    return -1;
  }
  return REAL(renameat2)(a, from, b, to, flags);
}
int unlinkat(int folder, const char *path, int flags) {
  FAIL_IF(folder >= 0 ? is_file_below(folder) : is_below(path), 0);
  return REAL(unlinkat)(folder, path, flags);
}
int unlink(const char *path) {
  FAIL_IF(is_below(path), 0);
  return REAL(unlink)(path);
}
int rmdir(const char *path) {
  FAIL_IF(is_below(path), 0);
  return REAL(rmdir)(path);
}

__attribute__((destructor)) static void tell(void) {
  const char *path = getenv("FAULT_COUNT");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (file) {
    fprintf(file, "%ld\n", atomic_load(&calls));
    fclose(file);
  }
}
