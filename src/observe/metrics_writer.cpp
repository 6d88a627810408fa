#include "observe/metrics_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/ensure.h"
#include "base/file_size_limit.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "observe/json_text.h"

namespace lockstep::observe {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  const std::string advice = error == ENOSPC || error == EDQUOT ? "; free some space, then resume"
                             : error == EFBIG                   ? "; " + file_size_advice()
                                                                : "";
  throw IoError(fmt::format("cannot {} {}: {}{}", what, path, std::strerror(error), advice));
}

/// Readers that tell integers from other numbers find one kind of them in all lines.
std::string number_text(double value, bool is_whole) {
  const std::string text = json_number(value);
  return is_whole || !std::isfinite(value) || text.find_first_of(".e") != std::string::npos ? text
                                                                                            : text + ".0";
}

/// 0, or the error that stopped it.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int sync_file(int file) {
  if (::fsync(file) == 0) return 0;
  // A pipe or a device holds nothing back that could be lost.
  return errno == EINVAL || errno == EROFS ? 0 : errno;
}

void replace_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("open", temporary, errno);
  int error = write_all(file, text);
  if (!error) error = sync_file(file);
  if (::close(file) != 0 && !error) error = errno;
  if (!error && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error) {
    ::unlink(temporary.c_str());
    fail("write", temporary, error);
  }
  // The name is on the disk only once its folder is.
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("open the folder of", path, errno);
  error = sync_file(folder);
  ::close(folder);
  if (error) fail("sync the folder of", path, error);
}

/// The lines of `text` up to `resume_step`, byte for byte.
std::string lines_until(const std::string& text, int64_t resume_step, MetricsWriter::Dropped& dropped) {
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      ++dropped.damaged;
      break;
    }
    const auto line = std::string_view(text).substr(begin, end + 1 - begin);
    try {
      if (parse_metrics_line(line.substr(0, line.size() - 1), "").step() <= resume_step) {
        kept += line;
      } else {
        ++dropped.later;
      }
    } catch (const DataError&) {
      // A crash of the machine can damage more than the last line. Metrics are not worth refusing to resume
      // for.
      ++dropped.damaged;
    }
    begin = end + 1;
  }
  return kept;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, std::optional<int64_t> resume_step) : path_(path) {
  std::error_code unknown;  // opening says what is wrong
  if (resume_step && std::filesystem::exists(path, unknown)) {
    const std::string text = read_text_file(path);
    const std::string kept = lines_until(text, *resume_step, dropped_);
    if (kept.size() != text.size()) replace_file(path, kept);
    size_bytes_ = static_cast<int64_t>(kept.size());
  }
  const int keep = resume_step ? 0 : O_TRUNC;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | keep, 0666);
  if (file_ < 0) fail("open", path_, errno);
}

MetricsWriter::~MetricsWriter() {
  if (file_ >= 0) ::close(file_);
}

void MetricsWriter::write(int64_t step, const std::vector<NamedMetric>& metrics) {
  ensure(file_ >= 0, "metrics are written after finish()");
  std::string line = fmt::format("{{\"step\":{}", step);
  for (auto metric = metrics.begin(); metric != metrics.end(); ++metric) {
    const bool twice =
        std::any_of(metrics.begin(), metric, [&](const NamedMetric& m) { return m.name == metric->name; });
    if (twice || metric->name == "step") ensure(false, "two metrics of one line are named " + metric->name);
    const double* number = std::get_if<double>(&metric->value);
    line += fmt::format(
        ",{}:{}", json_string(metric->name),
        number ? number_text(*number, metric->is_whole) : json_string(std::get<std::string>(metric->value)));
  }
  line += "}\n";
  if (waiting_bytes_ + line.size() <= kMostWaitingBytes) {
    waiting_bytes_ += line.size();
    waiting_.push_back(std::move(line));
  } else {
    ++lost_lines_;
  }
  write_waiting();
}

void MetricsWriter::write_waiting() {
  while (!waiting_.empty()) {
    const std::string& line = waiting_.front();
    if (const int error = write_all(file_, line)) {
      // A part of a line would spoil the next one. Where even this fails, resuming drops it.
      [[maybe_unused]] const int cut = ::ftruncate(file_, size_bytes_);
      fail("write", path_, error);
    }
    size_bytes_ += static_cast<int64_t>(line.size());
    waiting_bytes_ -= line.size();
    waiting_.pop_front();
  }
}

void MetricsWriter::sync() {
  ensure(file_ >= 0, "metrics are synced after finish()");
  write_waiting();
  if (const int error = sync_file(file_)) fail("write", path_, error);
}

void MetricsWriter::finish() {
  sync();
  if (::close(std::exchange(file_, -1)) != 0) fail("close", path_, errno);
  if (lost_lines_ > 0)
    throw IoError(
        fmt::format("{}: {} lines are missing: more waited for room than are kept", path_, lost_lines_));
}

}  // namespace lockstep::observe
