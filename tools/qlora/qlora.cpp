// SPDX-License-Identifier: MIT

// qlora: runs a command by its name.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/Base/Exceptions.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/Chat.h"
#include "tools/qlora/Check.h"
#include "tools/qlora/Commands.h"
#include "tools/qlora/Eval.h"
#include "tools/qlora/Export.h"
#include "tools/qlora/Generate.h"
#include "tools/qlora/Serve.h"
#include "tools/qlora/ShowData.h"
#include "tools/qlora/Tools.h"
#include "tools/qlora/Train.h"

using namespace qlora;

using Words = std::span<const std::string>;

static Status print(const StatusOr<std::string> &text) {
  if (text.isOk())
    fmt::print("{}", text.value());
  return text.status();
}

static StatusOr<std::string> onlyWord(Words words, std::string_view what) {
  if (words.size() > 1)
    return Status::invalid("expects one {}, but got '{}' too", what, words[1]);
  return words.empty() ? std::string() : words[0];
}

static Status help(Words words) {
  QLORA_ASSIGN_OR_RETURN(const std::string topic, onlyWord(words, "topic"));
  return print(helpText(topic));
}

static Status completion(Words words) {
  QLORA_ASSIGN_OR_RETURN(const std::string shell, onlyWord(words, "shell"));
  return print(completionScript(shell));
}

static Status report(Words words) {
  QLORA_ASSIGN_OR_RETURN(const std::string folder,
                         onlyWord(words, "folder of a run"));
  if (folder.empty())
    return Status::invalid("no folder is named; usage: qlora report DIR, with "
                           "the --output-dir of a run");
  return becomeTool({"qlora-run", {"--report", folder}});
}

static Status information(Words words) {
  if (!words.empty())
    return Status::invalid("info takes no argument, but got '{}'", words[0]);
  return print(machineInformation());
}

static Status dispatch(Words words) {
  const std::string command = words.empty() ? "help" : words[0];
  const Words rest = words.empty() ? words : words.subspan(1);
  if (command == "train")
    return train(rest, ProgramUse::kTrain);
  if (command == "plan")
    return train(rest, ProgramUse::kPlan);
  if (command == "memory")
    return print(memoryTable(rest));
  if (command == "generate")
    return generate(rest);
  if (command == "chat")
    return chat(rest);
  if (command == "eval")
    return evaluateModel(rest);
  if (command == "serve")
    return serve(rest);
  if (command == "export")
    return exportRun(rest);
  if (command == "check")
    return check(rest);
  if (command == "show-data")
    return showData(rest);
  if (command == "compare")
    return print(compare(rest));
  if (command == "report")
    return report(rest);
  if (command == "info")
    return information(rest);
  if (command == "completion")
    return completion(rest);
  if (command == "help" || command == "--help" || command == "-h")
    return help(rest);
  if (command == "--version")
    return print(std::string("qlora " QLORA_VERSION "\n"));
  const std::string nearest = nearestName(command, commandNames());
  return Status::invalid("'{}' is not a command; {}", command,
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
