// SPDX-License-Identifier: MIT

// Runs a session in the calling process, so that a FaultSweep can run it in a
// child.

#ifndef QLORA_TESTS_RUNTIME_SESSION_SESSIONHERE_H
#define QLORA_TESTS_RUNTIME_SESSION_SESSIONHERE_H

#include "runtime/Base/Exceptions.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Extras/RunExtras.h"
#include "runtime/Session/Session.h"
#include "tests/runtime/Session/SessionFixture.h"

namespace qlora {

class SessionHere : public SessionFixture {
protected:
  /// Runs a session as qlora-run does. `more`: option names and values.
  int runHere(const char *device, const std::string &out,
              const std::vector<std::pair<const char *, std::string>> &more) {
    ignoreSaveSignal();
    SessionRequest request;
    request.modulePath = module;
    request.device = device;
    request.threads = 1;
    request.extras = makeExtras;
    std::vector<std::pair<const char *, std::string>> settings = {
        {"model_name_or_path", at("model")},
        {"train_file", at("tokens.safetensors")},
        {"output_dir", out},
        {"logging_steps", "1"}};
    settings.insert(settings.end(), more.begin(), more.end());
    for (const auto &[name, value] : settings)
      request.settings.push_back(
          {findOption(optionTable(), name), value, name});
    auto code = endExceptions("rank 0", [&] {
      return runSession(request, RankEnvironment{}, FileDescriptor());
    });
    if (code.isOk())
      return *code;
    fmt::print(stderr, "qlora-run: error: {}\n", code.status().message());
    return 1;
  }
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_SESSION_SESSIONHERE_H
