#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

// Enumerators are converted by number.
static_assert(int{schema::Data::FAIL} == static_cast<int>(data::DamagePolicy::fail));
static_assert(int{schema::Data::SKIP} == static_cast<int>(data::DamagePolicy::skip));
static_assert(int{schema::Cifar::CIFAR10} == static_cast<int>(data::CifarLabels::cifar10));
static_assert(int{schema::Cifar::CIFAR100} == static_cast<int>(data::CifarLabels::cifar100));
static_assert(int{schema::Cifar::CIFAR100_COARSE} == static_cast<int>(data::CifarLabels::cifar100_coarse));
static_assert(int{schema::Resampling::BILINEAR} == static_cast<int>(data::ResizeFilter::bilinear));
static_assert(int{schema::Resampling::BICUBIC} == static_cast<int>(data::ResizeFilter::bicubic));

data::ResizeFilter filter_of(schema::Resampling::Filter filter) {
  return static_cast<data::ResizeFilter>(filter);
}

// Sizes are stated once the config is read: fit_transforms fills them in.
template <class Sized>
int64_t height_of(const Sized& transform) {
  return transform.size_size() > 0 ? transform.size(0) : 0;
}
template <class Sized>
int64_t width_of(const Sized& transform) {
  return transform.size_size() > 1 ? transform.size(1) : 0;
}

data::TransformOptions convert_transform(const schema::Transform& transform) {
  switch (transform.kind_case()) {
    case schema::Transform::kRandomResizedCrop: {
      const auto& crop = transform.random_resized_crop();
      return data::RandomResizedCropOptions{.height = height_of(crop),
                                            .width = width_of(crop),
                                            .area_min = crop.area_min(),
                                            .area_max = crop.area_max(),
                                            .aspect_min = crop.aspect_min(),
                                            .aspect_max = crop.aspect_max(),
                                            .filter = filter_of(crop.filter())};
    }
    case schema::Transform::kResize: {
      const auto& resize = transform.resize();
      return data::ResizeOptions{.height = height_of(resize),
                                 .width = width_of(resize),
                                 .shorter = resize.shorter(),
                                 .filter = filter_of(resize.filter())};
    }
    case schema::Transform::kCenterCrop:
      return data::CenterCropOptions{height_of(transform.center_crop()), width_of(transform.center_crop())};
    case schema::Transform::kPadCrop:
      return data::PadCropOptions{transform.pad_crop().padding(), transform.pad_crop().value()};
    case schema::Transform::kFlip:
      return data::FlipOptions{transform.flip().horizontal(), transform.flip().vertical()};
    case schema::Transform::kAffine: {
      const auto& affine = transform.affine();
      return data::AffineOptions{.degrees = affine.degrees(),
                                 .translate = affine.translate(),
                                 .scale_min = affine.scale_min(),
                                 .scale_max = affine.scale_max(),
                                 .shear = affine.shear(),
                                 .value = affine.value()};
    }
    case schema::Transform::kColorJitter: {
      const auto& jitter = transform.color_jitter();
      return data::ColorJitterOptions{jitter.brightness(), jitter.contrast(), jitter.saturation(),
                                      jitter.hue()};
    }
    case schema::Transform::kGrayscale:
      return data::GrayscaleOptions{transform.grayscale().probability()};
    case schema::Transform::kErase: {
      const auto& erase = transform.erase();
      return data::EraseOptions{.probability = erase.probability(),
                                .area_min = erase.area_min(),
                                .area_max = erase.area_max(),
                                .aspect_min = erase.aspect_min(),
                                .aspect_max = erase.aspect_max(),
                                .value = erase.value()};
    }
    case schema::Transform::kNormalize: {
      const auto& normalize = transform.normalize();
      return data::NormalizeOptions{{normalize.mean().begin(), normalize.mean().end()},
                                    {normalize.deviation().begin(), normalize.deviation().end()}};
    }
    case schema::Transform::kMixup:
      return data::MixupOptions{transform.mixup().alpha(), transform.mixup().probability()};
    case schema::Transform::kCutmix:
      return data::CutmixOptions{transform.cutmix().alpha(), transform.cutmix().probability()};
    case schema::Transform::KIND_NOT_SET:
      break;
  }
  throw InternalError("a transform without a kind was not refused");
}

}  // namespace

std::vector<data::TransformOptions> convert_transforms(
    const google::protobuf::RepeatedPtrField<schema::Transform>& transforms) {
  std::vector<data::TransformOptions> options;
  for (const auto& transform : transforms) options.push_back(convert_transform(transform));
  return options;
}

data::ImagesOptions convert_images(const schema::Images& images) {
  return {.train = images.train(),
          .eval = images.eval(),
          .train_list = images.train_list(),
          .eval_list = images.eval_list(),
          .eval_fraction = images.eval_fraction(),
          .split_seed = images.split_seed(),
          .classes = {images.classes().begin(), images.classes().end()},
          .channels = images.channels(),
          .background = images.background(),
          .scaled_decoding = images.scaled_decoding(),
          .most_pixels = images.most_pixels()};
}

data::CifarOptions convert_cifar(const schema::Cifar& cifar) {
  return {.labels = static_cast<data::CifarLabels>(cifar.labels()),
          .train_files = {cifar.train_files().begin(), cifar.train_files().end()},
          .eval_files = {cifar.eval_files().begin(), cifar.eval_files().end()},
          .eval_list = cifar.eval_list(),
          .eval_fraction = cifar.eval_fraction(),
          .split_seed = cifar.split_seed()};
}

}  // namespace lockstep::config
