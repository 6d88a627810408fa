#include <vector>

#include "observe/sinks/jsonl_sink.h"
#include "observe/sinks/sinks.h"

namespace lockstep::observe {
namespace {

bool has_directory(const MetricsOptions&, const RunFacts& facts) { return !facts.directory.empty(); }

std::unique_ptr<Sink> make_jsonl(const MetricsOptions&, const RunFacts& facts) {
  return std::make_unique<JsonlSink>(facts.directory + "/" + kMetricsFile, facts.resume_step);
}

}  // namespace

std::span<const SinkKind> sink_kinds() {
  // Opened in this order: later sinks may read what the first one holds.
  static const std::vector<SinkKind> kinds{
      {has_directory,
       make_jsonl,
       {.name = kMetricsFile, .essential = true, .retry = std::chrono::seconds(1)}},
  };
  return kinds;
}

}  // namespace lockstep::observe
