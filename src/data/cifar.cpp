#include "data/cifar.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/hash.h"
#include "base/index.h"
#include "data/byte_source.h"
#include "data/file_attempts.h"
#include "data/split.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kCifarSide = 32, kCifarPlane = kCifarSide * kCifarSide, kCifarValues = 3 * kCifarPlane;

struct CifarFormat {
  CifarLabels labels;
  int64_t label_bytes;  // before the pixels
  int64_t label_at;
  int64_t classes;
};
constexpr CifarFormat kCifarFormats[] = {{CifarLabels::cifar10, 1, 0, 10},
                                         {CifarLabels::cifar100, 2, 1, 100},
                                         {CifarLabels::cifar100_coarse, 2, 0, 20}};

const CifarFormat& format_of(CifarLabels labels) {
  return *std::ranges::find(kCifarFormats, labels, &CifarFormat::labels);
}

/// Files, one behind the other.
struct CifarRecords {
  CifarFormat format;
  std::vector<std::string> paths;
  std::vector<int64_t> first;  // record of each file
  std::vector<uint8_t> bytes;
  int64_t record_bytes() const { return format.label_bytes + kCifarValues; }
  int64_t size() const { return static_cast<int64_t>(bytes.size()) / record_bytes(); }
  const uint8_t* record(int64_t index) const { return bytes.data() + index * record_bytes(); }
  int32_t label(int64_t index) const { return record(index)[format.label_at]; }
  int64_t file(int64_t index) const {
    return std::prev(std::ranges::upper_bound(first, index)) - first.begin();
  }
  const std::string& path(int64_t index) const { return nth(paths, file(index)); }
  std::string place(int64_t index) const {
    return fmt::format("record {} of {}", index - nth(first, file(index)), path(index));
  }
};

void append_file(const std::string& path, CifarRecords& records) {
  const auto bytes = read_all_bytes(path);
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0 || size % records.record_bytes() != 0)
    throw DataError(
        fmt::format("{}: expected whole records of {} bytes, found {} bytes: the file is truncated, or "
                    "data.cifar.labels is for other files",
                    path, records.record_bytes(), size));
  records.paths.push_back(path);
  records.first.push_back(records.size());
  records.bytes.insert(records.bytes.end(), bytes.begin(), bytes.end());
}

std::shared_ptr<const CifarRecords> load_cifar(const DataOptions& options,
                                               const std::vector<std::string>& files) {
  auto records = std::make_shared<CifarRecords>();
  records->format = format_of(options.cifar.labels);
  FileAttempts attempt(options);
  for (const auto& name : files) {
    const std::string path = data_file(options, name);
    attempt(path, [&] { append_file(path, *records); });
  }
  for (int64_t i = 0; i < records->size(); ++i)
    if (records->label(i) >= records->format.classes)
      attempt(records->path(i), [&] {
        throw DataError(
            fmt::format("{}: expected a label from 0 to {}, found {}: the file is damaged, or "
                        "data.cifar.labels is for other files",
                        records->place(i), records->format.classes - 1, records->label(i)));
      });
  attempt.finish();
  return records;
}

