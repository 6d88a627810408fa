#include "data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "data/byte_source.h"
#include "data/damage_log.h"
#include "data/file_attempts.h"
#include "data/file_list.h"
#include "data/split.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr uint32_t kMagic = 0x00000800;  // two zeros, type 8 (unsigned byte), then the rank

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void append_big_endian(std::vector<uint8_t>& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(value >> shift));
}

/// An images file and its labels, as loaded once and shared by the ranges cut from it.
struct LabelledImages {
  std::string path, labels_path;
  IdxArray images, labels;
  std::vector<bool> damaged;  // of each sample
  int64_t size() const { return images.dims[0]; }
  int64_t channels() const { return images.dims.size() == 4 ? images.dims[3] : 1; }
  int64_t values() const { return images.dims[1] * images.dims[2] * channels(); }
  std::string image_size() const {
    return fmt::format("{}x{}{}", images.dims[1], images.dims[2],
                       channels() == 1 ? "" : fmt::format("x{}", channels()));
  }
};

/// Turns rows into columns, as EMNIST's files have them.
void transpose_images(IdxArray& images) {
  const int64_t height = images.dims[1], width = images.dims[2];
  const int64_t channels = images.dims.size() == 4 ? images.dims[3] : 1;
  const std::vector<uint8_t> before = images.values;
  size_t to = 0;
  for (int64_t image = 0; image < images.dims[0]; ++image)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t c = 0; c < channels; ++c)
          images.values[to++] =
              before[static_cast<size_t>(((image * height + y) * width + x) * channels + c)];
  std::swap(images.dims[1], images.dims[2]);
}

/// Labels count from `label_offset` on in the file, and from 0 on in memory. Those below, and those beyond
/// the classes, are damaged. Throws what DamageLog::note() throws.
void take_labels(const DataOptions& options, LabelledImages& files) {
  DamageLog damage(options);
  const int64_t first = options.label_offset,
                last = options.idx_classes > 0 ? first + options.idx_classes - 1 : 255;
  constexpr int64_t kHeaderBytes = 8;
  files.damaged.assign(files.labels.values.size(), false);
  for (size_t i = 0; i < files.labels.values.size(); ++i) {
    const int64_t label = files.labels.values[i];
    if (label >= first && label <= last) {
      files.labels.values[i] = static_cast<uint8_t>(label - first);
      continue;
    }
    const auto sample = static_cast<int64_t>(i);
    damage.note({files.labels_path, "sample", sample, kHeaderBytes + sample},
                fmt::format("expected a label from {} to {}, by data.idx.label_offset and data.idx.classes, "
                            "found {}",
                            first, last, label));
    files.damaged[i] = true;
  }
  damage.finish("samples");
}

std::shared_ptr<const LabelledImages> load(const DataOptions& options, const std::string& images,
                                           const std::string& labels) {
  const std::string images_path = data_file(options, images), labels_path = data_file(options, labels);
  auto files = std::make_shared<LabelledImages>();
  files->path = images_path;
  files->labels_path = labels_path;
  FileAttempts attempt(options);
  attempt(images_path, [&] { files->images = read_idx(images_path, 3, options.most_inflated_bytes); });
  attempt(labels_path, [&] { files->labels = read_idx(labels_path, 1, options.most_inflated_bytes); });
  attempt.finish();
  if (files->labels.dims[0] != files->size())
    throw DataError(
        fmt::format("{}: expected {} labels, one for each image of {}, found {}; the two files do not belong "
                    "together",
                    labels_path, files->size(), images_path, files->labels.dims[0]));
  take_labels(options, *files);
  if (options.transposed) transpose_images(files->images);
  return files;
}

/// Samples of the files, in their order.
struct ChosenSamples {
  std::vector<int64_t> numbers;
  int64_t left_out = 0;  // that are damaged
  bool are_a_range() const {
    return numbers.back() - numbers.front() + 1 == static_cast<int64_t>(numbers.size());
  }
};

