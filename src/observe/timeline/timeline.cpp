#include "observe/timeline/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/index.h"
#include "base/json_number.h"
#include "lockstep/error.h"
#include "observe/timeline/read_argument.h"

namespace lockstep::observe {
namespace {

constexpr std::array<std::string_view, kSliceKinds> kKindNames = {"compute",       "kernel", "copy",
                                                                  "communication", "wait",   "phase"};

nlohmann::json to_json(const TimelineSlice& slice) {
  nlohmann::json arguments = nlohmann::json::array();
  for (const auto& [name, value] : slice.arguments)
    std::visit([&, &name = name](const auto& v) { arguments.push_back({name, v}); }, value);
  return nlohmann::json::array({slice.row, static_cast<int>(slice.kind), slice.name, slice.begin, slice.end,
                                arguments, slice.sends, slice.receives});
}

TimelineSlice slice_from(const nlohmann::json& document) {
  TimelineSlice slice{.row = demand_whole_number<int>(document.at(0)),
                      .kind = static_cast<SliceKind>(
                          std::clamp(demand_whole_number<int>(document.at(1)), 0, kSliceKinds - 1)),
                      .name = document.at(2).get<std::string>(),
                      .begin = document.at(3).get<double>(),
                      .end = document.at(4).get<double>()};
  for (const nlohmann::json& argument : document.at(5))
    read_argument(argument.at(0).get<std::string>(), argument.at(1), slice);
  slice.sends = document.at(6).get<std::vector<uint64_t>>();
  slice.receives = document.at(7).get<std::vector<uint64_t>>();
  return slice;
}

}  // namespace

std::string_view name_of(SliceKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string to_text(const RankTimeline& rank) {
  nlohmann::json document{{"rank", rank.rank},
                          {"host", rank.host},
                          {"offset", rank.clock_offset},
                          {"error", rank.clock_error},
                          {"device_error", rank.device_error},
                          {"dropped", rank.dropped_slices}};
  document["rows"] = nlohmann::json::array();
  for (const TimelineRow& row : rank.rows) document["rows"].push_back({row.id, row.name});
  document["slices"] = nlohmann::json::array();
  for (const TimelineSlice& slice : rank.slices) document["slices"].push_back(to_json(slice));
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankTimeline rank_timeline_from_text(std::string_view text) try {
  const nlohmann::json document = nlohmann::json::parse(text);
  RankTimeline rank{.rank = demand_whole_number<int>(document.at("rank")),
                    .host = document.at("host").get<std::string>()};
  rank.clock_offset = document.at("offset").get<double>();
  rank.clock_error = document.at("error").get<double>();
  rank.device_error = document.at("device_error").get<double>();
  rank.dropped_slices = demand_whole_number<int64_t>(document.at("dropped"));
  for (const nlohmann::json& row : document.at("rows"))
    rank.rows.push_back({demand_whole_number<int>(row.at(0)), row.at(1).get<std::string>()});
  for (const nlohmann::json& slice : document.at("slices")) rank.slices.push_back(slice_from(slice));
  return rank;
} catch (const nlohmann::json::exception& error) {
  throw DataError(fmt::format("a rank's part of a timeline cannot be read: {}", error.what()));
}

double first_begin(const RankTimeline& rank) {
  double first = std::numeric_limits<double>::infinity();
  for (const TimelineSlice& slice : rank.slices) first = std::min(first, slice.begin);
  return first;
}

void shift(RankTimeline& rank, double offset, double error) {
  rank.clock_offset = offset;
  rank.clock_error = error;
  for (TimelineSlice& slice : rank.slices) {
    slice.begin += offset;
    slice.end += offset;
  }
}

void nest(RankTimeline& rank) {
  // Of slices that begin together, the longest encloses the others.
  std::stable_sort(rank.slices.begin(), rank.slices.end(), [](const auto& one, const auto& other) {
    return std::tuple(one.row, one.begin, -one.end) < std::tuple(other.row, other.begin, -other.end);
  });
  std::vector<double> ends;  // of the slices that enclose the current one
  int row = 0;
  for (TimelineSlice& slice : rank.slices) {
    if (slice.row != row) ends.clear();
    row = slice.row;
    const double began = slice.begin;
    while (!ends.empty() && ends.back() < slice.end) {
      slice.begin = std::max(slice.begin, ends.back());
      ends.pop_back();
    }
    if (slice.begin > began) slice.arguments.emplace_back("started_us", began);
    ends.push_back(slice.end);
  }
}

}  // namespace lockstep::observe
