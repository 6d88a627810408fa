#include "cli/confusion_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/index.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kMostColumns = 12;
constexpr size_t kMostMistakes = 20, kMostLetters = 14;

/// As much of a name as a column has room for.
std::string cut(const std::string& name, size_t letters) {
  return name.size() <= letters ? name : name.substr(0, letters - 2) + "..";
}

std::string share_of(int64_t part, int64_t whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.1f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string whole_table(const infer::Confusion& confusion, const std::vector<std::string>& classes) {
  const int64_t count = confusion.classes;
  std::string text = fmt::format("{:>{}} ", "class", kMostLetters);
  for (const std::string& name : classes) text += fmt::format("{:>8}", cut(name, 7));
  text += "     right\n";
  for (int64_t right = 0; right < count; ++right) {
    int64_t samples = 0;
    text += fmt::format("{:>{}} ", cut(nth(classes, right), kMostLetters), kMostLetters);
    for (int64_t predicted = 0; predicted < count; ++predicted) {
      samples += confusion.count(right, predicted);
      text += fmt::format("{:>8}", confusion.count(right, predicted));
    }
    text += fmt::format("{:>10}\n", share_of(confusion.count(right, right), samples));
  }
  return text;
}

std::string worst_mistakes(const infer::Confusion& confusion, const std::vector<std::string>& classes) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> mistakes;  // how often, right, predicted
  for (int64_t right = 0; right < confusion.classes; ++right)
    for (int64_t predicted = 0; predicted < confusion.classes; ++predicted)
      if (right != predicted && confusion.count(right, predicted) > 0)
        mistakes.emplace_back(confusion.count(right, predicted), right, predicted);
  std::ranges::stable_sort(mistakes,
                           [](const auto& a, const auto& b) { return std::get<0>(a) > std::get<0>(b); });
  if (mistakes.empty()) return "";
  std::string text = "most frequent mistakes:\n";
  for (size_t i = 0; i < std::min(mistakes.size(), kMostMistakes); ++i) {
    const auto [count, right, predicted] = mistakes[i];
    text +=
        fmt::format("{:>8} times {} was taken for {}\n", count, nth(classes, right), nth(classes, predicted));
  }
  return text;
}

}  // namespace

std::string confusion_table(const infer::Confusion& confusion, const std::vector<std::string>& classes) {
  return confusion.classes <= kMostColumns
             ? "rows: the right class; columns: predicted\n" + whole_table(confusion, classes)
             : worst_mistakes(confusion, classes);
}

}  // namespace lockstep::cli
