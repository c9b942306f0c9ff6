// SPDX-License-Identifier: MIT

// Compares rank 0's hashes with each rank's.

#include "runtime/Session/RankConsistencyCheck.h"

#include "runtime/Base/ContentHash.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Checkpoint/CheckpointMetadata.h"
#include "runtime/Module/ProgramForm.h"

namespace qlora {

namespace {
struct Fact {
  std::string name;
  std::string hash;
};
} // namespace

static Fact factOf(std::string name, ContentHash hash) {
  return {std::move(name), hash.finish()};
}

static Fact factOf(std::string name, std::string_view value) {
  ContentHash hash;
  hash.add(value);
  return factOf(std::move(name), std::move(hash));
}

static Fact factOf(std::string name, const Dataset *data) {
  ContentHash hash;
  if (data)
    data->identify(hash);
  return factOf(std::move(name), std::move(hash));
}

static std::vector<Fact> factsOf(const SessionRequest &request,
                                 const LoadedModule &module,
                                 const Options &options, const Dataset *train,
                                 const Dataset *validation) {
  const ProfileRequest &profile = request.profile;
  std::vector<Fact> facts = {
      factOf("the rows of --train-file", train),
      factOf("the rows of --validation-file", validation),
      factOf("--cuda-graphs", request.cudaGraphs ? "true" : "false"),
      factOf("--ranks-per-gpu", fmt::format("{}", request.ranksPerGpu)),
      factOf("--dump", request.dumpFile.empty() ? "" : "true"),
      factOf("--profile", profile.path.empty()
                              ? ""
                              : fmt::format("{} {}", profile.warmup,
                                            profile.active))};
  for (const OptionRow &row : optionTable())
    if (row.scope != OptionScope::kOutput && !isPath(row.type) &&
        !decidesPlanAlone(row.name))
      facts.push_back(
          factOf(flagSpelling(row.name), dumpJson(options.value(row.name))));
  facts.push_back(factOf("the model that the program was compiled from",
                         dumpJson(modelMetadata(options))));
  // The program is last, since a differing option is a more specific error.
  facts.push_back(factOf("the program", programForm(module)));
  return facts;
}

Status checkRankConsistency(const SessionRequest &request,
                            const LoadedModule &module, const Options &options,
                            RankGroup &group, const Dataset *train,
                            const Dataset *validation) {
  if (group.size() == 1)
    return Status::ok();
  const std::vector<Fact> facts =
      factsOf(request, module, options, train, validation);
  std::string hashes;
  for (const Fact &fact : facts)
    hashes += fact.hash;
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      group.collectives().allGather(group.rank() == 0 ? hashes : ""));
  size_t end = 0;
  for (const Fact &fact : facts) {
    end += fact.hash.size();
    if (all[0].size() < end || !all[0].substr(0, end).ends_with(fact.hash))
      return Status::invalid("differs from rank 0 in {}; start every rank with "
                             "the same program, data and options",
                             fact.name);
  }
  return Status::ok();
}

} // namespace qlora
