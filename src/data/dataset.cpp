#include "data/dataset.h"

#include <fmt/format.h>

#include <vector>

#include "data/cifar.h"
#include "data/idx.h"
#include "data/images/images.h"
#include "data/own_samples.h"
#include "data/synthetic.h"
#include "data/text.h"
#include "data/tokens.h"
#include "data/transforms/chain.h"
#include "data/transforms/transformed_dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

struct KindRow {
  DataKind kind;
  DatasetPair (*open)(const DataOptions&);
};
/// Every kind of data set there is.
constexpr KindRow kKinds[] = {
    {DataKind::idx, open_idx_datasets},
    {DataKind::text, open_text_datasets},
    {DataKind::synthetic, open_synthetic_datasets},
    {DataKind::own, open_own_datasets},
    {DataKind::images, open_image_datasets},  // transforms images itself: it decodes what they need
    {DataKind::cifar, open_cifar_datasets},
    {DataKind::tokens, open_token_datasets},
};

DatasetPair open_kind(const DataOptions& options) {
  for (const auto& row : kKinds)
    if (row.kind == options.kind) return row.open(options);
  throw InternalError(
      fmt::format("data kind {} is not in the table of data sets", static_cast<int>(options.kind)));
}

std::shared_ptr<const Dataset> transformed(std::shared_ptr<const Dataset> dataset,
                                           const std::vector<TransformOptions>& transforms) {
  return dataset == nullptr || transforms.empty() ? dataset
                                                  : transform_images(std::move(dataset), transforms);
}

/// Transforms see an IDX file's values in [0, 1]: its mean and deviation are the last transform. If one of
/// the two parts is transformed, both are, so that both are the same function of their files.
void move_normalization(DataOptions& options) {
  if (options.mean == 0 && options.deviation == 1) return;
  const NormalizeOptions last{{options.mean}, {options.deviation}};
  options.transforms.emplace_back(last);
  options.eval_transforms.emplace_back(last);
  options.mean = 0;
  options.deviation = 1;
}

}  // namespace

DatasetPair open_datasets(const DataOptions& options) {
  const TransformChain evaluation(options.eval_transforms);
  if (const auto* random = evaluation.random())
    throw ConfigError(
        fmt::format("data.eval_transforms: {} is random, but every evaluation is of the same "
                    "images; use it in data.transforms",
                    random->name()));
  if (options.kind == DataKind::images) return open_kind(options);
  if (options.transforms.empty() && options.eval_transforms.empty()) return open_kind(options);
  DataOptions plain = options;
  if (options.kind == DataKind::idx) {
    move_normalization(plain);
  }
  DatasetPair data = open_kind(plain);
  return {transformed(std::move(data.train), plain.transforms),
          transformed(std::move(data.eval), plain.eval_transforms)};
}

}  // namespace lockstep::data
