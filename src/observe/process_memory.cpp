#include "observe/process_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/text.h"

namespace lockstep::observe {

int64_t status_field_bytes(std::string_view status, std::string_view field) {
  for (size_t begin = 0; begin < status.size();) {
    const size_t end = std::min(status.find('\n', begin), status.size());
    const auto line = status.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(field) || !line.substr(field.size()).starts_with(':')) continue;
    const auto text = trim(line.substr(field.size() + 1));
    int64_t kibibytes = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), kibibytes);
    const bool is_size = error == std::errc() && std::string_view(rest, text.data() + text.size()) == " kB";
    return is_size ? kibibytes * 1024 : -1;
  }
  return -1;
}

int64_t process_peak_memory_bytes() {
  const int64_t peak = status_field_bytes(read_text_file("/proc/self/status"), "VmHWM");
  if (peak >= 0) return peak;
  // Some container runtimes leave the field out. This figure may include what the launcher held before exec.
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t process_memory_bytes() {
  const int64_t now = status_field_bytes(read_text_file("/proc/self/status"), "VmRSS");
  return now >= 0 ? now : 0;
}

int64_t process_private_bytes() {
  return std::max(int64_t{0}, status_field_bytes(read_text_file("/proc/self/status"), "RssAnon"));
}

}  // namespace lockstep::observe
