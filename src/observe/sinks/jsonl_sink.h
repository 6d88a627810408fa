#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "observe/sinks/append_file.h"
#include "observe/sinks/sink.h"

namespace lockstep::observe {

/// metrics.jsonl: one JSON object per line, "step" first. Each line is one write to the file, so readers see
/// it at once, and a crash of the process loses nothing. Numbers have the shortest digits that read back as
/// the same bits. Every failure throws IoError, which names the path; the file then ends with a whole line.
class JsonlSink : public Sink {
 public:
  /// The lines that resuming dropped.
  struct Dropped {
    int64_t later = 0;    ///< lines of steps after the one resumed from: they will be written again
    int64_t damaged = 0;  ///< lines that cannot be read, such as a torn last one
  };

  /// Without `resume_step` the file begins anew. With it, open() drops lines of later steps and damaged lines
  /// first. The new file replaces the old one as a whole, so a crash leaves one of the two.
  explicit JsonlSink(std::string path, std::optional<int64_t> resume_step = std::nullopt)
      : path_(std::move(path)), resume_step_(resume_step) {}

  void open() override;
  size_t write(std::span<const RecordPtr> records) override;
  void sync() override { file_.sync(); }
  void close(RunEnd, const std::string&) override { file_.close(); }
  std::string take_message() override { return std::exchange(message_, {}); }

  const Dropped& dropped() const { return dropped_; }

 private:
  std::string path_, message_;
  std::optional<int64_t> resume_step_;
  AppendFile file_;
  Dropped dropped_;
};

}  // namespace lockstep::observe
