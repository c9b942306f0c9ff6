// SPDX-License-Identifier: MIT

// A folder for one test, removed with its content.

#ifndef QLORA_TESTS_RUNTIME_TEMPORARYFOLDER_H
#define QLORA_TESTS_RUNTIME_TEMPORARYFOLDER_H

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace qlora {

class TemporaryFolder {
public:
  TemporaryFolder() {
    std::string name = testing::TempDir() + "/qlora-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(root, ignored);
  }

  std::string path(const std::string &name = "") const {
    return name.empty() ? root : root + "/" + name;
  }
  std::string write(const std::string &name, const std::string &text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::string read(const std::string &name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }
  size_t fileCount() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto &entry :
         std::filesystem::directory_iterator(root))
      ++count;
    return count;
  }

private:
  std::string root;
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_TEMPORARYFOLDER_H
