#include "data/tables/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/hash.h"
#include "base/text.h"
#include "data/file_list.h"
#include "data/split.h"
#include "data/tables/table_rows.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class TableDataset : public Dataset {
 public:
  TableDataset(const TableRows& rows, const std::vector<int64_t>& which, Columns columns,
               const std::string& files, int64_t left_out)
      : columns_(std::move(columns)),
        width_(feature_count(columns_)),
        size_(static_cast<int64_t>(which.size())),
        left_out_(left_out) {
    const bool classifies = columns_.target.is_category;
    fields_ = {{"features", {Shape{width_}, DType::float32}}};
    if (classifies)
      fields_.push_back({std::string(kLabelField), {Shape{}, DType::int32}});
    else
      fields_.push_back({std::string(kTargetField), {Shape{1}, DType::float32}});
    features_.reserve(which.size() * static_cast<size_t>(width_));
    for (const int64_t row : which) add(rows, row);
    const std::string json = to_json(columns_);
    identity_ = hash_combine(hash64(json), hash64(features_.data(), features_.size() * sizeof(float)));
    identity_ = hash_combine(identity_, hash64(labels_.data(), labels_.size() * sizeof(int32_t)));
    identity_ = hash_combine(identity_, hash64(targets_.data(), targets_.size() * sizeof(float)));
    description_ =
        fmt::format("{} rows of {} features, {}: {}", size_, width_,
                    classifies ? fmt::format("{} classes of '{}'", classes(), one_line(columns_.target.name))
                               : fmt::format("and the number '{}'", one_line(columns_.target.name)),
                    files);
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return size_; }
  int64_t classes() const override { return static_cast<int64_t>(columns_.target.values.size()); }
  Encodings encodings() const override { return {{std::string(kColumnsFile), to_json(columns_)}}; }
  uint64_t identity() const override { return identity_; }
  std::string description() const override { return description_; }
  std::vector<std::string> class_names() const override { return columns_.target.values; }
  Damage damage() const override { return {.left_out = left_out_, .replaced = {}}; }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const auto sample = static_cast<size_t>(key.sample), width = static_cast<size_t>(width_);
    if (destinations[0])
      std::memcpy(destinations[0], features_.data() + sample * width, width * sizeof(float));
    if (!destinations[1]) return;
    if (columns_.target.is_category)
      std::memcpy(destinations[1], &labels_[sample], sizeof(int32_t));
    else
      std::memcpy(destinations[1], &targets_[sample], sizeof(float));
  }

 private:
  static float standardized(double value, const Column& column) {
    return static_cast<float>((value - column.mean) / column.deviation);
  }

  void add(const TableRows& rows, int64_t row) {
    for (size_t c = 0; c < columns_.inputs.size(); ++c) {
      const Column& column = columns_.inputs[c];
      const double value = rows.value(row, c);
      if (!column.is_category) {
        features_.push_back(standardized(value, column));
        continue;
      }
      for (size_t k = 0; k < column.values.size(); ++k)
        features_.push_back(value == static_cast<double>(k) ? 1.0f : 0.0f);
    }
    const double target = rows.value(row, rows.target());
    if (columns_.target.is_category)
      labels_.push_back(static_cast<int32_t>(target));
    else
      targets_.push_back(standardized(target, columns_.target));
  }

  Columns columns_;
  int64_t width_, size_, left_out_;
  std::vector<Field> fields_;
  std::vector<float> features_, targets_;
  std::vector<int32_t> labels_;
  uint64_t identity_ = 0;
  std::string description_;
};

/// Mean and deviation of the training rows: two passes in double precision, in the rows' order.
void standardize(Column& column, const TableRows& rows, size_t c, const std::vector<int64_t>& train) {
  if (column.is_category || train.empty()) return;
  double sum = 0, squares = 0, least = rows.value(train.front(), c), most = least;
  for (const int64_t row : train) {
    sum += rows.value(row, c);
    least = std::min(least, rows.value(row, c));
    most = std::max(most, rows.value(row, c));
  }
  // What never changes tells nothing; it becomes 0, which a rounded mean would not give.
  if (least == most) {
    column.mean = least;
    column.deviation = 1;
    return;
  }
  column.mean = sum / static_cast<double>(train.size());
  for (const int64_t row : train) {
    const double from_mean = rows.value(row, c) - column.mean;
    squares += from_mean * from_mean;
  }
  const double deviation = std::sqrt(squares / static_cast<double>(train.size()));
  column.deviation = deviation > 0 ? deviation : 1;
  if (!std::isfinite(column.mean) || !std::isfinite(column.deviation))
    throw DataError(
        fmt::format("data.table: the numbers of column '{}' are too large", one_line(column.name)));
}

Columns columns_of(const TableRows& rows, const std::vector<int64_t>& train, bool standardizes) {
  std::vector<Column> all = rows.columns();
  for (size_t c = 0; standardizes && c < all.size(); ++c) standardize(all[c], rows, c, train);
  Columns columns{.inputs = {}, .target = std::move(all.back())};
  all.pop_back();
  columns.inputs = std::move(all);
  return columns;
}

