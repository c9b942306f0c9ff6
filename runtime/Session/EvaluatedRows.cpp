// SPDX-License-Identifier: MIT

// Splits micro-batches into rows.

#include "runtime/Session/EvaluatedRows.h"

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/JsonText.h"

namespace qlora {

/// Returns the line of tokens [first, end) of a micro-batch.
static std::string lineOf(const MicroBatch &batch, size_t first, size_t end) {
  using Json = nlohmann::ordered_json;
  Json ids, labels = Json::array({kNoLabel});
  for (size_t i = first; i < end; ++i) {
    ids.push_back(batch.ids[i]);
    if (i + 1 < end)
      labels.push_back(batch.targets[i]);
  }
  const Json row = {{"input_ids", ids}, {"labels", labels}};
  return dumpJson(row) + "\n";
}

static Status writeRows(const MicroBatch &batch, AtomicFile &file) {
  const auto length = static_cast<size_t>(batch.length);
  for (size_t first = 0, end; first < batch.ids.size(); first = end) {
    const size_t stop = (first / length + 1) * length;
    end = first + 1;
    while (end < stop && batch.segments[end] == batch.segments[first])
      ++end;
    if (batch.segments[first] != 0)
      QLORA_RETURN_IF_ERROR(file.write(lineOf(batch, first, end)));
  }
  return Status::ok();
}

Status writeEvaluatedRows(const Run &run, const std::string &path) {
  if (!run.validation)
    return Status::invalid("--evaluation-rows needs rows to evaluate. Fix: "
                           "--validation-file FILE");
  if (run.group.size() > 1)
    return Status::invalid("--evaluation-rows works on one rank, but there are "
                           "{}. Fix: remove it, or run one rank",
                           run.group.size());
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  const int64_t count = run.validation->schedule().countInOrder();
  MicroBatch batch;
  for (int64_t number = 0; number < count; ++number) {
    QLORA_RETURN_IF_ERROR(
        run.validation->readInOrder(number, batch, run.stepShape));
    QLORA_RETURN_IF_ERROR(writeRows(batch, file));
  }
  return file.commit();
}

} // namespace qlora
