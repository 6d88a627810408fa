#include "data/cifar.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

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
  std::vector<bool> damaged;  // of each record
  int64_t left_out = 0;       // damaged records
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

void append_file(const std::string& path, int64_t most_inflated, CifarRecords& records) {
  const auto bytes = read_all_bytes(path, most_inflated);
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

/// Labels beyond the classes. Throws what DamageLog::note() throws.
void find_damaged_records(const DataOptions& options, CifarRecords& records) {
  DamageLog damage(options);
  records.damaged.assign(static_cast<size_t>(records.size()), false);
  for (int64_t i = 0; i < records.size(); ++i) {
    if (records.label(i) < records.format.classes) continue;
    const int64_t number = i - nth(records.first, records.file(i));
    damage.note(
        {records.path(i), "record", number, number * records.record_bytes() + records.format.label_at},
        fmt::format("expected a label from 0 to {}, found {}: the file is damaged, or "
                    "data.cifar.labels is for other files",
                    records.format.classes - 1, records.label(i)));
    records.damaged[static_cast<size_t>(i)] = true;
  }
  damage.finish("records");
  records.left_out = damage.count();
  if (records.left_out > 0 && records.left_out == records.size())
    throw DataError(
        fmt::format("{}: no record has a label from 0 to {}; data.cifar.labels is for other files",
                    records.paths.front(), records.format.classes - 1));
}

std::shared_ptr<const CifarRecords> load_cifar(const DataOptions& options,
                                               const std::vector<std::string>& files) {
  auto records = std::make_shared<CifarRecords>();
  records->format = format_of(options.cifar.labels);
  FileAttempts attempt(options);
  for (const auto& name : files) {
    const std::string path = data_file(options, name);
    attempt(path, [&] { append_file(path, options.most_inflated_bytes, *records); });
  }
  find_damaged_records(options, *records);
  attempt.finish();
  return records;
}

class CifarDataset : public Dataset {
 public:
  CifarDataset(std::shared_ptr<const CifarRecords> records, std::vector<int64_t> chosen, int64_t left_out)
      : records_(std::move(records)), chosen_(std::move(chosen)), left_out_(left_out) {
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
  Damage damage() const override { return {.left_out = left_out_, .replaced = {}}; }

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
  int64_t left_out_;
  std::vector<Field> fields_;
  uint64_t identity_ = 0;
};

/// All records that are whole.
std::vector<int64_t> whole_records(const CifarRecords& records) {
  std::vector<int64_t> whole;
  for (int64_t i = 0; i < records.size(); ++i)
    if (!records.damaged[static_cast<size_t>(i)]) whole.push_back(i);
  return whole;
}

/// Whole records that train, and those that evaluate. A record's name is its number.
std::pair<std::vector<int64_t>, std::vector<int64_t>> divide(const CifarRecords& records,
                                                             const DataOptions& options) {
  const std::vector<int64_t> whole = whole_records(records);
  std::vector<bool> evaluates;
  if (options.cifar.eval_list.empty()) {
    std::vector<int32_t> labels;
    for (const int64_t record : whole) labels.push_back(records.label(record));
    evaluates = draw_numbers(whole, labels, options.cifar.eval_fraction, options.cifar.split_seed);
  } else {
    const auto listed = read_numbers(options, options.cifar.eval_list, records.size(), "records");
    for (const int64_t record : whole) evaluates.push_back(listed[static_cast<size_t>(record)]);
  }
  std::pair<std::vector<int64_t>, std::vector<int64_t>> parts;
  for (size_t i = 0; i < whole.size(); ++i) (evaluates[i] ? parts.second : parts.first).push_back(whole[i]);
  return parts;
}

}  // namespace

DatasetPair open_cifar_datasets(const DataOptions& options) {
  const auto& cifar = options.cifar;
  require(!cifar.train_files.empty(), "data.cifar: expected the names of train_files, found none");
  require(cifar.eval_fraction >= 0 && cifar.eval_fraction < 1,
          fmt::format("data.cifar.eval_fraction: expected from 0 to below 1, found {}", cifar.eval_fraction));
  const bool divides = cifar.eval_fraction > 0 || !cifar.eval_list.empty();
  require((cifar.eval_fraction > 0) + !cifar.eval_list.empty() + !cifar.eval_files.empty() <= 1,
          "data.cifar: expected at most one of eval_files, eval_list and eval_fraction");
  DatasetPair data;
  FileAttempts attempt(options);
  if (options.trains || divides)
    attempt(cifar.train_files.front(), [&] {
      const auto records = load_cifar(options, cifar.train_files);
      auto [train, eval] = divide(*records, options);
      if (train.empty() || (divides && eval.empty()))
        throw DataError(
            fmt::format("{}: expected records to {} on, found none among {}; choose another {}",
                        records->paths.front(), train.empty() ? "train" : "evaluate", records->size(),
                        cifar.eval_list.empty() ? "data.cifar.eval_fraction" : "data.cifar.eval_list"));
      if (options.trains)
        data.train = std::make_shared<CifarDataset>(records, std::move(train), records->left_out);
      // What is left out of both parts together is counted once.
      if (divides)
        data.eval =
            std::make_shared<CifarDataset>(records, std::move(eval), data.train ? 0 : records->left_out);
    });
  if (!cifar.eval_files.empty())
    attempt(cifar.eval_files.front(), [&] {
      const auto records = load_cifar(options, cifar.eval_files);
      data.eval = std::make_shared<CifarDataset>(records, whole_records(*records), records->left_out);
    });
  attempt.finish();
  return data;
}

}  // namespace lockstep::data