class IdxDataset : public Dataset {
 public:
  IdxDataset(std::shared_ptr<const LabelledImages> files, ChosenSamples chosen, const DataOptions& options)
      : files_(std::move(files)), chosen_(std::move(chosen)) {
    fields_ = {{"image",
                {Shape{files_->images.dims[1], files_->images.dims[2], files_->channels()}, DType::float32}},
               {std::string(kLabelField), {Shape{}, DType::int32}}};
    for (int value = 0; value < 256; ++value)
      nth(pixel_, value) = static_cast<float>((value / 255.0 - options.mean) / options.deviation);
    classes_ = options.idx_classes;
    for (const int64_t number : chosen_.numbers) classes_ = std::max<int64_t>(classes_, label(number) + 1);
    identity_ = compute_identity();
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return static_cast<int64_t>(chosen_.numbers.size()); }
  int64_t classes() const override { return classes_; }
  LargestValue largest(std::string_view /*field*/, int64_t ignored) const override {
    const auto rank = [&](int64_t number) { return label(number) == ignored ? -1 : int{label(number)}; };
    const int64_t found = *std::ranges::max_element(chosen_.numbers, {}, rank);
    return {.value = rank(found),
            .place = fmt::format("label {} of sample {} in {}", label(found), found, files_->labels_path)};
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    const auto& numbers = chosen_.numbers;
    return fmt::format(
        "{} images of {} in {} classes: samples {} of {}", size(), files_->image_size(), classes_,
        chosen_.are_a_range() ? fmt::format("[{}, {})", numbers.front(), numbers.back() + 1)
                              : fmt::format("chosen among [{}, {})", numbers.front(), numbers.back() + 1),
        files_->path);
  }
  Damage damage() const override { return {.left_out = chosen_.left_out, .replaced = {}}; }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t number = nth(chosen_.numbers, key.sample);
    if (destinations[0]) {
      const uint8_t* pixels = pixels_of(number);
      auto* image = reinterpret_cast<float*>(destinations[0]);
      for (int64_t i = 0; i < files_->values(); ++i) image[i] = nth(pixel_, pixels[i]);
    }
    if (destinations[1]) {
      const int32_t value = label(number);
      std::memcpy(destinations[1], &value, sizeof value);
    }
  }

 private:
  uint8_t label(int64_t number) const { return nth(files_->labels.values, number); }
  const uint8_t* pixels_of(int64_t number) const {
    return files_->images.values.data() + number * files_->values();
  }

  /// Of a range, all pixels as one: identities are those that checkpoints know.
  uint64_t compute_identity() const {
    const int64_t header[3] = {size(), files_->images.dims[1], files_->images.dims[2]};
    uint64_t hash = hash64(header, sizeof header);
    if (const int64_t channels = files_->channels(); channels != 1)
      hash = hash_combine(hash, static_cast<uint64_t>(channels));
    const auto pixels = static_cast<size_t>(files_->values()), count = static_cast<size_t>(size());
    const int64_t first = chosen_.numbers.front();
    if (chosen_.are_a_range()) {
      hash = hash_combine(hash, hash64(pixels_of(first), count * pixels));
      hash = hash_combine(hash, hash64(files_->labels.values.data() + first, count));
    } else {
      for (const int64_t number : chosen_.numbers)
        hash = hash_combine(hash, hash64(pixels_of(number), pixels, label(number)));
    }
    return hash_combine(hash, hash64(pixel_.data(), sizeof pixel_));
  }

  std::shared_ptr<const LabelledImages> files_;
  ChosenSamples chosen_;
  int64_t classes_ = 0;
  uint64_t identity_ = 0;
  std::vector<Field> fields_;
  std::array<float, 256> pixel_{};  // a pixel's value after normalisation
};

/// Those of the range that are whole.
ChosenSamples choose(const LabelledImages& files, SampleRange range, const char* range_name) {
  const int64_t end = range.end < 0 ? files.size() : range.end;
  if (range.begin < 0 || range.begin >= end || end > files.size())
    throw DataError(fmt::format("{}: expected {} to select at least one of its {} samples, found [{}, {})",
                                files.path, range_name, files.size(), range.begin, range.end));
  ChosenSamples chosen;
  for (int64_t number = range.begin; number < end; ++number)
    if (files.damaged[static_cast<size_t>(number)])
      ++chosen.left_out;
    else
      chosen.numbers.push_back(number);
  if (chosen.numbers.empty())
    throw DataError(
        fmt::format("{}: all {} labels of {} are damaged", files.labels_path, chosen.left_out, range_name));
  return chosen;
}

