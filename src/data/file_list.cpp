#include "data/file_list.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/text.h"
#include "data/byte_source.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  // In the order of bytes, whatever the locale is.
  std::ranges::sort(paths);
  return paths;
}

/// A folder's name as a pattern that stands for it alone.
std::string literally(const std::string& folder) {
  std::string pattern;
  for (const char c : folder) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::vector<std::string> matches_in(const std::string& folder, const std::string& name) {
  return matches_of(path_in(literally(folder), name));
}

std::vector<std::string> expand(const DataOptions& options, const std::string& name) {
  std::error_code unknown;
  const std::string path = path_in(options.directory, name);
  if (name.find_first_of("*?[") == std::string::npos || std::filesystem::exists(path, unknown))
    return {data_file(options, name)};
  auto paths = matches_in(options.directory, name);
  if (paths.empty() && options.other_directory) paths = matches_in(*options.other_directory, name);
  if (paths.empty())
    throw IoError(fmt::format("no file matches {}; check the pattern and the data directory (--data-dir)",
                              one_line(path)));
  return paths;
}

}  // namespace

std::vector<std::string> list_files(const DataOptions& options, const std::vector<std::string>& names) {
  std::vector<std::string> files;
  for (const auto& name : names)
    for (const auto& path : expand(options, name))
      if (std::ranges::find(files, path) == files.end()) files.push_back(path);
  return files;
}

SplitFiles split_files(const DataOptions& options, const std::vector<std::string>& files,
                       const std::vector<std::string>& eval_files, bool needs_train) {
  SplitFiles split;
  try {
    split.train = list_files(options, files);
  } catch (const IoError&) {
    if (needs_train) throw;
  }
  split.eval = list_files(options, eval_files);
  std::erase_if(split.train, [&](const std::string& path) {
    return std::ranges::any_of(split.eval, [&](const std::string& other) {
      std::error_code unknown;
      return path == other || std::filesystem::equivalent(path, other, unknown);
    });
  });
  return split;
}

std::string_view after_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

std::vector<std::string> read_list(const DataOptions& options, const std::string& name) {
  const std::string text = read_text_file(data_file(options, name));
  auto lines = split(std::string(after_byte_order_mark(text)), '\n');
  std::erase(lines, "");
  return lines;
}

std::vector<bool> read_numbers(const DataOptions& options, const std::string& name, int64_t count,
                               const char* what) {
  std::vector<bool> listed(static_cast<size_t>(count), false);
  for (const auto& line : read_list(options, name)) {
    const std::string_view text = trim(line);
    int64_t number = -1;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (status != std::errc{} || end != text.data() + text.size() || number < 0 || number >= count)
      throw DataError(fmt::format("{}: expected numbers of {}, from 0 to {}, found '{}'", one_line(name),
                                  what, count - 1, one_line(std::string(text.substr(0, 60)))));
    listed[static_cast<size_t>(number)] = true;
  }
  return listed;
}

std::string one_line(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      text += fmt::format("\\x{:02x}", byte);
    else
      text.push_back(c);
  }
  return text;
}

}  // namespace lockstep::data
