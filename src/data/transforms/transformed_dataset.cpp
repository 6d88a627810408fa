#include "data/transforms/transformed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/stage_clock.h"
#include "data/transforms/chain.h"
#include "data/transforms/memory_pixels.h"
#include "data/transforms/wrapped_dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

ImageShape image_shape(const Shape& shape) { return {shape[0], shape[1], shape[2]}; }

class TransformedDataset : public WrappedDataset {
 public:
  TransformedDataset(std::shared_ptr<const Dataset> base, std::span<const TransformOptions> transforms,
                     uint32_t first_place)
      : WrappedDataset(std::move(base)), chain_(transforms, first_place) {
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

  std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t sample) const override {
    if (const auto size = base_->stored_size(sample)) return size;
    return std::pair(images_.front().shape.height, images_.front().shape.width);
  }

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
  TransformChain chain_;
  std::vector<ImageField> images_;
};

}  // namespace

std::shared_ptr<const Dataset> transform_images(std::shared_ptr<const Dataset> base,
                                                std::span<const TransformOptions> transforms,
                                                uint32_t first_place) {
  return std::make_shared<TransformedDataset>(std::move(base), transforms, first_place);
}

}  // namespace lockstep::data
