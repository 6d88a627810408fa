#include "data/dataset.h"

#include <fmt/format.h>

#include <vector>

#include "base/hash.h"
#include "data/cifar.h"
#include "data/idx.h"
#include "data/images/image_dataset.h"
#include "data/images/images.h"
#include "data/lines/lines.h"
#include "data/own_samples.h"
#include "data/records/records.h"
#include "data/synthetic.h"
#include "data/tables/table.h"
#include "data/text.h"
#include "data/tokens.h"
#include "data/transforms/chain.h"
#include "data/transforms/mixed_dataset.h"
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
    {DataKind::images, open_image_datasets},
    {DataKind::cifar, open_cifar_datasets},
    {DataKind::tokens, open_token_datasets},
    {DataKind::table, open_table_datasets},
    {DataKind::lines, open_line_datasets},
    {DataKind::records, open_record_datasets},  // likewise, of images; others are transformed there, too
};

DatasetPair open_kind(const DataOptions& options) {
  for (const auto& row : kKinds)
    if (row.kind == options.kind) return row.open(options);
  throw InternalError(
      fmt::format("data kind {} is not in the table of data sets", static_cast<int>(options.kind)));
}

std::shared_ptr<const Dataset> transformed(std::shared_ptr<const Dataset> dataset,
                                           const std::vector<TransformOptions>& transforms,
                                           uint32_t first_place = 0) {
  return dataset == nullptr || transforms.empty()
             ? dataset
             : transform_images(std::move(dataset), transforms, first_place);
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

std::optional<SampleDamage> Dataset::find_damage(int64_t sample) const {
  std::vector<std::vector<std::byte>> values;
  std::vector<std::byte*> destinations;
  for (const auto& field : fields()) {
    values.emplace_back(static_cast<size_t>(field.spec.shape.count() * size_of(field.spec.dtype)));
    destinations.push_back(values.back().data());
  }
  try {
    read(sample, destinations);
    return {};
  } catch (const DataError& error) {
    return SampleDamage{.file = sample_name(sample), .sample = sample, .byte = -1, .what = error.what()};
  }
}

uint64_t Dataset::content_hash(int64_t sample) const {
  std::vector<std::vector<std::byte>> values(fields().size());
  std::vector<std::byte*> destinations(fields().size(), nullptr);
  for (size_t i = 0; i < fields().size(); ++i) {
    if (fields()[i].name == kLabelField || fields()[i].name == kTargetField) continue;
    const auto& spec = fields()[i].spec;
    values[i].resize(static_cast<size_t>(spec.shape.count() * size_of(spec.dtype)));
    destinations[i] = values[i].data();
  }
  read(sample, destinations);
  uint64_t hash = 0;
  for (const auto& value : values) hash = hash_combine(hash, hash64(value.data(), value.size()));
  return hash;
}

void Dataset::read_packed(const SampleKey& /*key*/, std::span<std::byte* const> /*destinations*/,
                          const pixels::PackedSample& /*packed*/) const {
  throw InternalError("samples that cannot be packed were asked for");
}

DatasetPair open_datasets(const DataOptions& options) {
  const TransformChain evaluation(options.eval_transforms);
  if (const auto* random = evaluation.random())
    throw ConfigError(
        fmt::format("data.eval_transforms: {} is random, but every evaluation is of the same "
                    "images; use it in data.transforms",
                    random->name()));
  DataOptions plain = options;
  if (options.kind == DataKind::idx && !(options.transforms.empty() && options.eval_transforms.empty()))
    move_normalization(plain);
  const TransformList list = cut_at_mixing(plain.transforms);
  plain.transforms = list.before;
  DatasetPair data = open_kind(plain);
  // By themselves: they decode what transforms need.
  const bool is_transformed = options.kind == DataKind::images || options.kind == DataKind::records;
  if (!is_transformed)
    data = {transformed(std::move(data.train), plain.transforms),
            transformed(std::move(data.eval), plain.eval_transforms)};
  if (list.mixing) {
    if (data.train) data.train = mix_samples(std::move(data.train), list.mixing);
    if (data.eval) data.eval = mix_samples(std::move(data.eval), {});
  }
  data.train = transformed(std::move(data.train), list.after, list.place_after);
  if (is_transformed && data.train && data.eval) require_same_shape(*data.train, *data.eval);
  return data;
}

}  // namespace lockstep::data
