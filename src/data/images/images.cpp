#include "data/images/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "base/hash.h"
#include "base/index.h"
#include "base/log.h"
#include "data/byte_source.h"
#include "data/class_names.h"
#include "data/file_list.h"
#include "data/images/file_pixels.h"
#include "data/images/image_file.h"
#include "data/images/image_list.h"
#include "data/images/inspection.h"
#include "data/split.h"
#include "data/transforms/chain.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class ImagesDataset : public Dataset {
 public:
  ImagesDataset(Inspection inspection, const ImageClasses& classes, const std::string& source,
                const DataOptions& options, const std::vector<TransformOptions>& transforms)
      : images_(std::move(inspection.images)),
        left_out_(inspection.left_out),
        classes_(classes),
        source_(source),
        chain_(transforms),
        policy_(options.on_damage),
        pixels_{.channels = options.images.channels,
                .background = static_cast<uint8_t>(options.images.background),
                .scaled_decoding = options.images.scaled_decoding} {
    if (images_.empty())
      throw DataError(
          fmt::format("{}: expected at least one JPEG or PNG image, found none", one_line(source)));
    const ImageShape shape = common_shape();
    fields_ = {{"image", {Shape{shape.height, shape.width, shape.channels}, DType::float32}},
               {std::string(kLabelField), {Shape{}, DType::int32}}};
    const auto count = images_.size();
    identity_ = hash64(&count, sizeof count);
    for (const auto& image : images_) {
      const uint64_t facts[] = {static_cast<uint64_t>(image.label), static_cast<uint64_t>(image.size_bytes),
                                image.beginning};
      identity_ = hash_combine(identity_, hash64(facts, sizeof facts));
    }
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  int64_t classes() const override { return classes_.count; }
  LargestValue largest(std::string_view /*field*/, int64_t ignored) const override {
    const auto rank = [ignored](const InspectedImage& image) {
      return image.label == ignored ? -1 : int64_t{image.label};
    };
    const auto& found = *std::ranges::max_element(images_, {}, rank);
    return {.value = rank(found), .place = fmt::format("class {} of {}", found.label, one_line(found.path))};
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} images in {} classes of {}", size(), classes_.count, one_line(source_));
  }
  std::vector<std::string> class_names() const override { return classes_.names; }
  Encodings encodings() const override {
    return classes_.names.empty() ? Encodings{} : class_encoding(classes_.names);
  }
  std::string sample_name(int64_t sample) const override { return one_line(nth(images_, sample).path); }
  Damage damage() const override {
    const std::lock_guard lock(mutex_);
    return {.left_out = left_out_, .replaced = {replaced_.begin(), replaced_.end()}};
  }

  std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t sample) const override {
    const ImageHeader& header = nth(images_, sample).header;
    return std::pair(header.shown_height(), header.shown_width());
  }
  uint64_t content_hash(int64_t sample) const override {
    std::vector<uint8_t> bytes;
    try {
      read_image_file(nth(images_, sample), bytes);
    } catch (const ImageDamage& damage) {
      throw DataError(damage_message(nth(images_, sample).path, sample, damage));
    }
    return hash64(bytes.data(), bytes.size());
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    thread_local std::vector<std::byte> unused;
    auto* image = reinterpret_cast<float*>(destinations[0]);
    // Who reads the label alone has to find the same damage.
    if (image == nullptr && policy_ == DamagePolicy::skip) {
      unused.resize(static_cast<size_t>(fields_[0].spec.shape.count()) * sizeof(float));
      image = reinterpret_cast<float*>(unused.data());
    }
    const int64_t sample = image != nullptr ? read_image(key, image) : key.sample;
    if (destinations[1] != nullptr) *reinterpret_cast<int32_t*>(destinations[1]) = nth(images_, sample).label;
  }

 private:
  /// Reads the image of the key, or with SKIP the next one in the data set's order that is not damaged, with
  /// the same numbers drawn. Returns which it was.
  int64_t read_image(const SampleKey& key, float* image) const {
    constexpr int64_t kMostTries = 100;  // more in a row are no damage, but another data set
    for (int64_t tries = 0;; ++tries) {
      const int64_t sample = (key.sample + tries) % size();
      const auto& file = nth(images_, sample);
      try {
        thread_local std::vector<uint8_t> bytes;
        read_image_file(file, bytes);
        FilePixels source(file.header, bytes, pixels_);
        chain_.apply(key, source, image, scratch_of_thread());
        return sample;
      } catch (const ImageDamage& damage) {
        const std::string message = damage_message(file.path, sample, damage);
        if (policy_ == DamagePolicy::fail || tries == std::min(kMostTries, size()) - 1)
          throw DataError(message);
        note(sample, message);
      }
    }
  }

  void note(int64_t sample, const std::string& message) const {
    constexpr size_t kMostWarnings = 10;
    size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!replaced_.insert(sample).second) return;
      count = replaced_.size();
    }
    if (count <= kMostWarnings) log_warning("replaced by the next image: " + message);
  }

  /// That of what the model gets, which must not depend on the file.
  ImageShape common_shape() const {
    std::set<std::pair<int64_t, int64_t>> seen;
    ImageShape common;
    const InspectedImage* first = nullptr;
    for (const auto& image : images_) {
      const ImageShape from{image.header.shown_height(), image.header.shown_width(), pixels_.channels};
      if (!seen.insert({from.height, from.width}).second) continue;
      ImageShape to;
      try {
        to = chain_.output(from);
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("data.transforms: {} ({})", error.what(), one_line(image.path)));
      }
      if (first != nullptr && to != common)
        throw ConfigError(
            fmt::format("data.transforms: {} becomes {}, but {} becomes {}; add resize or "
                        "random_resized_crop, so that all "
                        "images have the model's size",
                        one_line(first->path), common.to_string(), one_line(image.path), to.to_string()));
      common = to;
      first = &image;
    }
    return common;
  }

  std::vector<InspectedImage> images_;
  int64_t left_out_;
  ImageClasses classes_;
  std::string source_;
  TransformChain chain_;
  DamagePolicy policy_;
  PixelOptions pixels_;
  std::vector<Field> fields_;
  uint64_t identity_ = 0;
  mutable std::mutex mutex_;  // guards replaced_
  mutable std::set<int64_t> replaced_;
};

