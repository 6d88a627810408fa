#include "observe/timeline/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/error.h"
#include "observe/timeline/read_argument.h"

namespace lockstep::observe {
namespace {

// Keeps the order in which keys are added: people look into these files.
using TraceJson = nlohmann::ordered_json;

constexpr int kFormatVersion = 2;

/// Perfetto takes a row 0 of a process other than 0, and a row with its process's number, for its main
/// thread.
constexpr int kFirstProcess = 1000, kFirstRow = 1;
int process_of(int rank) { return kFirstProcess + rank; }
int thread_of(int row) { return kFirstRow + row; }

/// Holistic Trace Analysis stores rows' numbers in the type of the largest correlation.
constexpr int64_t kFirstCorrelation = 1 << 20;

constexpr double kNanosecond = 1e-3;

/// To nanoseconds.
double rounded(double microseconds) { return std::round(microseconds * 1e3) / 1e3; }

/// Slices that nest do so when they are rounded, too.
double duration(const TimelineSlice& slice) { return rounded(rounded(slice.end) - rounded(slice.begin)); }

TraceJson arguments_of(const TimelineSlice& slice) {
  TraceJson arguments = TraceJson::object();
  for (const auto& [name, value] : slice.arguments)
    std::visit([&, &name = name](const auto& v) { arguments[name] = v; }, value);
  return arguments;
}

TraceJson metadata(const char* what, int rank, std::optional<int> row, const char* key,
                   const TraceJson& value) {
  TraceJson event{{"ph", "M"}, {"name", what}, {"pid", process_of(rank)}};
  if (row) event["tid"] = thread_of(*row);
  event["args"] = {{key, value}};
  return event;
}

/// Names of hosts may be any bytes.
std::string dumped(const TraceJson& json, int indent) {
  return json.dump(indent, ' ', false, TraceJson::error_handler_t::replace);
}

/// One event a line, so that files can be searched by line.
class Events {
 public:
  void add(const TraceJson& event) {
    text_ += text_.empty() ? "" : ",\n";
    text_ += dumped(event, -1);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

TraceJson other_data(const Timeline& timeline) {
  TraceJson data{{"format", "lockstep timeline"},       {"version", kFormatVersion},
                 {"source", timeline.source},           {"layout", timeline.layout},
                 {"config_hash", timeline.config_hash}, {"first_step", timeline.first_step},
                 {"last_step", timeline.last_step},     {"notes", timeline.notes},
                 {"ranks", TraceJson::array()}};
  for (const RankTimeline& rank : timeline.ranks)
    data["ranks"].push_back({{"rank", rank.rank},
                             {"host", rank.host},
                             {"clock_offset_us", rank.clock_offset},
                             {"clock_error_us", rank.clock_error},
                             {"device_clock_error_us", rank.device_error},
                             {"dropped_slices", rank.dropped_slices}});
  return data;
}

SliceKind kind_named(const std::string& name) {
  for (int kind = 0; kind < kSliceKinds; ++kind)
    if (name_of(static_cast<SliceKind>(kind)) == name) return static_cast<SliceKind>(kind);
  throw DataError(
      fmt::format("the timeline has a slice of category '{}', which lockstep does not write", name));
}

void read_facts(const TraceJson& data, Timeline& timeline) {
  timeline.source = data.at("source").get<std::string>();
  timeline.layout = data.at("layout").get<std::string>();
  timeline.config_hash = data.at("config_hash").get<std::string>();
  timeline.first_step = data.at("first_step").get<int64_t>();
  timeline.last_step = data.at("last_step").get<int64_t>();
  timeline.notes = data.at("notes").get<std::vector<std::string>>();
  for (const TraceJson& rank : data.at("ranks")) {
    timeline.ranks.push_back(
        {.rank = rank.at("rank").get<int>(), .host = rank.at("host").get<std::string>()});
    timeline.ranks.back().clock_offset = rank.at("clock_offset_us").get<double>();
    timeline.ranks.back().clock_error = rank.at("clock_error_us").get<double>();
    timeline.ranks.back().device_error = rank.at("device_clock_error_us").get<double>();
    timeline.ranks.back().dropped_slices = rank.at("dropped_slices").get<int64_t>();
  }
}

void read_event(const TraceJson& event, std::map<int, RankTimeline*>& ranks) {
  const auto phase = event.at("ph").get<std::string>();
  const bool names_row = phase == "M" && event.at("name") == "thread_name";
  if (phase != "X" && !names_row) return;
  const auto found = ranks.find(event.at("pid").get<int>() - kFirstProcess);
  if (found == ranks.end()) throw DataError("the timeline has events of a rank that otherData does not list");
  RankTimeline& rank = *found->second;
  if (names_row) {
    rank.rows.push_back(
        {event.at("tid").get<int>() - kFirstRow, event.at("args").at("name").get<std::string>()});
    return;
  }
  TimelineSlice slice{.row = event.at("tid").get<int>() - kFirstRow,
                      .kind = kind_named(event.at("cat").get<std::string>()),
                      .name = event.at("name").get<std::string>(),
                      .begin = event.at("ts").get<double>()};
  slice.end = slice.begin + event.at("dur").get<double>();
  for (const auto& [name, value] : event.at("args").items()) read_argument(name, value, slice);
  rank.slices.push_back(std::move(slice));
}

std::string text_argument(const TimelineSlice& slice, std::string_view name) {
  for (const auto& [of, value] : slice.arguments)
    if (of == name && std::holds_alternative<std::string>(value)) return std::get<std::string>(value);
  return "";
}

/// How Holistic Trace Analysis tells kinds of kernels apart. It adds up kernels of one name.
std::string profiler_name(const TimelineSlice& slice) {
  switch (slice.kind) {
    case SliceKind::kernel:
      return text_argument(slice, "op") + " " + text_argument(slice, "pass");
    case SliceKind::communication:
      return "ncclKernel " + slice.name;
    case SliceKind::copy:
      return "Memcpy " + slice.name;
    default:
      return slice.name;
  }
}

/// What Holistic Trace Analysis takes for kernels: those of a device, and instructions without any. Of times
/// that the host took, instructions, whose kernels follow each other without a gap that the host would tell.
std::vector<bool> kernels_for_profiler(const RankTimeline& rank) {
  const bool by_device = rank.device_error > 0;
  std::vector<bool> chosen;
  for (size_t i = 0; i < rank.slices.size(); ++i) {
    const TimelineSlice& slice = rank.slices[i];
    // Slices are sorted: what an instruction encloses follows it.
    const TimelineSlice* next = i + 1 < rank.slices.size() ? &rank.slices[i + 1] : nullptr;
    const bool encloses = next != nullptr && next->row == slice.row && next->kind == SliceKind::kernel &&
                          next->begin < slice.end;
    const bool is_instruction = slice.kind == SliceKind::compute || slice.kind == SliceKind::copy ||
                                slice.kind == SliceKind::communication;
    chosen.push_back(slice.kind == SliceKind::kernel ? by_device
                                                     : is_instruction && !(by_device && encloses));
  }
  return chosen;
}

}  // namespace

ChromeTraceWriter::ChromeTraceWriter(const Timeline& head, double first,
                                     std::function<void(std::string_view)> write)
    : first_(first), write_(std::move(write)) {
  write_(fmt::format("{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {},\n\"traceEvents\": [\n",
                     dumped(other_data(head), 1)));
}

/// One event a line, so that files can be searched by line.
void ChromeTraceWriter::add_event(const std::string& text) {
  write_(std::exchange(has_events_, true) ? ",\n" + text : text);
}

void ChromeTraceWriter::add(RankTimeline rank) {
  for (TimelineSlice& slice : rank.slices) {
    slice.begin -= first_;
    slice.end -= first_;
  }
  nest(rank);
  add_event(dumped(metadata("process_name", rank.rank, {}, "name",
                            fmt::format("rank {}{}", rank.rank, rank.host.empty() ? "" : " on " + rank.host)),
                   -1));
  add_event(dumped(metadata("process_sort_index", rank.rank, {}, "sort_index", rank.rank), -1));
  for (const TimelineRow& row : rank.rows) {
    add_event(dumped(metadata("thread_name", rank.rank, row.id, "name", row.name), -1));
    add_event(dumped(metadata("thread_sort_index", rank.rank, row.id, "sort_index", row.id), -1));
  }
  for (const TimelineSlice& slice : rank.slices) {
    add_event(dumped({{"ph", "X"},
                      {"name", slice.name},
                      {"cat", name_of(slice.kind)},
                      {"pid", process_of(rank.rank)},
                      {"tid", thread_of(slice.row)},
                      {"ts", rounded(slice.begin)},
                      {"dur", duration(slice)},
                      {"args", arguments_of(slice)}},
                     -1));
    const End end{rank.rank, slice.row, slice.begin, slice.end};
    for (const uint64_t message : slice.sends) sent_[message] = end;
    for (const uint64_t message : slice.receives) received_.emplace_back(message, end);
  }
}

void ChromeTraceWriter::add_arrow(uint64_t message, const End& from, const End& to) {
  const std::string id = fmt::format("{:x}", message);
  add_event(dumped({{"ph", "s"},
                    {"name", "message"},
                    {"cat", "message"},
                    {"id", id},
                    {"pid", process_of(from.rank)},
                    {"tid", thread_of(from.row)},
                    {"ts", rounded(from.begin)}},
                   -1));
  add_event(dumped({{"ph", "f"},
                    {"bp", "e"},
                    {"name", "message"},
                    {"cat", "message"},
                    {"id", id},
                    {"pid", process_of(to.rank)},
                    {"tid", thread_of(to.row)},
                    {"ts", rounded(std::max(to.begin, to.end - kNanosecond))}},
                   -1));
}

void ChromeTraceWriter::finish() {
  // Of messages both ends of which are in the file. The number of a message repeats in no other.
  for (const auto& [message, end] : received_)
    if (const auto from = sent_.find(message); from != sent_.end()) add_arrow(message, from->second, end);
  write_("\n]}\n");
}

std::string to_chrome_trace(Timeline timeline) {
  double first = std::numeric_limits<double>::infinity();
  for (const RankTimeline& rank : timeline.ranks) first = std::min(first, first_begin(rank));
  std::string text;
  ChromeTraceWriter writer(timeline, first, [&](std::string_view piece) { text += piece; });
  for (RankTimeline& rank : timeline.ranks) writer.add(std::move(rank));
  writer.finish();
  return text;
}

Timeline timeline_from_chrome_trace(std::string_view text) try {
  const TraceJson json = TraceJson::parse(text);
  if (!json.is_object() || !json.contains("otherData") || !json["otherData"].contains("format") ||
      json["otherData"]["format"] != "lockstep timeline")
    throw DataError("this is no timeline of lockstep; name a file that train --timeline has written");
  const TraceJson& data = json["otherData"];
  if (data.at("version") != kFormatVersion)
    throw DataError(fmt::format("the timeline has version {}; this lockstep reads version {}",
                                data.at("version").dump(), kFormatVersion));
  Timeline timeline;
  read_facts(data, timeline);
  std::map<int, RankTimeline*> ranks;
  for (RankTimeline& rank : timeline.ranks) ranks[rank.rank] = &rank;
  for (const TraceJson& event : json.at("traceEvents")) read_event(event, ranks);
  return timeline;
} catch (const TraceJson::exception& error) {
  throw DataError(fmt::format("the timeline cannot be read: {}", error.what()));
}

std::string to_profiler_trace(const Timeline& timeline, const RankTimeline& rank) {
  // It looks for `"rank": ` with a blank, and takes all files for rank 0's without it.
  const std::string head = fmt::format(
      "{{\"schemaVersion\": 1,\n\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, "
      "\"world_size\": {}}},\n",
      rank.rank, timeline.ranks.size());
  Events events;
  int64_t correlation = kFirstCorrelation;
  const std::vector<bool> chosen = kernels_for_profiler(rank);
  for (size_t i = 0; i < rank.slices.size(); ++i) {
    if (!chosen[i]) continue;
    const TimelineSlice& slice = rank.slices[i];
    ++correlation;
    events.add({{"ph", "X"},
                {"cat", "cuda_runtime"},
                {"name", "cudaLaunchKernel"},
                {"pid", 1000000},
                {"tid", slice.row},
                {"ts", rounded(slice.begin)},
                {"dur", 0},
                {"args", {{"correlation", correlation}}}});
    TraceJson arguments = arguments_of(slice);
    arguments["stream"] = slice.row;
    arguments["correlation"] = correlation;
    arguments["device"] = rank.rank;
    events.add({{"ph", "X"},
                {"cat", "kernel"},
                {"name", profiler_name(slice)},
                {"pid", rank.rank},
                {"tid", slice.row},
                {"ts", rounded(slice.begin)},
                {"dur", duration(slice)},
                {"args", std::move(arguments)}});
  }
  return head + "\"traceEvents\": [\n" + events.take() + "\n]}\n";
}

}  // namespace lockstep::observe
