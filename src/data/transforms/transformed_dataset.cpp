#include "data/transforms/transformed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/stage_clock.h"
#include "data/transforms/chain.h"
#include "data/transforms/memory_pixels.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

bool is_image(const Field& field) {
  return field.spec.dtype == DType::float32 && field.spec.shape.rank() == 3;
}

ImageShape image_shape(const Shape& shape) { return {shape[0], shape[1], shape[2]}; }

class TransformedDataset : public Dataset {
 public:
  TransformedDataset(std::shared_ptr<const Dataset> base, std::span<const TransformOptions> transforms)
      : base_(std::move(base)), chain_(transforms), fields_(base_->fields()) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (!is_image(fields_[i])) continue;
      const ImageShape from = image_shape(fields_[i].spec.shape), to = chain_.output(from);
      fields_[i].spec.shape = Shape{to.height, to.width, to.channels};
      images_.push_back({i, from});
    }
    require(
        !images_.empty(),
        fmt::format("data.transforms: they are for images, fields of shape [height, width, channels], but "
                    "the data ({}) have none; remove them",
                    base_->description()));
  }

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
  std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t /*sample*/) const override {
    return std::pair(images_.front().shape.height, images_.front().shape.width);
  }
  std::optional<SampleDamage> find_damage(int64_t sample) const override {
    return base_->find_damage(sample);
  }
  uint64_t content_hash(int64_t sample) const override { return base_->content_hash(sample); }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    TransformScratch& scratch = scratch_of_thread();
    std::array<std::byte*, kMostFields> inner{};
    std::copy(destinations.begin(), destinations.end(), inner.begin());
    int64_t most = 0;
    for (const auto& image : images_) most += image.shape.count();
    thread_local std::vector<float> originals, cut;
    originals.resize(static_cast<size_t>(most));
    float* next = originals.data();
    for (const auto& image : images_) {
      if (inner[image.field] != nullptr) inner[image.field] = reinterpret_cast<std::byte*>(next);
      next += image.shape.count();
    }
    base_->read(key, std::span<std::byte* const>(inner.data(), destinations.size()));
    const StageTimer timer(DataStage::transform);
    for (const auto& image : images_) {
      if (destinations[image.field] == nullptr) continue;
      MemoryPixels source(image.shape, reinterpret_cast<const float*>(inner[image.field]), cut);
      chain_.apply(key, source, reinterpret_cast<float*>(destinations[image.field]), scratch);
    }
  }

 private:
  struct ImageField {
    size_t field;
    ImageShape shape;  // before transforms
  };
  std::shared_ptr<const Dataset> base_;
  TransformChain chain_;
  std::vector<Field> fields_;
  std::vector<ImageField> images_;
};

}  // namespace

std::shared_ptr<const Dataset> transform_images(std::shared_ptr<const Dataset> base,
                                                std::span<const TransformOptions> transforms) {
  return std::make_shared<TransformedDataset>(std::move(base), transforms);
}

}  // namespace lockstep::data
