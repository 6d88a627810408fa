#include "data/images/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/index.h"
#include "base/log.h"
#include "data/byte_source.h"
#include "data/class_names.h"
#include "data/file_list.h"
#include "data/images/image_cache.h"
#include "data/images/image_dataset.h"
#include "data/images/image_list.h"
#include "data/images/inspection.h"
#include "data/split.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// The images of a folder, or of a list; nothing if neither is named.
std::optional<ImageList> list_images(const DataOptions& options, const std::string& folder,
                                     const std::string& list, bool may_lack_labels = false) {
  if (!folder.empty()) return list_folder(data_file(options, folder), may_lack_labels);
  if (list.empty()) return {};
  const std::string file = data_file(options, list);
  const bool is_first = file == path_in(options.directory, list);
  return list_file(file, is_first ? options.directory : *options.other_directory, may_lack_labels,
                   options.most_inflated_bytes);
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

class FileImages : public ImageStore {
 public:
  /// `cache`: null if there is none.
  FileImages(std::vector<InspectedImage> images, std::shared_ptr<const ImageCache> cache)
      : images_(std::move(images)), cache_(std::move(cache)) {}
  int64_t count() const override { return static_cast<int64_t>(images_.size()); }
  const ImageFacts& facts(int64_t image) const override { return nth(images_, image); }
  std::string place(int64_t image) const override { return one_line(nth(images_, image).path); }
  std::span<const uint8_t> bytes(int64_t image, std::vector<uint8_t>& room) const override {
    const InspectedImage& file = nth(images_, image);
    if (cache_ && cache_->read(file, room)) return room;
    const bool is_as_it_was = read_image_file(file, room);
    if (cache_ && is_as_it_was) cache_->keep(file, room);
    return room;
  }

 private:
  std::vector<InspectedImage> images_;
  std::shared_ptr<const ImageCache> cache_;
};

std::shared_ptr<const ImageCache> open_cache(const DataOptions& options, const ImageParts& parts) {
  if (options.cache_directory.empty()) return nullptr;
  std::vector<std::span<const InspectedImage>> images;
  for (const auto* part : {&parts.train, &parts.eval})
    if (*part) images.emplace_back((*part)->inspection.images);
  return std::make_shared<const ImageCache>(options.cache_directory, options.cache_bytes, images);
}

}  // namespace

ImageParts inspect_image_data(const DataOptions& options) {
  require_images_options(options.images);
  auto train = list_training_images(options);
  auto eval = list_images(options, options.images.eval, options.images.eval_list, options.may_lack_truth);
  std::vector<const ImageList*> lists;
  if (train) lists.push_back(&*train);
  if (eval) lists.push_back(&*eval);
  require(!lists.empty(),
          "data.images: there is nothing to evaluate on: set eval, eval_list or eval_fraction");
  // A model that is evaluated has its own.
  ImageParts parts;
  parts.classes = classes_of(classes_of_model(options).value_or(options.images.classes), lists);
  for (const auto* list : lists)
    if (!options.may_lack_truth) check_empty_classes(*list, options.on_damage);
  if (options.images.eval_fraction > 0)
    eval = take_evaluation(*train, labels_of(*train, parts.classes), options.images);
  const auto inspect = [&](const ImageList& list) {
    return ImagePart{list.source,
                     inspect_images(list, labels_of(list, parts.classes, options.may_lack_truth), options)};
  };
  if (options.trains) parts.train = inspect(*train);
  if (eval) parts.eval = inspect(*eval);
  return parts;
}

DatasetPair open_image_datasets(const DataOptions& options) {
  ImageParts parts = inspect_image_data(options);
  const auto cache = open_cache(options, parts);
  const auto open = [&](ImagePart& part, const std::vector<TransformOptions>& transforms) {
    return make_image_dataset(std::make_unique<FileImages>(std::move(part.inspection.images), cache),
                              {.classes = parts.classes,
                               .source = part.source,
                               .left_out = part.inspection.left_out,
                               .pixels = {.channels = options.images.channels,
                                          .background = static_cast<uint8_t>(options.images.background),
                                          .scaled_decoding = options.images.scaled_decoding},
                               .transforms = transforms,
                               .on_damage = options.on_damage});
  };
  DatasetPair data;
  if (parts.train) data.train = open(*parts.train, options.transforms);
  if (parts.eval) data.eval = open(*parts.eval, options.eval_transforms);
  return data;
}

}  // namespace lockstep::data
