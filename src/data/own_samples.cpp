#include "data/own_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/hash.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

bool is_label(std::string_view field) { return field == data::kLabelField; }
/// Numbers of documents only have to differ within a sample.
bool is_document(std::string_view field) { return field == data::kDocumentsField; }

/// Negative are labels that are ignored, and documents of positions that are left out; tokens and the like
/// are indices.
bool may_be_negative(std::string_view field) { return is_label(field) || is_document(field); }
bool is_too_low(int32_t value, std::string_view field) { return value < 0 && !may_be_negative(field); }

std::vector<data::Field> fields_of(const std::vector<ModelInput>& inputs) {
  require(!inputs.empty(), "Samples: expected at least one field, found none");
  require(inputs.size() <= data::kMostFields,
          fmt::format("Samples: expected at most {} fields, found {}", data::kMostFields, inputs.size()));
  std::vector<data::Field> fields;
  std::set<std::string> names;
  for (const auto& [name, spec] : inputs) {
    require(!name.empty() && names.insert(name).second,
            fmt::format("Samples: expected fields of different names, found '{}' {}", name,
                        name.empty() ? "" : "twice"));
    require(spec.dtype == DType::float32 || spec.dtype == DType::int32,
            fmt::format("Samples: field '{}' is {}; expected float32 or int32", name, name_of(spec.dtype)));
    require(spec.shape.count() > 0,
            fmt::format("Samples: field '{}' of shape {} holds nothing", name, spec.shape.to_string()));
    fields.push_back({name, spec});
  }
  return fields;
}

uint64_t hash_of(const std::vector<data::Field>& fields, int64_t count) {
  uint64_t hash = hash64(&count, sizeof count);
  for (const auto& field : fields)
    hash = hash_combine(hash, hash64(fmt::format("{} {} {}", field.name, name_of(field.spec.dtype),
                                                 field.spec.shape.to_string())));
  return hash;
}

class InMemory : public data::Dataset {
 public:
  explicit InMemory(std::vector<FieldValues> values) : values_(std::move(values)) {
    std::vector<ModelInput> inputs;
    for (const auto& field : values_)
      inputs.push_back({field.name, {field.shape, is_float(field) ? DType::float32 : DType::int32}});
    fields_ = fields_of(inputs);
    size_ = samples_of(values_.front());
    require(size_ > 0, fmt::format("Samples: field '{}' has no samples", values_.front().name));
    for (const auto& field : values_) {
      require(samples_of(field) == size_,
              fmt::format("Samples: field '{}' has {} samples, but field '{}' has {}", field.name,
                          samples_of(field), values_.front().name, size_));
      if (!is_float(field)) look_at(field);
    }
    identity_ = hash_of(fields_, size_);
    for (const auto& field : values_)
      std::visit(
          [&](const auto& all) { identity_ = hash_combine(identity_, hash64(all.data(), 4 * all.size())); },
          field.values);
  }

  const std::vector<data::Field>& fields() const override { return fields_; }
  int64_t size() const override { return size_; }
  int64_t classes() const override { return vocabulary(data::kLabelField); }
  int64_t vocabulary(std::string_view field) const override {
    const auto found = largest_.find(field);
    return found == largest_.end() ? 0 : int64_t{found->second} + 1;
  }
  data::LargestValue largest(std::string_view field, int64_t ignored) const override {
    const auto found = std::ranges::find(values_, field, &FieldValues::name);
    if (found == values_.end() || is_float(*found)) return {};
    const auto& all = std::get<std::vector<int32_t>>(found->values);
    const auto rank = [ignored](int32_t value) { return value == ignored ? -1 : std::max(value, -1); };
    const auto place = std::ranges::max_element(all, {}, rank);
    return {.value = rank(*place), .place = place_of(*found, place - all.begin())};
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} samples in the program's memory", size_);
  }

  void read(const data::SampleKey& key, std::span<std::byte* const> destinations) const override {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const auto each = static_cast<size_t>(values_[i].shape.count());
      std::visit(
          [&](const auto& all) {
            std::memcpy(destinations[i], all.data() + static_cast<size_t>(key.sample) * each, 4 * each);
          },
          values_[i].values);
    }
  }

 private:
  static bool is_float(const FieldValues& field) {
    return std::holds_alternative<std::vector<float>>(field.values);
  }

  static int64_t samples_of(const FieldValues& field) {
    const auto count =
        std::visit([](const auto& all) { return static_cast<int64_t>(all.size()); }, field.values);
    const int64_t each = field.shape.count();
    require(
        count % each == 0,
        fmt::format(
            "Samples: field '{}' has {} values; expected a multiple of {}, the size of a sample of shape {}",
            field.name, count, each, field.shape.to_string()));
    return count / each;
  }

  void look_at(const FieldValues& field) {
    const auto& all = std::get<std::vector<int32_t>>(field.values);
    int32_t& largest = largest_.try_emplace(field.name, -1).first->second;
    for (size_t i = 0; i < all.size(); ++i) {
      if (is_too_low(all[i], field.name))
        throw DataError(fmt::format("Samples: {} is negative", place_of(field, static_cast<int64_t>(i))));
      largest = std::max(largest, all[i]);
    }
  }

  static std::string place_of(const FieldValues& field, int64_t index) {
    return fmt::format("{} {} of sample {}", field.name,
                       std::get<std::vector<int32_t>>(field.values)[static_cast<size_t>(index)],
                       index / field.shape.count());
  }

  std::vector<FieldValues> values_;
  std::vector<data::Field> fields_;
  int64_t size_ = 0;
  std::map<std::string, int32_t, std::less<>> largest_;  // by field of int32
  uint64_t identity_ = 0;
};

