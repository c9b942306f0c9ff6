// SPDX-License-Identifier: MIT

#include "runtime/Session/SignalAgreement.h"

#include <csignal>

#include "runtime/Base/StopSignal.h"
#include "runtime/Watch/Profiler.h"

namespace qlora {

Status agreeOnStep(const Run &run, SubmittedStep &step,
                   SignalRequests &requests) {
  enum { kInterrupt, kTerminate, kSave, kCut, kTokens, kLabels, kCount };
  const HostSlice slice(run.profiler, HostWork::kAgree);
  const int signal = stopSignal();
  int64_t values[kCount] = {};
  values[kInterrupt] = signal == SIGINT;
  values[kTerminate] = signal == SIGTERM;
  values[kSave] = isSaveAsked();
  values[kCut] = step.isCut;
  if (run.group.countsRows()) {
    values[kTokens] = step.tokens;
    values[kLabels] = step.labels;
  }
  QLORA_RETURN_IF_ERROR(run.group.sum(std::span(values)));
  if (values[kInterrupt] > 0)
    requests.stop = SIGINT;
  if (values[kTerminate] > 0)
    requests.stop = SIGTERM;
  if (values[kSave] > 0) {
    answerSaveSignal();
    requests.save = true;
  }
  step.isCut = values[kCut] > 0;
  step.tokens = values[kTokens];
  step.labels = values[kLabels];
  return Status::ok();
}

} // namespace qlora
