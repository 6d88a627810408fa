#include "data/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/index.h"

namespace lockstep::data {
namespace {

/// The field of labels, and whether each sample has one.
struct LabelField {
  size_t index;
  int64_t count;
};
std::optional<LabelField> find_label(const Dataset& dataset) {
  const auto& fields = dataset.fields();
  const auto found = std::ranges::find(fields, kLabelField, &Field::name);
  if (found == fields.end() || found->spec.dtype != DType::int32) return {};
  return LabelField{static_cast<size_t>(found - fields.begin()), found->spec.shape.count()};
}

/// Whether a sample is a thing of its own, and no window of tokens.
bool has_single_samples(const Dataset& dataset) {
  const auto label = find_label(dataset);
  return !label || label->count == 1;
}

std::optional<Spread> spread_of(std::vector<int64_t> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return Spread{values.front(), values[values.size() / 2], values.back()};
}

PartSummary summarize_part(const Dataset& dataset) {
  PartSummary part{
      .description = dataset.description(), .samples = dataset.size(), .identity = dataset.identity()};
  const auto label = find_label(dataset);
  std::vector<int64_t> heights, widths, lengths;
  std::vector<std::byte*> destinations(dataset.fields().size(), nullptr);
  std::vector<int32_t> labels(label ? static_cast<size_t>(label->count) : 0);
  if (label) destinations[label->index] = reinterpret_cast<std::byte*>(labels.data());
  constexpr int64_t kMostSequences = 10'000;
  const bool sequences = !has_single_samples(dataset);
  const int64_t stride = sequences ? std::max<int64_t>(1, dataset.size() / kMostSequences) : 1;
  for (int64_t sample = 0; sample < dataset.size(); sample += stride) {
    if (label) dataset.read(sample, destinations);
    if (sequences)
      lengths.push_back(std::ranges::count_if(labels, [](int32_t value) { return value >= 0; }));
    else if (label)
      ++part.labels[labels.front()];
    if (const auto size = dataset.stored_size(sample)) {
      heights.push_back(size->first);
      widths.push_back(size->second);
    }
  }
  part.heights = spread_of(std::move(heights));
  part.widths = spread_of(std::move(widths));
  part.lengths = spread_of(std::move(lengths));
  part.damage = dataset.damage();
  return part;
}

std::string name_or_number(const Dataset& dataset, int64_t sample) {
  const std::string name = dataset.sample_name(sample);
  return name.empty() ? fmt::format("sample {}", sample) : name;
}

DuplicateSummary find_duplicates(const Dataset& train, const Dataset* eval) {
  constexpr size_t kMostExamples = 5;
  DuplicateSummary duplicates;
  std::unordered_map<uint64_t, int64_t> first;
  for (int64_t sample = 0; sample < train.size(); ++sample)
    duplicates.within_training += !first.emplace(train.content_hash(sample), sample).second;
  for (int64_t sample = 0; eval != nullptr && sample < eval->size(); ++sample) {
    const auto found = first.find(eval->content_hash(sample));
    if (found == first.end()) continue;
    ++duplicates.in_evaluation;
    if (duplicates.examples.size() < kMostExamples)
      duplicates.examples.emplace_back(name_or_number(train, found->second), name_or_number(*eval, sample));
  }
  return duplicates;
}

}  // namespace

DataSummary summarize(const DatasetPair& data, bool contents) {
  DataSummary summary;
  for (const auto& part : {data.eval, data.train})
    if (part != nullptr) summary.class_names = part->class_names();
  if (data.train) summary.train = summarize_part(*data.train);
  if (data.eval) summary.eval = summarize_part(*data.eval);
  if (contents && data.train && has_single_samples(*data.train))
    summary.duplicates = find_duplicates(*data.train, data.eval.get());
  return summary;
}

}  // namespace lockstep::data
