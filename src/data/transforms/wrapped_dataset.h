#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

inline bool is_image(const Field& field) {
  return field.spec.dtype == DType::float32 && field.spec.shape.rank() == 3;
}

/// The samples of another data set, with fields of its own: what all that change samples have in common.
class WrappedDataset : public Dataset {
 public:
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return base_->size(); }
  int64_t classes() const override { return base_->classes(); }
  int64_t vocabulary(std::string_view field) const override { return base_->vocabulary(field); }
  Encodings encodings() const override { return base_->encodings(); }
  LargestValue largest(std::string_view field, int64_t ignored) const override {
    return base_->largest(field, ignored);
  }
  uint64_t identity() const override { return base_->identity(); }
  std::string description() const override { return base_->description(); }
  std::vector<std::string> class_names() const override { return base_->class_names(); }
  std::string sample_name(int64_t sample) const override { return base_->sample_name(sample); }
  Damage damage() const override { return base_->damage(); }
  std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t sample) const override {
    return base_->stored_size(sample);
  }
  std::optional<SampleDamage> find_damage(int64_t sample) const override {
    return base_->find_damage(sample);
  }
  void expect(const SampleKey& key) const override { base_->expect(key); }
  uint64_t content_hash(int64_t sample) const override { return base_->content_hash(sample); }

 protected:
  explicit WrappedDataset(std::shared_ptr<const Dataset> base)
      : base_(std::move(base)), fields_(base_->fields()) {}

  std::shared_ptr<const Dataset> base_;
  std::vector<Field> fields_;
};

}  // namespace lockstep::data