/// Whether a list has each sample of the files. Throws DataError for one that the training range has not: it
/// would be dropped without a word.
std::vector<bool> listed_samples(const DataOptions& options, const LabelledImages& files) {
  const auto listed = read_numbers(options, options.eval_list, files.size(), "samples");
  const SampleRange range = options.train_range;
  const int64_t end = range.end < 0 ? files.size() : range.end;
  for (int64_t number = 0; number < files.size(); ++number)
    if (nth(listed, number) && (number < range.begin || number >= end))
      throw DataError(
          fmt::format("{}: expected numbers of samples in data.idx.train_range, [{}, {}), found {}",
                      one_line(options.eval_list), range.begin, end, number));
  return listed;
}

/// Moves what the list or the seed says from samples that train to others, which evaluate. A sample's name is
/// its number in the file.
ChosenSamples take_evaluation(const DataOptions& options, const LabelledImages& files, ChosenSamples& train) {
  std::vector<bool> evaluates;
  if (options.eval_list.empty()) {
    std::vector<int32_t> labels;
    for (const int64_t number : train.numbers) labels.push_back(nth(files.labels.values, number));
    evaluates = draw_numbers(train.numbers, labels, options.eval_fraction, options.split_seed);
  } else {
    const auto listed = listed_samples(options, files);
    for (const int64_t number : train.numbers) evaluates.push_back(listed[static_cast<size_t>(number)]);
  }
  ChosenSamples rest{.numbers = {}, .left_out = train.left_out}, eval;
  for (size_t i = 0; i < train.numbers.size(); ++i)
    (evaluates[i] ? eval : rest).numbers.push_back(train.numbers[i]);
  if (rest.numbers.empty() || eval.numbers.empty())
    throw DataError(fmt::format("{}: expected samples to {} on, found none among {}; choose another {}",
                                files.path, eval.numbers.empty() ? "evaluate" : "train", train.numbers.size(),
                                options.eval_list.empty() ? "data.idx.eval_fraction" : "data.idx.eval_list"));
  train = std::move(rest);
  return eval;
}

/// `train_files`: null if they are not opened.
std::shared_ptr<const Dataset> open_evaluation(const DataOptions& options,
                                               const std::shared_ptr<const LabelledImages>& train_files) {
  const bool shared = train_files && options.train_images == options.eval_images &&
                      options.train_labels == options.eval_labels;
  const auto eval_files = shared ? train_files : load(options, options.eval_images, options.eval_labels);
  if (train_files && train_files->image_size() != eval_files->image_size())
    throw DataError(fmt::format("{}: expected images of {} as in {}, found {}", eval_files->path,
                                train_files->image_size(), train_files->path, eval_files->image_size()));
  return std::make_shared<IdxDataset>(eval_files, choose(*eval_files, options.eval_range, "eval_range"),
                                      options);
}

}  // namespace