/// The images of a folder, or of a list; nothing if neither is named.
std::optional<ImageList> list_images(const DataOptions& options, const std::string& folder,
                                     const std::string& list) {
  if (!folder.empty()) return list_folder(data_file(options, folder));
  if (list.empty()) return {};
  const std::string file = data_file(options, list);
  const bool is_first = file == path_in(options.directory, list);
  return list_file(file, is_first ? options.directory : *options.other_directory);
}

/// Training images that nobody trains on still say what the classes are, if they are there.
std::optional<ImageList> list_training_images(const DataOptions& options) {
  const auto& images = options.images;
  if (options.trains || images.eval_fraction > 0)
    return list_images(options, images.train, images.train_list);
  if (!images.classes.empty() || classes_of_model(options)) return {};
  try {
    return list_images(options, images.train, images.train_list);
  } catch (const IoError&) {
    return {};
  }
}

void require_images_options(const ImagesOptions& images) {
  require(images.train.empty() != images.train_list.empty(),
          "data.images: expected either train, a folder, or train_list, a list of files");
  const int evaluations = !images.eval.empty() + !images.eval_list.empty() + (images.eval_fraction > 0);
  require(evaluations <= 1, "data.images: expected at most one of eval, eval_list and eval_fraction");
  require(
      images.eval_fraction >= 0 && images.eval_fraction < 1,
      fmt::format("data.images.eval_fraction: expected from 0 to below 1, found {}", images.eval_fraction));
  require(images.channels == 1 || images.channels == 3,
          fmt::format("data.images.channels: expected 1 or 3, found {}", images.channels));
  require(images.background >= 0 && images.background <= 255,
          fmt::format("data.images.background: expected from 0 to 255, found {}", images.background));
  require(images.most_pixels >= 1,
          fmt::format("data.images.most_pixels: expected at least 1, found {}", images.most_pixels));
}

/// Folders of classes without an image.
void check_empty_classes(const ImageList& list, DamagePolicy policy) {
  std::set<std::string_view> used;
  for (const auto& image : list.images) used.insert(image.label);
  for (const auto& label : list.classes) {
    if (used.contains(label)) continue;
    const std::string message = fmt::format("{}/{}: expected images of this class, found none",
                                            one_line(list.source), one_line(label));
    if (policy == DamagePolicy::fail)
      throw DataError(message +
                      "; remove the folder, or set data.on_damage: SKIP to keep the class without images");
    log_warning(message);
  }
}

/// Moves what evaluates to a list of its own.
ImageList take_evaluation(ImageList& train, const std::vector<int32_t>& labels,
                          const ImagesOptions& options) {
  std::vector<std::string_view> names;
  for (const auto& image : train.images) names.push_back(image.name);
  const auto evaluates = draw_split(names, labels, options.eval_fraction, options.split_seed);
  ImageList rest = train, eval = train;
  rest.images.clear();
  eval.images.clear();
  for (size_t i = 0; i < train.images.size(); ++i)
    (evaluates[i] ? eval : rest).images.push_back(std::move(train.images[i]));
  train = std::move(rest);
  return eval;
}

}  // namespace

DatasetPair open_image_datasets(const DataOptions& options) {
  require_images_options(options.images);
  auto train = list_training_images(options);
  auto eval = list_images(options, options.images.eval, options.images.eval_list);
  std::vector<const ImageList*> lists;
  if (train) lists.push_back(&*train);
  if (eval) lists.push_back(&*eval);
  require(!lists.empty(),
          "data.images: there is nothing to evaluate on: set eval, eval_list or eval_fraction");
  // A model that is evaluated has its own.
  const ImageClasses classes = classes_of(classes_of_model(options).value_or(options.images.classes), lists);
  for (const auto* list : lists) check_empty_classes(*list, options.on_damage);
  if (options.images.eval_fraction > 0)
    eval = take_evaluation(*train, labels_of(*train, classes), options.images);
  const auto open = [&](const ImageList& list, const std::vector<TransformOptions>& transforms) {
    return std::make_shared<ImagesDataset>(
        inspect_images(list, labels_of(list, classes), options.images.most_pixels, options.on_damage),
        classes, list.source, options, transforms);
  };
  DatasetPair data;
  if (options.trains) data.train = open(*train, options.transforms);
  if (eval) data.eval = open(*eval, options.eval_transforms);
  return data;
}

}  // namespace lockstep::data
