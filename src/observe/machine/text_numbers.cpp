#include "observe/machine/text_numbers.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/text.h"

namespace lockstep::observe {

std::string text_if_there(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string_view> words;
  for (size_t begin = line.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

std::optional<double> number_in(std::string_view word) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number) : std::nullopt;
}

std::optional<double> number_after(std::string_view text, std::string_view name) {
  for (const std::string_view line : split(text, '\n')) {
    const auto words = words_of(line);
    if (words.size() >= 2 && words[0] == name) return number_in(words[1]);
  }
  return std::nullopt;
}

}  // namespace lockstep::observe