class CifarDataset : public Dataset {
 public:
  CifarDataset(std::shared_ptr<const CifarRecords> records, std::vector<int64_t> chosen)
      : records_(std::move(records)), chosen_(std::move(chosen)) {
    fields_ = {{"image", {Shape{kCifarSide, kCifarSide, 3}, DType::float32}},
               {std::string(kLabelField), {Shape{}, DType::int32}}};
    const int64_t header[] = {size(), classes()};
    identity_ = hash64(header, sizeof header);
    for (const int64_t index : chosen_) {
      const int32_t label = records_->label(index);
      const uint8_t* pixels = records_->record(index) + records_->format.label_bytes;
      identity_ = hash_combine(identity_, hash64(pixels, kCifarValues, static_cast<uint64_t>(label)));
    }
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return static_cast<int64_t>(chosen_.size()); }
  int64_t classes() const override { return records_->format.classes; }
  LargestValue largest(std::string_view /*field*/, int64_t ignored) const override {
    const auto rank = [&](int64_t index) {
      return records_->label(index) == ignored ? -1 : int64_t{records_->label(index)};
    };
    const int64_t found = *std::ranges::max_element(chosen_, {}, rank);
    return {.value = rank(found),
            .place = fmt::format("label {} of {}", rank(found), records_->place(found))};
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} images of 32x32x3 in {} classes: {} of the {} of {}", size(), classes(), size(),
                       records_->size(), fmt::join(records_->paths, ", "));
  }
  std::string sample_name(int64_t sample) const override { return records_->place(nth(chosen_, sample)); }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t index = nth(chosen_, key.sample);
    if (destinations[0] != nullptr) {
      const uint8_t* planes = records_->record(index) + records_->format.label_bytes;
      auto* image = reinterpret_cast<float*>(destinations[0]);
      for (int64_t i = 0; i < kCifarPlane; ++i)
        for (int64_t c = 0; c < 3; ++c)
          image[3 * i + c] = static_cast<float>(planes[c * kCifarPlane + i]) * (1.0f / 255);
    }
    if (destinations[1] != nullptr) *reinterpret_cast<int32_t*>(destinations[1]) = records_->label(index);
  }

 private:
  std::shared_ptr<const CifarRecords> records_;
  std::vector<int64_t> chosen_;
  std::vector<Field> fields_;
  uint64_t identity_ = 0;
};

/// Records that train, and records that evaluate. A record's name is its number.
std::pair<std::vector<int64_t>, std::vector<int64_t>> divide(const CifarRecords& records, double fraction,
                                                             uint64_t seed) {
  std::vector<std::string> numbers;
  std::vector<std::string_view> names;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < records.size(); ++i) {
    numbers.push_back(std::to_string(i));
    labels.push_back(records.label(i));
  }
  names.assign(numbers.begin(), numbers.end());
  const auto evaluates = draw_split(names, labels, fraction, seed);
  std::pair<std::vector<int64_t>, std::vector<int64_t>> parts;
  for (int64_t i = 0; i < records.size(); ++i)
    (evaluates[static_cast<size_t>(i)] ? parts.second : parts.first).push_back(i);
  return parts;
}

}  // namespace

DatasetPair open_cifar_datasets(const DataOptions& options) {
  const auto& cifar = options.cifar;
  require(!cifar.train_files.empty(), "data.cifar: expected the names of train_files, found none");
  require(cifar.eval_fraction >= 0 && cifar.eval_fraction < 1,
          fmt::format("data.cifar.eval_fraction: expected from 0 to below 1, found {}", cifar.eval_fraction));
  require(cifar.eval_fraction == 0 || cifar.eval_files.empty(),
          "data.cifar: expected at most one of eval_files and eval_fraction");
  DatasetPair data;
  FileAttempts attempt(options);
  if (options.trains || cifar.eval_fraction > 0)
    attempt(cifar.train_files.front(), [&] {
      const auto records = load_cifar(options, cifar.train_files);
      auto [train, eval] = divide(*records, cifar.eval_fraction, cifar.split_seed);
      if (train.empty() || (cifar.eval_fraction > 0 && eval.empty()))
        throw DataError(fmt::format("{}: {} records are too few to divide by data.cifar.eval_fraction {}",
                                    records->paths.front(), records->size(), cifar.eval_fraction));
      if (options.trains) data.train = std::make_shared<CifarDataset>(records, std::move(train));
      if (!eval.empty()) data.eval = std::make_shared<CifarDataset>(records, std::move(eval));
    });
  if (!cifar.eval_files.empty())
    attempt(cifar.eval_files.front(), [&] {
      const auto records = load_cifar(options, cifar.eval_files);
      data.eval = std::make_shared<CifarDataset>(records, divide(*records, 0, 0).first);
    });
  attempt.finish();
  return data;
}

}  // namespace lockstep::data
