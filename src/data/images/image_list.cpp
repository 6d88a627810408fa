#include "data/images/image_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "data/byte_source.h"
#include "data/file_list.h"
#include "data/images/image_file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

bool has_image_ending(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

[[noreturn]] void refuse_folder(const fs::path& folder, const std::error_code& error) {
  throw IoError(fmt::format("cannot read the folder {}: {}", one_line(folder.string()), error.message()));
}

void list_class(const fs::path& folder, const std::string& label, std::vector<ListedImage>& images) {
  std::error_code error;
  auto entry =
      fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
      continue;
    }
    std::error_code unknown;
    if (entry->is_directory(unknown) || !has_image_ending(entry->path())) continue;
    const std::string path = entry->path().string();
    images.push_back(
        {.path = path, .name = label + path.substr(folder.string().size()), .label = label, .place = ""});
  }
  if (error) refuse_folder(folder, error);
}

/// A class that is a number from 0 on, or -1.
int64_t as_number(const std::string& label) {
  int64_t number = -1;
  const auto [end, status] = std::from_chars(label.data(), label.data() + label.size(), number);
  return status == std::errc{} && end == label.data() + label.size() && number >= 0 && number < INT32_MAX
             ? number
             : -1;
}

bool states_numbers(const std::vector<const ImageList*>& lists) {
  return std::ranges::all_of(lists, [](const ImageList* list) {
    return !list->is_folder && std::ranges::all_of(list->images, [](const auto& image) {
      return image.label.empty() || as_number(image.label) >= 0;
    });
  });
}

}  // namespace

ImageList list_folder(const std::string& folder, bool may_lack_labels) {
  ImageList list{.source = folder, .images = {}, .classes = {}, .is_folder = true};
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code unknown;
    const std::string name = entry->path().filename().string();
    if (is_hidden(entry->path())) continue;
    if (entry->is_directory(unknown))
      list.classes.push_back(name);
    else if (may_lack_labels && has_image_ending(entry->path()))
      list.images.push_back({.path = entry->path().string(), .name = name, .label = "", .place = ""});
  }
  if (error) refuse_folder(folder, error);
  if (list.classes.empty() && list.images.empty())
    throw DataError(fmt::format("{}: expected {}, found none", one_line(folder),
                                may_lack_labels ? "images" : "a folder for each class"));
  std::ranges::sort(list.classes);
  for (const auto& label : list.classes) list_class(fs::path(folder) / label, label, list.images);
  std::ranges::sort(list.images, {}, &ListedImage::name);
  return list;
}

ImageList list_file(const std::string& file, const std::string& root, bool may_lack_labels,
                    int64_t most_inflated) {
  ImageList list{.source = file, .images = {}, .classes = {}, .is_folder = false};
  const auto bytes = read_all_bytes(file, most_inflated);
  const std::string_view text =
      after_byte_order_mark({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const size_t tab = line.rfind('\t');
    const size_t gap = may_lack_labels && has_image_ending(std::string(line)) ? line.size()
                       : tab != std::string_view::npos                        ? tab
                                                                              : line.rfind(' ');
    const std::string place = fmt::format("{}:{}", one_line(file), number);
    if (gap == std::string_view::npos)
      throw DataError(fmt::format("{}: expected a path, a tab and a class, found '{}'", place,
                                  one_line(std::string(line.substr(0, 200)))));
    const std::string name(trim(line.substr(0, gap)));
    list.images.push_back({.path = path_in(root, name),
                           .name = name,
                           .label = std::string(trim(line.substr(std::min(gap + 1, line.size())))),
                           .place = place});
  }
  if (list.images.empty())
    throw DataError(fmt::format("{}: expected a list of images, found none", one_line(file)));
  return list;
}

ImageClasses classes_of(const std::vector<std::string>& stated, const std::vector<const ImageList*>& lists) {
  ImageClasses classes{.names = stated, .count = static_cast<int64_t>(stated.size())};
  if (stated.empty() && states_numbers(lists)) {
    for (const auto* list : lists)
      for (const auto& image : list->images)
        classes.count = std::max(classes.count, as_number(image.label) + 1);
    return classes;
  }
  if (stated.empty()) {
    const ImageList& first = *lists.front();
    std::set<std::string> names(first.classes.begin(), first.classes.end());
    for (const auto& image : first.images)
      if (!image.label.empty()) names.insert(image.label);
    classes.names.assign(names.begin(), names.end());
    classes.count = static_cast<int64_t>(names.size());
  }
  return classes;
}

std::vector<int32_t> labels_of(const ImageList& list, const ImageClasses& classes, bool may_lack_labels) {
  std::vector<int32_t> labels;
  labels.reserve(list.images.size());
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (size_t i = 0; i < classes.names.size(); ++i)
    sorted.emplace_back(classes.names[i], static_cast<int32_t>(i));
  std::ranges::sort(sorted);
  for (const auto& image : list.images) {
    if (classes.names.empty()) {
      labels.push_back(static_cast<int32_t>(as_number(image.label)));
      continue;
    }
    const auto found = std::ranges::lower_bound(sorted, std::string_view(image.label), {},
                                                &std::pair<std::string_view, int32_t>::first);
    if (found == sorted.end() || found->first != image.label) {
      if (may_lack_labels && (list.is_folder || image.label.empty())) {
        labels.push_back(-1);
        continue;
      }
      throw DataError(fmt::format(
          "{}: class '{}' is not one of the {} classes {}; correct it, or name all in data.images.classes",
          image.place.empty() ? one_line(image.path) : image.place, one_line(image.label), classes.count,
          fmt::format("'{}' to '{}'", one_line(classes.names.front()), one_line(classes.names.back()))));
    }
    labels.push_back(found->second);
  }
  return labels;
}

}  // namespace lockstep::data
