#include "data/lines/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "data/byte_source.h"
#include "data/file_list.h"
#include "data/tables/csv.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

std::string read_whole(const std::string& path, const TextReading& reading) {
  const auto bytes = read_all_bytes(path, reading.most_inflated);
  return {bytes.begin(), bytes.end()};
}

LabelledText text_of_file(const fs::path& file, const std::string& label, const std::string& name,
                          const TextReading& reading) {
  LabelledText text;
  text.label = label;
  text.text = read_whole(file.string(), reading);
  text.place.file = file.string();
  text.name = name;
  return text;
}

std::string problem_of(const LabelledText& text, bool may_lack_label) {
  if (text.label.empty() && !may_lack_label) return "expected a class, found an empty one";
  if (text.text.empty()) return "expected a text, found an empty one";
  for (const auto* part : {&text.label, &text.text})
    if (const auto problem = utf8_problem(*part); !problem.empty()) return "no UTF-8: " + problem;
  return "";
}

void take(LabelledText text, bool may_lack_label, TextReading& reading, DamageLog& damage,
          std::vector<LabelledText>& texts) {
  if (const auto problem = problem_of(text, may_lack_label); !problem.empty()) {
    damage.note(text.place, problem);
    reading.damaged.insert(text.name);
  } else {
    texts.push_back(std::move(text));
  }
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code problem;
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem))
    if (!entry->path().filename().string().starts_with('.')) entries.push_back(entry->path());
  if (problem)
    throw IoError(fmt::format("cannot read the folder {}: {}; check the data directory (--data-dir)",
                              one_line(folder.string()), problem.message()));
  std::ranges::sort(entries);
  return entries;
}

}  // namespace

void read_lines(const std::string& path, TextReading& reading, DamageLog& damage,
                std::vector<LabelledText>& texts) {
  const bool may_lack_labels = reading.may_lack_labels;
  const std::string all = read_whole(path, reading);
  int64_t number = 0;
  for (size_t begin = all.size() - after_byte_order_mark(all).size(); begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    std::string_view line = std::string_view(all).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const RowPlace place{path, "line", ++number, static_cast<int64_t>(begin)};
    begin = end + 1;
    if (line.empty()) continue;
    const std::string name = std::to_string(reading.numbered++);
    const size_t tab = line.find('\t');
    if (tab != std::string_view::npos) {
      take({std::string(line.substr(0, tab)), std::string(line.substr(tab + 1)), place, name},
           may_lack_labels, reading, damage, texts);
    } else if (may_lack_labels) {
      take({"", std::string(line), place, name}, may_lack_labels, reading, damage, texts);
    } else {
      damage.note(place, "expected a class, a tab and a text, found no tab");
      reading.damaged.insert(name);
    }
  }
}

void read_text_folder(const std::string& folder, TextReading& reading, DamageLog& damage,
                      std::vector<LabelledText>& texts) {
  const bool may_lack_labels = reading.may_lack_labels;
  for (const auto& label : entries_of(folder)) {
    std::error_code unknown;
    if (may_lack_labels && fs::is_regular_file(label, unknown))
      take(text_of_file(label, "", label.filename().string(), reading), may_lack_labels, reading, damage,
           texts);
    if (!fs::is_directory(label, unknown)) continue;
    const size_t before = texts.size();
    for (const auto& file : entries_of(label))
      if (fs::is_regular_file(file, unknown))
        take(text_of_file(file, label.filename().string(), (label.filename() / file.filename()).string(),
                          reading),
             false, reading, damage, texts);
    if (texts.size() == before)
      damage.note({.file = label.string()}, "expected texts of this class, found none");
  }
}

}  // namespace lockstep::data
