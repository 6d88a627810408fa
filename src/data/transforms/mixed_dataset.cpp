#include "data/transforms/mixed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/transforms/wrapped_dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class MixedDataset : public WrappedDataset {
 public:
  MixedDataset(std::shared_ptr<const Dataset> base, const std::optional<MixingOptions>& mixing)
      : WrappedDataset(std::move(base)), mixing_(mixing), base_fields_(fields_.size()) {
    const auto label = std::ranges::find(fields_, kLabelField, &Field::name);
    require(label != fields_.end() && label->spec == TensorSpec{Shape{}, DType::int32} &&
                std::ranges::count_if(fields_, is_image) == 1,
            fmt::format("data.transforms: mixup and cutmix are for samples with one image, a field of shape "
                        "[height, width, channels], and a class, 'label'; the data ({}) are others",
                        base_->description()));
    require(std::ranges::find(fields_, kLabelMixField, &Field::name) == fields_.end(),
            fmt::format("data.transforms: the data ({}) mix labels themselves, in 'label_mix'; remove mixup "
                        "and cutmix",
                        base_->description()));
    require(fields_.size() < kMostFields,
            fmt::format("data.transforms: mixup and cutmix add a field, but the data ({}) have {} already",
                        base_->description(), fields_.size()));
    label_ = static_cast<size_t>(label - fields_.begin());
    image_ = static_cast<size_t>(std::ranges::find_if(fields_, is_image) - fields_.begin());
    const Shape& shape = fields_[image_].spec.shape;
    shape_ = {shape[0], shape[1], shape[2]};
    fields_.push_back({std::string(kLabelMixField), {Shape{2}, DType::int32}});
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    base_->read(key, destinations.first(base_fields_));
    auto* image = reinterpret_cast<float*>(destinations[image_]);
    auto* mixture = reinterpret_cast<int32_t*>(destinations[base_fields_]);
    if (mixture != nullptr) mixture[0] = mixture[1] = 0;
    if (!mixing_ || (image == nullptr && mixture == nullptr)) return;
    const auto mixing = draw_mixing(*mixing_, key, size(), shape_);
    // Without a share, the partner and its class do not count.
    if (!mixing || mixing->mixture == 0) return;
    thread_local std::vector<float> partner_image;
    std::array<std::byte*, kMostFields> partner{};
    if (image != nullptr) {
      partner_image.resize(static_cast<size_t>(shape_.count()));
      partner[image_] = reinterpret_cast<std::byte*>(partner_image.data());
    }
    if (mixture != nullptr) partner[label_] = reinterpret_cast<std::byte*>(mixture);
    base_->read({mixing->partner, key.epoch, key.seed},
                std::span<std::byte* const>(partner.data(), base_fields_));
    if (mixture != nullptr) mixture[1] = mixing->mixture;
    if (image != nullptr) mix_images(*mixing, shape_, partner_image.data(), image);
  }

  std::optional<PackedImages> packed() const override {
    auto packed = base_->packed();
    if (packed && mixing_) packed->layout.mixes = true;
    return packed;
  }
  void read_packed(const SampleKey& key, std::span<std::byte* const> destinations,
                   const pixels::PackedSample& packed) const override {
    base_->read_packed(key, destinations.first(base_fields_), packed);
    auto* mixture = reinterpret_cast<int32_t*>(destinations[base_fields_]);
    if (mixture != nullptr) mixture[0] = mixture[1] = 0;
    if (!mixing_) return;
    *packed.mixing = {};
    const auto mixing = draw_mixing(*mixing_, key, size(), shape_);
    if (!mixing || mixing->mixture == 0) return;
    std::array<std::byte*, kMostFields> partner{};
    partner[label_] = reinterpret_cast<std::byte*>(mixture);
    base_->read_packed({mixing->partner, key.epoch, key.seed},
                       std::span<std::byte* const>(partner.data(), base_fields_),
                       {.image = packed.partner, .steps = packed.partner_steps});
    if (mixture != nullptr) mixture[1] = mixing->mixture;
    *packed.mixing = step_of(*mixing);
  }

 private:
  std::optional<MixingOptions> mixing_;
  size_t base_fields_, label_ = 0, image_ = 0;
  ImageShape shape_;
};

}  // namespace

std::shared_ptr<const Dataset> mix_samples(std::shared_ptr<const Dataset> base,
                                           const std::optional<MixingOptions>& mixing) {
  return std::make_shared<MixedDataset>(std::move(base), mixing);
}

}  // namespace lockstep::data
