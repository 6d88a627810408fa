#include "data/records/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/text.h"
#include "data/byte_source.h"
#include "data/class_names.h"
#include "data/file_attempts.h"
#include "data/file_list.h"
#include "data/images/image_dataset.h"
#include "data/records/record_samples.h"
#include "data/records/record_set.h"
#include "data/transforms/transformed_dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

struct OpenedIndex {
  std::string folder;
  RecordIndex index;
};

OpenedIndex open_index(const DataOptions& options) {
  const std::string path = data_file(options, path_in(options.records.folder, std::string(kIndexFile)));
  std::error_code unknown;
  if (!fs::exists(path, unknown))
    throw IoError(
        fmt::format("there is no {}: `lockstep data pack` did not finish there, or the data "
                    "directory (--data-dir) or data.records.folder names another folder",
                    one_line(path)));
  return {fs::path(path).parent_path().string(), index_from_json(read_text_file(path), one_line(path))};
}

/// For each class of the records, the label that it has: the model's that is evaluated, by name.
std::vector<int32_t> labels_for(const RecordIndex& index, const ImageClasses& classes) {
  std::vector<int32_t> labels(static_cast<size_t>(index.classes));
  std::iota(labels.begin(), labels.end(), 0);
  if (classes.names.empty() || index.class_names.empty()) return labels;
  for (size_t i = 0; i < labels.size() && i < index.class_names.size(); ++i) {
    const auto found = std::ranges::find(classes.names, index.class_names[i]);
    if (found == classes.names.end())
      throw DataError(fmt::format("data.records: the records have the class '{}', which the model does not",
                                  one_line(index.class_names[i])));
    labels[i] = static_cast<int32_t>(found - classes.names.begin());
  }
  return labels;
}

std::string describe(const std::string& folder, const RecordIndex& index) {
  return fmt::format("{} (packed: {})", folder, index.source);
}

/// Calls `open` with the number of each part that is there, and its transforms.
template <class Open>
DatasetPair open_parts(const DataOptions& options, const OpenedIndex& opened, Open&& open) {
  DatasetPair data;
  FileAttempts attempt(options);
  if (options.trains) attempt(opened.folder, [&] { data.train = open(0, options.transforms); });
  if (!opened.index.parts[1].shards.empty())
    attempt(opened.folder, [&] { data.eval = open(1, options.eval_transforms); });
  attempt.finish();
  return data;
}

DatasetPair open_images(const DataOptions& options, const OpenedIndex& opened) {
  const auto& [folder, index] = opened;
  const RecordsOptions& records = options.records;
  require(index.content != RecordContent::pixels || index.channels >= records.channels,
          "data.records.channels: expected 1, for the images are packed as gray pixels, found 3");
  ImageClasses classes{.names = index.class_names, .count = index.classes};
  if (const auto of_model = classes_of_model(options))
    classes = {.names = *of_model, .count = static_cast<int64_t>(of_model->size())};
  const auto open = [&](int part, const std::vector<TransformOptions>& transforms) {
    auto set = std::make_shared<const RecordSet>(folder, index, part, options.found);
    return make_image_dataset(images_of(std::move(set), labels_for(index, classes)),
                              {.classes = classes,
                               .source = describe(folder, index),
                               .left_out = index.parts[part].left_out,
                               .pixels = {.channels = records.channels,
                                          .background = static_cast<uint8_t>(records.background),
                                          .scaled_decoding = records.scaled_decoding},
                               .transforms = transforms,
                               .on_damage = options.on_damage});
  };
  return open_parts(options, opened, open);
}

DatasetPair open_samples(const DataOptions& options, const OpenedIndex& opened) {
  const auto& [folder, index] = opened;
  if (!options.encodings.empty() && options.encodings != index.encodings)
    throw DataError(
        fmt::format("{}: the samples were packed as other numbers than the model was trained on; "
                    "evaluate on the files from which they were packed",
                    one_line(folder)));
  const auto open = [&](int part, const std::vector<TransformOptions>& transforms) {
    auto dataset = make_record_samples(std::make_shared<const RecordSet>(folder, index, part, options.found),
                                       index, part, describe(folder, index), options.on_damage);
    return transforms.empty() ? dataset : transform_images(std::move(dataset), transforms);
  };
  return open_parts(options, opened, open);
}

}  // namespace

DatasetPair open_record_datasets(const DataOptions& options) {
  const OpenedIndex opened = open_index(options);
  const RecordIndex& index = opened.index;
  if (options.trains && index.parts[0].shards.empty())
    throw DataError(fmt::format("{}: expected samples to train on, but only those to evaluate on were packed",
                                one_line(opened.folder)));
  return index.content == RecordContent::samples ? open_samples(options, opened)
                                                 : open_images(options, opened);
}

}  // namespace lockstep::data
