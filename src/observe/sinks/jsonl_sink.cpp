#include "observe/sinks/jsonl_sink.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/text.h"
#include "lockstep/error.h"
#include "observe/sinks/record_line.h"

namespace lockstep::observe {
namespace {

/// The lines of `text` up to `resume_step`, byte for byte.
std::string lines_until(const std::string& text, int64_t resume_step, JsonlSink::Dropped& dropped) {
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

void JsonlSink::open() {
  std::error_code unknown;  // opening says what is wrong
  if (resume_step_ && std::filesystem::exists(path_, unknown)) {
    const std::string text = read_text_file(path_);
    const std::string kept = lines_until(text, *resume_step_, dropped_);
    if (kept.size() != text.size()) replace_file(path_, kept);
    if (dropped_.later + dropped_.damaged > 0)
      message_ = fmt::format("{}: dropped {} lines of steps after step {} and {} damaged ones",
                             std::filesystem::path(path_).filename().string(), dropped_.later, *resume_step_,
                             dropped_.damaged);
  }
  file_.open(path_, resume_step_ ? AppendFile::Start::keep : AppendFile::Start::anew);
}

size_t JsonlSink::write(std::span<const RecordPtr> records) {
  if (records.front()->histograms.empty()) file_.append(record_line(*records.front()));
  return 1;
}

}  // namespace lockstep::observe
