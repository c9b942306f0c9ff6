// SPDX-License-Identifier: MIT

// Searches $PATH and default folders for programs.

#include "runtime/Base/FindProgram.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <ranges>
#include <string_view>

namespace qlora {

static bool isProgram(const std::filesystem::path &path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) &&
         access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> findProgram(const std::string &name,
                                       const std::string &folder) {
  if (name.find('/') != name.npos)
    return isProgram(name) ? std::optional(name) : std::nullopt;
  const char *path = std::getenv("PATH");
  for (const auto part :
       std::views::split(std::string_view(path ? path : ""), ':'))
    if (const auto file =
            std::filesystem::path(std::string_view(part.begin(), part.end())) /
            name;
        isProgram(file))
      return file.string();
  if (folder.empty() || !isProgram(folder + "/" + name))
    return std::nullopt;
  return folder + "/" + name;
}

StatusOr<std::string> findCudaCompiler(const std::string &given,
                                       const std::string &toolkit) {
  if (auto path = findProgram(given.empty() ? "nvcc" : given, toolkit))
    return *path;
  if (!given.empty())
    return Status::unavailable("--cuda-compiler: '{}' is not an executable "
                               "file; give the path of an nvcc",
                               given);
  return Status::unavailable(
      "no nvcc on PATH or in {}; install NVIDIA's package cuda-nvcc-13-0 (or "
      "Debian's nvidia-cuda-toolkit), or name one with --cuda-compiler",
      toolkit);
}

} // namespace qlora
