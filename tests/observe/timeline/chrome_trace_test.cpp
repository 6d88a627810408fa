#include "observe/timeline/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/error.h"
#include "observe/timeline/breakdown.h"

namespace lockstep::observe {
namespace {

TimelineSlice slice(int row, SliceKind kind, const std::string& name, double begin, double end) {
  return {.row = row,
          .kind = kind,
          .name = name,
          .begin = begin,
          .end = end,
          .arguments = {},
          .sends = {},
          .receives = {}};
}

/// Two ranks; the first sends a message to the second.
Timeline two_ranks() {
  Timeline timeline{.source = "measured",
                    .layout = "pp=2",
                    .config_hash = "abc",
                    .first_step = 3,
                    .last_step = 4,
                    .notes = {"a note"},
                    .ranks = {}};
  for (int rank = 0; rank < 2; ++rank) {
    RankTimeline part{.rank = rank, .host = "host", .rows = {{1, "compute"}, {2, "forward"}}, .slices = {}};
    part.slices.push_back(slice(1, SliceKind::compute, "forward fc1", 1000 + rank, 1010 + rank));
    part.slices.push_back(slice(1, SliceKind::kernel, "fc1", 1001 + rank, 1009 + rank));
    part.slices.push_back(slice(2, SliceKind::communication, "exchange", 1010 + rank, 1020));
    part.slices.back().arguments = {
        {"bucket", int64_t{3}}, {"group", std::string("forward.0")}, {"share", 0.5}};
    (rank == 0 ? part.slices.back().sends : part.slices.back().receives) = {77};
    part.clock_offset = rank * 5;
    part.clock_error = rank * 0.5;
    timeline.ranks.push_back(part);
  }
  return timeline;
}

TEST(ChromeTrace, HasAProcessForEachRankAndAThreadForEachRow) {
  const auto json = nlohmann::json::parse(to_chrome_trace(two_ranks()));
  std::map<std::pair<int, int>, std::string> rows;
  std::set<int> processes;
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] == "process_name") processes.insert(event["pid"].get<int>());
    if (event["name"] == "thread_name") rows[{event["pid"], event["tid"]}] = event["args"]["name"];
  }
  EXPECT_EQ(processes, (std::set<int>{1000, 1001}));
  EXPECT_EQ(rows.at({1001, 3}), "forward");
  EXPECT_EQ(rows.size(), 4U);
}

TEST(ChromeTrace, CountsTimesFromTheFirstSlice) {
  const auto json = nlohmann::json::parse(to_chrome_trace(two_ranks()));
  double first = 1e9;
  for (const auto& event : json["traceEvents"])
    if (event["ph"] == "X") first = std::min(first, event["ts"].get<double>());
  EXPECT_EQ(first, 0);
}

TEST(ChromeTrace, DrawsAnArrowFromASendToItsReceive) {
  const auto json = nlohmann::json::parse(to_chrome_trace(two_ranks()));
  nlohmann::json start, finish;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "s") start = event;
    if (event["ph"] == "f") finish = event;
  }
  ASSERT_TRUE(start.is_object() && finish.is_object());
  EXPECT_EQ(start["id"], finish["id"]);
  EXPECT_EQ(start["pid"], 1000);
  EXPECT_EQ(finish["pid"], 1001);
  EXPECT_EQ(start["ts"], 10);
  EXPECT_LT(finish["ts"].get<double>(), 20) << "within the slice, or viewers find none that it belongs to";
  EXPECT_GT(finish["ts"].get<double>(), 19);
}

TEST(ChromeTrace, OfALostRankHasNoArrowWithoutAnEnd) {
  Timeline timeline = two_ranks();
  timeline.ranks.pop_back();
  EXPECT_EQ(to_chrome_trace(timeline).find("\"ph\":\"s\""), std::string::npos);
}

TEST(ChromeTrace, IsReadAsItWasWritten) {
  Timeline written = two_ranks();
  const Timeline read = timeline_from_chrome_trace(to_chrome_trace(written));
  for (RankTimeline& rank : written.ranks)
    for (TimelineSlice& each : rank.slices) {
      each.begin -= 1000, each.end -= 1000;
      each.sends.clear(), each.receives.clear();  // arrows are not read
    }
  EXPECT_EQ(read, written);
}

TEST(ChromeTrace, RefusesWhatIsNoTimeline) {
  for (const char* text : {"", "[]", "{}", "{\"otherData\": {\"format\": \"lockstep timeline\"}}",
                           "{\"otherData\": {\"format\": \"lockstep timeline\", \"version\": 99}}"})
    EXPECT_THROW(timeline_from_chrome_trace(text), DataError) << text;
}

TEST(ChromeTrace, OfManySlicesOfANanosecondStaysNested) {
  Timeline timeline{.source = "measured", .layout = {}, .config_hash = {}, .notes = {}, .ranks = {}};
  RankTimeline rank{.host = {}, .rows = {{1, "compute"}}, .slices = {}};
  for (int i = 0; i < 100; ++i)
    rank.slices.push_back(slice(1, SliceKind::compute, "x", 0.1234567 * i, 0.1234567 * (i + 1)));
  timeline.ranks.push_back(rank);
  double end = 0;
  const auto trace = nlohmann::json::parse(to_chrome_trace(timeline));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["ts"].get<double>(), end - 1e-9);
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
}