class FromSource : public data::Dataset {
 public:
  explicit FromSource(SampleSource source) : source_(std::move(source)), fields_(fields_of(source_.fields)) {
    require(source_.count > 0, fmt::format("Samples: expected at least 1 sample, found {}", source_.count));
    require(source_.read != nullptr, "Samples: read is empty; expected a function that makes a sample");
    require(!source_.identity.empty(),
            "Samples: identity is empty; name the samples, so that checkpoints can recognize them");
    for (const auto& field : fields_)
      require(
          field.spec.dtype != DType::int32 || is_document(field.name) || values_of(field.name) > 0,
          fmt::format("Samples: {} is {}; expected the number of values that field '{}' can have",
                      is_label(field.name) ? "classes" : "vocabulary", values_of(field.name), field.name));
    const int64_t limits[] = {source_.classes, source_.vocabulary};
    identity_ = hash_combine(hash_of(fields_, source_.count), hash64(source_.identity));
    identity_ = hash_combine(identity_, hash64(limits, sizeof limits));
  }

  const std::vector<data::Field>& fields() const override { return fields_; }
  int64_t size() const override { return source_.count; }
  int64_t classes() const override { return source_.classes; }
  int64_t vocabulary(std::string_view field) const override { return values_of(field); }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} samples that the program makes: {}", source_.count, source_.identity);
  }

  void read(const data::SampleKey& key, std::span<std::byte* const> destinations) const override {
    source_.read(key.sample, destinations);
    for (size_t i = 0; i < fields_.size(); ++i)
      if (destinations[i] != nullptr && fields_[i].spec.dtype == DType::int32)
        check(i, key.sample, destinations[i]);
  }

 private:
  int64_t values_of(std::string_view field) const {
    return is_label(field) ? source_.classes : source_.vocabulary;
  }

  void check(size_t field, int64_t sample, const std::byte* read) const {
    const auto* all = reinterpret_cast<const int32_t*>(read);
    const std::string& name = fields_[field].name;
    const int64_t count = fields_[field].spec.shape.count();
    const int64_t values =
        is_document(name) ? int64_t{std::numeric_limits<int32_t>::max()} + 1 : values_of(name);
    const auto* wrong = std::find_if(
        all, all + count, [&](int32_t value) { return is_too_low(value, name) || value >= values; });
    if (wrong != all + count)
      throw DataError(fmt::format("Samples: {} {} of sample {} ({}) is not from {} to {}", name, *wrong,
                                  sample, source_.identity, may_be_negative(name) ? -1 : 0, values - 1));
  }

  SampleSource source_;
  std::vector<data::Field> fields_;
  uint64_t identity_ = 0;
};

}  // namespace

struct Samples::Content {
  std::shared_ptr<const data::Dataset> dataset;
};

Samples Samples::in_memory(std::vector<FieldValues> fields) {
  require(!fields.empty(), "Samples: expected at least one field, found none");
  Samples samples;
  samples.content_ = std::make_shared<const Content>(Content{std::make_shared<InMemory>(std::move(fields))});
  return samples;
}

Samples Samples::from(SampleSource source) {
  Samples samples;
  samples.content_ =
      std::make_shared<const Content>(Content{std::make_shared<FromSource>(std::move(source))});
  return samples;
}

int64_t Samples::count() const { return content_ ? content_->dataset->size() : 0; }

std::shared_ptr<const data::Dataset> SamplesAccess::dataset_of(const Samples& samples) {
  return samples.content_ ? samples.content_->dataset : nullptr;
}

namespace data {

DatasetPair open_own_datasets(const DataOptions& options) {
  require(options.own_train != nullptr,
          fmt::format("data.own: the {} samples belong to the program that trained with them, and only that "
                      "program can pass them (include/lockstep/data.h); name other data",
                      options.samples));
  return {options.trains ? options.own_train : nullptr, options.own_eval};
}

}  // namespace data
}  // namespace lockstep