struct Division {
  std::vector<int64_t> train, eval;
};

/// Rows that are equal are told apart by how many equal ones come before.
std::vector<bool> drawn(const TableRows& rows, const TableOptions& table) {
  std::map<uint64_t, int64_t> seen;
  std::vector<std::string> names;
  std::vector<int32_t> labels;
  const bool classifies = rows.columns()[rows.target()].is_category;
  for (int64_t row = 0; row < rows.count(); ++row) {
    const uint64_t identity = rows.identity(row);
    names.push_back(fmt::format("{} {}", to_hex(identity), seen[identity]++));
    labels.push_back(classifies ? static_cast<int32_t>(rows.value(row, rows.target())) : 0);
  }
  return draw_split(std::vector<std::string_view>(names.begin(), names.end()), labels, table.eval_fraction,
                    table.split_seed);
}

std::vector<bool> listed(const TableRows& rows, const DataOptions& options) {
  const auto numbers = read_numbers(options, options.table.eval_list, rows.numbered(), "rows");
  std::vector<bool> evaluates;
  for (int64_t row = 0; row < rows.count(); ++row)
    evaluates.push_back(numbers[static_cast<size_t>(rows.number(row))]);
  return evaluates;
}

/// `first_eval`: the first row of the files that evaluate.
Division divide(const TableRows& rows, const DataOptions& options, int64_t first_eval) {
  const TableOptions& table = options.table;
  std::vector<bool> evaluates(static_cast<size_t>(rows.count()), false);
  if (!table.eval_list.empty())
    evaluates = listed(rows, options);
  else if (table.eval_fraction > 0)
    evaluates = drawn(rows, table);
  Division division;
  for (int64_t row = 0; row < rows.count(); ++row)
    (row >= first_eval || evaluates[static_cast<size_t>(row)] ? division.eval : division.train)
        .push_back(row);
  return division;
}

std::optional<Columns> columns_of_model(const DataOptions& options) {
  const auto found = options.encodings.find(std::string(kColumnsFile));
  if (found == options.encodings.end()) return std::nullopt;
  Columns columns = columns_from_json(found->second, "the checkpoint's " + found->first);
  if (columns.target.name != options.table.target)
    throw DataError(fmt::format("data.table.target: the model predicts '{}', not '{}'",
                                one_line(columns.target.name), one_line(options.table.target)));
  return columns;
}

std::string describe(const std::vector<std::string>& paths) {
  return one_line(paths.front()) +
         (paths.size() > 1 ? fmt::format(" and {} more files", paths.size() - 1) : std::string());
}

void check(const TableOptions& table) {
  require(!table.files.empty() && !table.target.empty(),
          "data.table: expected files, and the name of the column to predict (target)");
  require(table.eval_fraction >= 0 && table.eval_fraction <= 1,
          fmt::format("data.table.eval_fraction: expected 0 to 1, found {}", table.eval_fraction));
  require(std::ranges::find(table.columns, table.target) == table.columns.end(),
          fmt::format("data.table.columns: '{}' is what is predicted", table.target));
}

}  // namespace

DatasetPair open_table_datasets(const DataOptions& options) {
  const TableOptions& table = options.table;
  check(table);
  const auto known = columns_of_model(options);
  const SplitFiles files = split_files(options, table.files, table.eval_files,
                                       options.trains || !known || table.eval_files.empty());
  TableRows rows(table, known, options);
  // Training rows say how others are read, unless the model does.
  const bool reads_train = options.trains || !known || files.eval.empty();
  if (reads_train)
    for (const auto& path : files.train) rows.read(path);
  const int64_t first_eval = rows.count();
  for (const auto& path : files.eval) rows.read(path);
  rows.finish();
  const bool evaluates = !files.eval.empty() || !table.eval_list.empty() || table.eval_fraction > 0;
  const Division division = divide(rows, options, files.eval.empty() ? rows.count() : first_eval);
  const std::string source = describe(files.train.empty() ? files.eval : files.train);
  if ((options.trains && division.train.empty()) || (evaluates && division.eval.empty()))
    throw DataError(fmt::format("{}: expected rows to {} on, found none among {}", source,
                                division.train.empty() ? "train" : "evaluate", rows.count()));
  const Columns columns = known ? *known : columns_of(rows, division.train, table.standardize);
  DatasetPair data;
  if (options.trains)
    data.train = std::make_shared<TableDataset>(rows, division.train, columns, source, rows.damaged());
  if (evaluates)
    data.eval = std::make_shared<TableDataset>(rows, division.eval, columns,
                                               files.eval.empty() ? source : describe(files.eval),
                                               // Of both parts together: it is counted once.
                                               data.train ? 0 : rows.damaged());
  return data;
}

}  // namespace lockstep::data