TEST(ProfilerTrace, HasAKernelAndItsLaunchForEachInstruction) {
  const Timeline timeline = two_ranks();
  const std::string text = to_profiler_trace(timeline, timeline.ranks[1]);
  EXPECT_NE(text.find("\"rank\": 1"), std::string::npos) << "with a blank: readers look for it so";
  const auto json = nlohmann::json::parse(text);
  std::set<int64_t> launched, ran;
  for (const auto& event : json["traceEvents"]) {
    const auto correlation = event["args"]["correlation"].get<int64_t>();
    (event["name"] == "cudaLaunchKernel" ? launched : ran).insert(correlation);
    if (event["cat"] == "kernel") EXPECT_TRUE(event["args"].contains("stream"));
  }
  EXPECT_EQ(ran.size(), 2U) << "kernels within instructions would count twice";
  EXPECT_EQ(launched, ran);
}

/// Of a device's times kernels are those of ops, under names that repeat from layer to layer.
TEST(ProfilerTrace, HasTheKernelsOfADevice) {
  Timeline timeline{.source = "measured", .layout = {}, .config_hash = {}, .notes = {}, .ranks = {}};
  RankTimeline rank{.host = {}, .rows = {{1, "compute"}}, .slices = {}};
  rank.slices.push_back(slice(1, SliceKind::compute, "forward fc", 0, 10));
  for (const double begin : {1, 5}) {
    rank.slices.push_back(slice(1, SliceKind::kernel, begin == 1 ? "fc1" : "fc2", begin, begin + 4));
    rank.slices.back().arguments = {{"op", std::string("linear")}, {"pass", std::string("forward")}};
  }
  rank.slices.push_back(slice(1, SliceKind::compute, "norm", 10, 12));
  rank.slices.push_back(slice(2, SliceKind::communication, "all_reduce", 2, 9));
  const auto kernels_of = [&] {
    std::vector<std::string> names;
    const auto trace = nlohmann::json::parse(to_profiler_trace(timeline, rank));
    for (const auto& event : trace["traceEvents"])
      if (event["cat"] == "kernel") names.push_back(event["name"].get<std::string>());
    return names;
  };
  EXPECT_EQ(kernels_of(), (std::vector<std::string>{"forward fc", "norm", "ncclKernel all_reduce"}));
  rank.device_error = 0.5;
  EXPECT_EQ(kernels_of(),
            (std::vector<std::string>{"linear forward", "linear forward", "norm", "ncclKernel all_reduce"}));
}

TEST(RankTimeline, SurvivesItsText) {
  const RankTimeline rank = two_ranks().ranks[1];
  EXPECT_EQ(rank_timeline_from_text(to_text(rank)), rank);
  EXPECT_THROW(rank_timeline_from_text("{}"), DataError);
}

TEST(RankTimeline, IsShiftedWithItsClock) {
  RankTimeline rank = two_ranks().ranks[0];
  shift(rank, -100, 2);
  EXPECT_EQ(rank.slices[0].begin, 900);
  EXPECT_EQ(rank.slices[0].end, 910);
  EXPECT_EQ(rank.clock_offset, -100);
  EXPECT_EQ(rank.clock_error, 2);
}

TEST(RankTimeline, NestsWhatWouldOverlap) {
  RankTimeline rank{.host = {}, .rows = {}, .slices = {}};
  rank.slices.push_back(slice(1, SliceKind::communication, "second", 2, 12));
  rank.slices.push_back(slice(1, SliceKind::communication, "first", 0, 10));
  rank.slices.push_back(slice(1, SliceKind::communication, "within", 3, 9));
  rank.slices.push_back(slice(2, SliceKind::communication, "other row", 1, 11));
  nest(rank);
  std::map<std::string, std::pair<double, double>> times;
  for (const auto& each : rank.slices) times[each.name] = {each.begin, each.end};
  EXPECT_EQ(times["first"], std::pair(0.0, 10.0));
  EXPECT_EQ(times["second"], std::pair(10.0, 12.0));
  EXPECT_EQ(times["within"], std::pair(3.0, 9.0));
  EXPECT_EQ(times["other row"], std::pair(1.0, 11.0));
}

TEST(Breakdown, AddsUp) {
  RankTimeline rank{.host = {}, .rows = {}, .slices = {}};
  rank.slices.push_back(slice(1, SliceKind::compute, "a", 10, 20));
  rank.slices.push_back(slice(1, SliceKind::kernel, "within a", 11, 19));
  rank.slices.push_back(slice(2, SliceKind::communication, "b", 15, 40));
  rank.slices.push_back(slice(1, SliceKind::compute, "c", 50, 60));
  rank.slices.push_back(slice(0, SliceKind::phase, "step", 0, 100));
  const TemporalBreakdown parts = break_down(rank);
  EXPECT_EQ(parts.total, 50);
  EXPECT_EQ(parts.compute, 20);
  EXPECT_EQ(parts.communication, 20);
  EXPECT_EQ(parts.idle, 10);
}

TEST(Breakdown, OfNothingIsNothing) {
  EXPECT_EQ(break_down({.host = {}, .rows = {}, .slices = {}}).total, 0);
}

}  // namespace
}  // namespace lockstep::observe