IdxArray read_idx(const std::string& path, int rank, int64_t most_inflated) {
  ByteSource source(path, most_inflated);
  constexpr int kColorRank = 4;
  std::vector<uint8_t> header(4 + 4 * kColorRank);
  int64_t header_found = source.read(header.data(), 4);
  if (rank == 3 && header_found == 4 && big_endian(header.data()) == kMagic + kColorRank) rank = kColorRank;
  const auto header_bytes = int64_t{4} + 4 * rank;
  header_found += source.read(header.data() + 4, header_bytes - 4);
  const uint32_t expected_magic = kMagic + static_cast<uint32_t>(rank);
  if (header_found >= 4 && big_endian(header.data()) != expected_magic)
    throw DataError(fmt::format("{}: expected an IDX file of {} (magic 0x{:08x}), found 0x{:08x}", path,
                                rank == 1 ? "labels" : "images", expected_magic, big_endian(header.data())));
  if (header_found < header_bytes)
    throw DataError(fmt::format("{}: expected an IDX header of {} bytes, found a file of {}: it is truncated",
                                path, header_bytes, header_found));

  IdxArray array;
  int64_t count = 1;
  bool overflow = false;
  for (int axis = 0; axis < rank; ++axis) {
    array.dims.push_back(big_endian(header.data() + 4 + 4 * axis));
    overflow |= __builtin_mul_overflow(count, array.dims.back(), &count);
  }
  if (!overflow && count == 0)
    throw DataError(fmt::format("{}: expected at least one value, found dimensions [{}]", path,
                                fmt::join(array.dims, ", ")));
  if (overflow || count > source.most_bytes() - (source.is_gzip() ? 0 : header_bytes))
    throw DataError(
        fmt::format("{}: expected values for dimensions [{}], found a file that holds no more than {} bytes: "
                    "it is truncated, or its header is damaged",
                    path, fmt::join(array.dims, ", "), source.most_bytes()));
  source.require_may_hold(header_bytes + count);
  array.values.resize(static_cast<size_t>(count));
  const int64_t found = source.read(array.values.data(), count);
  if (found < count)
    throw DataError(fmt::format("{}: expected {} values for dimensions [{}], found {}: the file is truncated",
                                path, count, fmt::join(array.dims, ", "), found));
  uint8_t extra;
  if (source.read(&extra, 1) != 0)
    throw DataError(
        fmt::format("{}: expected the end of the file after {} values for dimensions [{}], found more bytes",
                    path, count, fmt::join(array.dims, ", ")));
  return array;
}

std::vector<uint8_t> idx_bytes(std::span<const int64_t> dims, std::span<const uint8_t> values) {
  std::vector<uint8_t> bytes;
  bytes.reserve(4 + 4 * dims.size() + values.size());
  append_big_endian(bytes, kMagic + static_cast<uint32_t>(dims.size()));
  int64_t count = 1;
  for (const int64_t dim : dims) {
    ensure(dim >= 0 && dim <= UINT32_MAX, "an IDX dimension does not fit 32 bits");
    append_big_endian(bytes, static_cast<uint32_t>(dim));
    count *= dim;
  }
  ensure(count == static_cast<int64_t>(values.size()), "IDX dimensions do not match the number of values");
  bytes.insert(bytes.end(), values.begin(), values.end());
  return bytes;
}

DatasetPair open_idx_datasets(const DataOptions& options) {
  require(std::isfinite(options.mean) && std::isfinite(options.deviation) && options.deviation > 0,
          fmt::format("data: expected a finite mean and a deviation above 0, found mean {} and deviation {}",
                      options.mean, options.deviation));
  require(!options.train_images.empty() && !options.train_labels.empty(),
          "data: an IDX data set needs the names of train_images and train_labels");
  require(options.eval_images.empty() == options.eval_labels.empty(),
          "data: an IDX data set needs the names of both eval_images and eval_labels, or of neither");
  const bool divides = options.eval_fraction > 0 || !options.eval_list.empty();
  require((options.eval_fraction > 0) + !options.eval_list.empty() + !options.eval_images.empty() <= 1,
          "data: of an IDX data set expected at most one of eval_images, eval_list and eval_fraction");
  require(options.eval_fraction >= 0 && options.eval_fraction < 1,
          fmt::format("data.idx.eval_fraction: expected from 0 to below 1, found {}", options.eval_fraction));
  DatasetPair data;
  std::shared_ptr<const LabelledImages> train_files;
  FileAttempts attempt(options);
  if (options.trains || divides)
    attempt(options.train_images, [&] {
      train_files = load(options, options.train_images, options.train_labels);
      ChosenSamples train = choose(*train_files, options.train_range, "train_range");
      if (divides) {
        ChosenSamples eval = take_evaluation(options, *train_files, train);
        // What is left out of both parts together is counted once.
        if (!options.trains) eval.left_out = train.left_out;
        data.eval = std::make_shared<IdxDataset>(train_files, std::move(eval), options);
      }
      if (options.trains) data.train = std::make_shared<IdxDataset>(train_files, std::move(train), options);
    });
  if (!options.eval_images.empty())
    attempt(options.eval_images, [&] { data.eval = open_evaluation(options, train_files); });
  attempt.finish();
  return data;
}

}  // namespace lockstep::data
