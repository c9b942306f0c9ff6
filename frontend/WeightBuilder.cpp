// SPDX-License-Identifier: MIT

// Creates parameters, and the ops that read them.

#include "frontend/WeightBuilder.h"

using namespace mlir;

namespace qlora {

static Type elementType(OpBuilder &builder, const Weight &weight) {
  if (const std::optional<StoredLayout> &l = weight.stored)
    return model::QuantizedType::get(builder.getContext(), l->dtype, l->block,
                                     l->doubleQuant);
  if (weight.dtype == SafetensorsDtype::kBF16)
    return builder.getBF16Type();
  return weight.dtype == SafetensorsDtype::kF16 ? Type(builder.getF16Type())
                                                : Type(builder.getF32Type());
}

Value WeightBuilder::build(StringRef name, ArrayRef<int64_t> shape,
                           ArrayRef<Weight> parts, int64_t layer) const {
  auto type = RankedTensorType::get(shape, elementType(body, parts.front()));
  return declare(name, type, parts, layer, TypeAttr());
}

Value WeightBuilder::buildF32(const Weight &weight, int64_t layer) const {
  Type stored = elementType(body, weight);
  auto type = RankedTensorType::get(weight.shape, body.getF32Type());
  return declare(weight.name, type, weight, layer,
                 stored.isF32() ? TypeAttr() : TypeAttr::get(stored));
}

Value WeightBuilder::declare(StringRef name, RankedTensorType type,
                             ArrayRef<Weight> parts, int64_t layer,
                             TypeAttr fileType) const {
  const Weight &first = parts.front();
  SmallVector<StringRef> names;
  for (const Weight &part : parts)
    names.push_back(part.name);
  SmallVector<int64_t> rows(names.size(), first.shape[0]);
  const bool isOwn = names.size() == 1 && names.front() == name;
  Location loc = NameLoc::get(body.getStringAttr(name)), outer = body.getLoc();
  model::ParameterOp::create(
      parameters, loc, name, type, body.getStringAttr(first.file), fileType,
      /*init=*/StringAttr(), /*trainable=*/false,
      /*stored_quantized=*/first.stored.has_value(), /*quantized=*/TypeAttr(),
      isOwn ? ArrayAttr() : body.getStrArrayAttr(names),
      isOwn ? DenseI64ArrayAttr() : body.getDenseI64ArrayAttr(rows),
      /*transposed=*/false, /*undecayed=*/false,
      /*rate_scale=*/llvm::APFloat(1.0), /*optimizer=*/"adamw",
      /*piece=*/IntegerAttr(), /*slice=*/model::SliceAttr());
  body.setLoc(loc);
  auto value = model::WeightOp::create(body, type, name);
  model::setLayer(value, layer);
  body.setLoc(outer);
  return value;
}

} // namespace qlora
