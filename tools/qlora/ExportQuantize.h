// SPDX-License-Identifier: MIT

// `qlora export --quantize`: which weights of a merged model are quantized, and
// what config.json says about them. The rules are those of the libraries that
// transformers loads the formats with.

#ifndef QLORA_TOOLS_QLORA_EXPORTQUANTIZE_H
#define QLORA_TOOLS_QLORA_EXPORTQUANTIZE_H

#include <optional>
#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Export/QuantizedWeights.h"
#include "tools/qlora/ExportJob.h"

namespace qlora {

/// Whether --quantize names a format.
bool isQuantizing(const ExportJob &job);

/// Refuses options that conflict, and formats that --to or the model's family
/// does not have.
Status checkQuantize(const ExportJob &job);

/// Returns what --quantize means for this model; nothing for none. Returns
/// kInvalidArgument for a weight that does not fit the format.
StatusOr<std::optional<WeightQuantization>>
quantizationOf(const ExportJob &job, const MergedModel &model);

/// Returns sentences that say what is quantized and how.
std::string describeQuantization(const ExportJob &job,
                                 const WeightQuantization &how);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_EXPORTQUANTIZE_H
