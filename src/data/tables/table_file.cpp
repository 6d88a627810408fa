#include "data/tables/table_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "data/byte_source.h"
#include "data/file_list.h"
#include "data/tables/csv.h"
#include "data/tables/npy.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::optional<double> number_in(std::string_view text) {
  const std::string_view cell = trim(text);
  const std::string_view digits = cell.starts_with('+') ? cell.substr(1) : cell;
  double value = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (status != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> finite(std::optional<double> value) {
  return value && std::isfinite(*value) ? value : std::nullopt;
}

class CsvTableRow : public TableRow {
 public:
  CsvTableRow(const CsvRow& row, const std::string& path, size_t width)
      : row_(row), path_(path), width_(width) {}
  bool is_empty(size_t column) const override { return row_.cells[column].empty(); }
  std::string text(size_t column) const override { return row_.cells[column]; }
  std::optional<double> number(size_t column) const override { return finite(number_in(row_.cells[column])); }
  bool is_number(size_t column) const override { return number_in(row_.cells[column]).has_value(); }
  RowPlace place() const override { return {path_, "line", row_.line, row_.byte}; }
  std::string problem() const override {
    if (!row_.problem.empty() || row_.cells.size() == width_) return row_.problem;
    return fmt::format("expected {} cells, as the first line has, found {}", width_, row_.cells.size());
  }

 private:
  const CsvRow& row_;
  const std::string& path_;
  size_t width_;
};

class NpyTableRow : public TableRow {
 public:
  NpyTableRow(const NpyArray& array, const std::string& path, int64_t row)
      : array_(array), path_(path), row_(row) {}
  bool is_empty(size_t column) const override { return is_text(column) && text(column).empty(); }
  std::string text(size_t column) const override {
    return is_text(column) ? array_.text(row_, static_cast<int64_t>(column))
                           : array_.number_text(row_, static_cast<int64_t>(column));
  }
  std::optional<double> number(size_t column) const override {
    return finite(is_text(column) ? number_in(text(column)) : value(column));
  }
  bool is_number(size_t column) const override {
    return !is_text(column) || number_in(text(column)).has_value();
  }
  RowPlace place() const override { return {path_, "row", row_, array_.byte_of(row_)}; }
  std::string problem() const override {
    for (int64_t column = 0; column < array_.columns(); ++column) {
      if (!array_.is_text(column)) continue;
      if (const auto problem = utf8_problem(array_.text(row_, column)); !problem.empty())
        return fmt::format("column '{}' is no UTF-8: {}", one_line(array_.column_name(column)), problem);
    }
    return "";
  }

 private:
  bool is_text(size_t column) const { return array_.is_text(static_cast<int64_t>(column)); }
  double value(size_t column) const { return array_.value(row_, static_cast<int64_t>(column)); }
  const NpyArray& array_;
  const std::string& path_;
  int64_t row_;
};

TableFormat format_of(const std::string& path, TableFormat stated) {
  if (stated != TableFormat::automatic) return stated;
  const std::string name = path.ends_with(".gz") ? path.substr(0, path.size() - 3) : path;
  if (name.ends_with(".csv")) return TableFormat::csv;
  if (name.ends_with(".tsv")) return TableFormat::tsv;
  if (name.ends_with(".npy")) return TableFormat::npy;
  throw DataError(
      fmt::format("{}: expected a name that ends with .csv, .tsv or .npy; otherwise set "
                  "data.table.format",
                  one_line(path)));
}

void require_different(const std::vector<std::string>& names, const std::string& path) {
  auto sorted = names;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
    throw DataError(fmt::format("{}: expected columns of different names, found '{}' twice", one_line(path),
                                one_line(*twice)));
}

}  // namespace

void read_table(const std::string& path, TableFormat format,
                const std::function<void(const std::vector<std::string>& names)>& begin,
                const std::function<void(const TableRow& row)>& take, int64_t most_inflated) {
  const TableFormat actual = format_of(path, format);
  const std::vector<uint8_t> bytes = read_all_bytes(path, most_inflated);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (actual == TableFormat::npy) {
    const NpyArray array(text, one_line(path));
    std::vector<std::string> names;
    for (int64_t column = 0; column < array.columns(); ++column) names.push_back(array.column_name(column));
    require_different(names, path);
    begin(names);
    for (int64_t row = 0; row < array.rows(); ++row) take(NpyTableRow(array, path, row));
    return;
  }
  CsvReader reader(text, actual == TableFormat::csv ? ',' : '\t');
  CsvRow row;
  if (!reader.next(row))
    throw DataError(
        fmt::format("{}: expected a line with the names of the columns, found none", one_line(path)));
  if (!row.problem.empty())
    throw DataError(
        fmt::format("{}: line {} (byte {}): {}", one_line(path), row.line, row.byte, row.problem));
  const std::vector<std::string> names = row.cells;
  require_different(names, path);
  begin(names);
  while (reader.next(row)) take(CsvTableRow(row, path, names.size()));
}

}  // namespace lockstep::data
