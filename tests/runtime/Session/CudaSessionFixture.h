// SPDX-License-Identifier: MIT

// Runs qlora-run with a CUDA program on the software platform (tests/cuda).

#ifndef QLORA_TESTS_RUNTIME_SESSION_CUDASESSIONFIXTURE_H
#define QLORA_TESTS_RUNTIME_SESSION_CUDASESSIONFIXTURE_H

#include <cstdlib>
#include <map>

#include "tests/runtime/Session/SessionFixture.h"

namespace qlora {

#define EXPECT_HAS(text, part)                                                 \
  do {                                                                         \
    const std::string whole = (text);                                          \
    EXPECT_NE(whole.find(part), std::string::npos) << "in: " << whole;         \
  } while (false)

class CudaSession : public SessionFixture {
protected:
  CudaSession() { onPlatform({}); }
  ~CudaSession() override {
    for (const auto &[name, value] : variables)
      unsetenv(name.c_str());
  }

  /// Sets up the platform and these variables for programs started later.
  void onPlatform(const std::map<std::string, std::string> &more) {
    module = QLORA_UNIGRAM_CUDA_MODULE;
    set("LD_LIBRARY_PATH", QLORA_CUDA_PLATFORM);
    set("XDG_CACHE_HOME", at("cache"));
    for (const auto &[name, value] : more)
      set(name, value);
  }
  void set(const std::string &name, const std::string &value) {
    variables[name] = value;
    setenv(name.c_str(), value.c_str(), 1);
  }

  std::vector<nlohmann::json> trainOnCpu(const char *out,
                                         std::vector<std::string> flags) {
    const std::string cuda = std::exchange(module, QLORA_UNIGRAM_MODULE);
    auto lines = train(out, std::move(flags));
    module = cuda;
    return lines;
  }
  /// Returns the one error line of a run that fails, without the lines of the
  /// platform.
  std::string refusal(std::vector<std::string> flags, int exitCode = 1) {
    flags.insert(flags.end(), {"--train-file", at("tokens.safetensors"),
                               "--output-dir", at("refused"),
                               "--overwrite-output-dir"});
    const ProcessOutput output = run(std::move(flags));
    EXPECT_EQ(output.exitCode, exitCode) << output.out;
    std::istringstream text(output.errors);
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);)
      if (!line.starts_with("cuda-platform: "))
        lines.push_back(line);
    EXPECT_EQ(lines.size(), 1u) << output.errors;
    return lines.empty() ? "" : lines[0];
  }

  std::map<std::string, std::string> variables;
};

/// Creates a folder with a link called `name` to `file`, which replaces a
/// library of the platform. Returns the folder.
inline std::string withLibrary(const std::filesystem::path &folder,
                               const char *name, const char *file) {
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink(file, folder / name);
  return folder.string();
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_SESSION_CUDASESSIONFIXTURE_H
