#include <fmt/format.h>

#include <map>
#include <utility>

#include "charts/html_page.h"
#include "report/section_parts.h"

namespace lockstep::report {
namespace {

const std::vector<std::pair<std::string, std::string>>& time_parts() {
  static const std::vector<std::pair<std::string, std::string>> parts = {
      {"compute", "computing"},
      {"communication", "communication that nothing hid"},
      {"slower_ranks", "waiting for slower ranks"},
      {"bubble", "pipeline bubble"},
      {"data", "waiting for data"},
      {"host", "launches and host"},
      {"evaluation", "evaluation"},
      {"checkpoints", "checkpoints"},
      {"start", "start and end"}};
  return parts;
}

struct TimeBars {
  std::vector<charts::ChartBar> bars;
  std::vector<Cells> rows;

  void add(const std::string& name, const Json& rank) {
    const double wall = number_of(rank, "wall_ms").value_or(0);
    if (wall <= 0 || !rank.contains("parts_ms")) return;
    charts::ChartBar bar{name, {}};
    Cells row{name, duration_text(wall)};
    for (const auto& [part, title] : time_parts()) {
      double ms = number_of(rank["parts_ms"], part).value_or(0);
      if (part == "start") ms += number_of(rank["parts_ms"], "end").value_or(0);
      bar.parts.push_back(100 * ms / wall);
      row.push_back(fmt::format("{:.1f} %", bar.parts.back()));
    }
    const auto light = number_of(rank, "speed_of_light"), mfu = number_of(rank, "mfu");
    row.push_back(light ? fmt::format("{:.0f} %", 100 * *light) : "");
    row.push_back(mfu ? fmt::format("{:.0f} %", 100 * *mfu) : "");
    bars.push_back(std::move(bar));
    rows.push_back(std::move(row));
  }
};

/// What computing consists of, of the mean rank of each run.
std::string computing_table(const Runs& runs) {
  std::map<std::string, Cells> by_kind;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Json& mean = runs[i].explanation.is_object() ? runs[i].explanation.value("mean", Json()) : Json();
    if (!mean.is_object() || !mean.contains("computing_ms")) continue;
    const double wall = number_of(mean, "wall_ms").value_or(0);
    for (const auto& [kind, ms] : mean["computing_ms"].items()) {
      if (!ms.is_number() || wall <= 0) continue;
      Cells& row = by_kind.try_emplace(kind, runs.size()).first->second;
      row[i] = fmt::format("{}, {:.1f} %", duration_text(ms.get<double>()), 100 * ms.get<double>() / wall);
    }
  }
  std::vector<Cells> rows;
  for (const auto& [kind, cells] : by_kind) {
    rows.push_back({kind});
    rows.back().insert(rows.back().end(), cells.begin(), cells.end());
  }
  if (rows.empty()) return "";
  return "<details><summary>What computing consists of</summary>\n" +
         charts::html_table(head_of(runs, "kind"), rows, 1 + runs.size()) + "</details>\n";
}

}  // namespace

namespace {

/// Of all runs, the most expensive of each first.
std::string advice_text(const Runs& runs) {
  std::vector<Cells> rows;
  for (const RunFolder& run : runs) {
    if (!run.explanation.is_object()) continue;
    for (const Json& one : run.explanation.value("advice", Json::array())) {
      const auto cost = number_of(one, "cost");
      rows.push_back({runs.size() > 1 ? run.name : text_of(one, "rule"),
                      cost && *cost > 0 ? fmt::format("{:.0f} %", 100 * *cost) : "", text_of(one, "saw"),
                      text_of(one, "act")});
    }
  }
  if (rows.empty()) return "";
  return "<h3>What would make it faster</h3>\n" +
         charts::html_table({"", "costs", "what was seen", "what to do"}, rows, 2);
}

}  // namespace

std::string time_section(const Runs& runs) {
  constexpr size_t kMostBars = 32;
  TimeBars all;
  std::string notes;
  for (const RunFolder& run : runs) {
    if (!run.explanation.is_object() || !run.explanation.contains("ranks")) continue;
    const Json& ranks = run.explanation["ranks"];
    if (runs.size() > 1 || ranks.size() > kMostBars)
      all.add(runs.size() > 1 ? run.name : "all ranks", run.explanation.value("mean", Json()));
    else
      for (const Json& rank : ranks) all.add(fmt::format("rank {}", rank.value("rank", 0)), rank);
    for (const Json& note : run.explanation.value("notes", Json::array()))
      if (note.is_string())
        notes += fmt::format("<p class=\"quiet\">{}</p>\n", charts::html_text(note.get<std::string>()));
  }
  if (all.bars.empty()) return "";
  std::vector<std::string> names;
  Cells head{"", "wall clock"};
  for (const auto& [part, title] : time_parts()) names.push_back(title);
  head.insert(head.end(), names.begin(), names.end());
  head.insert(head.end(), {"speed of light", "MFU"});
  return "<h2>Where the time went</h2>\n" +
         charts::html_chart(charts::stacked_bars("percent of the wall clock", names, all.bars)) +
         charts::html_table(head, all.rows, head.size()) + computing_table(runs) + notes + advice_text(runs);
}

}  // namespace lockstep::report
