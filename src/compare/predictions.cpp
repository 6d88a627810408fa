#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "compare/sweep.h"
#include "lockstep/error.h"

namespace lockstep::compare {

void CompareSweep::predict() {
  Forecast forecast({.directory = directory_,
                     .place = place_,
                     .stands_in = hosts_.has_value(),
                     .use_link = [this](const std::string& link) { use_link(link); },
                     .watch = [](pid_t) { leave_if_asked(); },
                     .command = [this](const CompareRow& row) { return command(row, false); },
                     .config =
                         [this](const CompareRow& row, const std::vector<std::string>& assignments) {
                           return config_of(row, assignments);
                         }});
  const auto keep_links = [&] {
    for (CompareLink& link : forecast.links()) {
      const auto known = std::ranges::find(results_.measured_links, link.link, &CompareLink::link);
      if (known == results_.measured_links.end()) results_.measured_links.push_back(std::move(link));
    }
  };
  size_t number = 0;
  const auto each = [&](std::vector<CompareRow>& rows, const auto& step_ms) {
    for (CompareRow& row : rows) {
      ++number;
      if (row.predicted_ms > 0) continue;
      leave_if_asked();
      try {
        row.predicted_ms = step_ms(row);
        keep_links();
        log_info(fmt::format("prediction {} of {}: {}: {:.2f} ms a step", number,
                             results_.rows.size() + results_.forecasts.size(), row.name(), row.predicted_ms));
      } catch (const ConfigError& error) {
        log_warning(fmt::format("{}: is not predicted: {}", row.name(), error.what()));
      }
    }
  };
  log_info("measures how long layers and messages take, for predictions");
  try {
    each(results_.rows, [&](const CompareRow& row) { return forecast.step_ms(row); });
    each(results_.forecasts, [&](const CompareRow& row) { return forecast.step_ms_apart(row); });
    predict_ties(forecast);
  } catch (const Error& error) {
    leave_if_asked();
    // Its jobs fail for all rows alike; measuring says more of why.
    log_warning(fmt::format("no further steps are predicted: {}", error.what()));
  }
  keep_links();
  save();
}

/// Of layouts with servers, beside all-reduce with as many workers: both of the same mathematics, and cut
/// into as many stages.
void CompareSweep::predict_ties(Forecast& forecast) {
  const auto is_beside = [](const CompareRow& row, const CompareRow& other) {
    return other.link == row.link && other.workers == row.workers && other.predicted_ms > 0 &&
           other.layout.sync == layout::SyncMethod::all_reduce && other.layout.pp == row.layout.pp &&
           other.layout.shard == layout::ShardedState::none;
  };
  for (const CompareRow& row : results_.rows) {
    const auto beside =
        std::ranges::find_if(results_.rows, [&](const CompareRow& other) { return is_beside(row, other); });
    const bool compares = row.layout.sync == layout::SyncMethod::parameter_server &&
                          !row.layout.has_sessions() && row.workers > 1 && row.predicted_ms > 0 &&
                          beside != results_.rows.end();
    if (!compares || !has_known_hosts()) continue;
    const auto knows = [&](bool servers) {
      return std::ranges::any_of(results_.ties, [&](const CompareTie& tie) {
        return tie.workers == row.workers && tie.kind == row.kind && tie.servers.has_value() == servers &&
               (!servers || tie.link == row.link);
      });
    };
    leave_if_asked();
    if (!knows(false)) results_.ties.push_back(forecast.tying_rate(row, *beside));
    leave_if_asked();
    if (row.layout.dedicated_servers() > 0 && !knows(true)) {
      CompareTie tie = forecast.tying_servers(row, *beside);
      if (tie.servers->tried > 0) results_.ties.push_back(std::move(tie));
    }
  }
}

}  // namespace lockstep::compare
