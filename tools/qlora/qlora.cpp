// SPDX-License-Identifier: MIT

// qlora: runs a command by its name.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/Base/Exceptions.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/Commands.h"

using namespace qlora;

static Status dispatch(Words words) {
  std::string name = words.empty() ? "help" : words[0];
  const Words rest = words.empty() ? words : words.subspan(1);
  if (name == "--version")
    return fmt::print("qlora " QLORA_VERSION "\n"), Status::ok();
  if (name == "--help" || name == "-h")
    name = "help";
  const auto command = std::ranges::find(commands(), name, &Command::name);
  if (command != commands().end())
    return command->run(rest);
  const std::string nearest = nearestName(name, commandNames());
  return Status::invalid("'{}' is not a command; {}", name,
                         nearest.empty()
                             ? std::string("see qlora help")
                             : fmt::format("did you mean '{}'?", nearest));
}

int main(int argc, char **argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const Status status =
      endExceptions("this program", [&] { return dispatch(words); });
  if (status.isOk())
    return 0;
  fmt::print(stderr, "qlora: error: {}\n", status.message());
  return 1;
}
