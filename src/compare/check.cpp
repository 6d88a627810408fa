#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "compare/sweep.h"
#include "jobs/job.h"
#include "lockstep/error.h"
#include "plan/link_traffic.h"
#include "train/worker/compile_options.h"

namespace lockstep::compare {
namespace {

/// What a layout of one name is refused for begins with it, once.
std::string refusal(const CompareRow& row, const std::string& reason) {
  const std::string workers = fmt::format("{} worker{}: ", row.workers, row.workers == 1 ? "" : "s");
  const std::string place = fmt::format("layout '{}': ", layout::to_string(row.layout));
  return workers + (reason.starts_with(place) ? reason : place + reason);
}

/// `hosts`: of each rank, as places among `names`.
void set_theory(CompareRow& row, const compile::CompiledRun& run, const std::vector<int>& hosts,
                const std::vector<std::string>& names) {
  const std::vector<plan::LinkBytes> links = plan::link_bytes(run, hosts);
  row.links_theory.clear();
  row.link_bytes_theory = 0;
  for (size_t i = 0; i < links.size(); ++i) {
    row.links_theory.push_back({.host = names[i], .sent = links[i].sent, .received = links[i].received});
    row.link_bytes_theory = std::max({row.link_bytes_theory, links[i].sent, links[i].received});
  }
}

}  // namespace

/// Of hosts that are known once a run has told them.
void CompareSweep::add_theory(CompareRow& row, const std::vector<std::string>& rank_hosts) const {
  std::vector<std::string> names;
  compile::CompileFacts facts{.world_size = static_cast<int>(rank_hosts.size())};
  for (const std::string& host : rank_hosts) {
    const auto found = std::ranges::find(names, host);
    facts.hosts.push_back(static_cast<int>(found - names.begin()));
    if (found == names.end()) names.push_back(host);
  }
  set_theory(row, train::compile_run(config_of(row), facts), facts.hosts, names);
}

/// Refuses all that cannot run before anything does. `refused`: what was already.
void CompareSweep::check(std::vector<std::string> refused) {
  const auto add = [&](CompareRow& row, bool is_proven) {
    jobs::check_can_start_jobs("compare", row.layout.world_size());
    const std::string reason = refusal_of(row, is_proven);
    // Over every link it is the same.
    if (!reason.empty() && std::ranges::find(refused, reason) == refused.end()) refused.push_back(reason);
  };
  for (CompareRow& row : results_.rows) add(row, is_proven(row));
  for (CompareRow& row : results_.forecasts) add(row, false);
  if (refused.empty()) return;
  throw ConfigError(refused.size() == 1
                        ? refused.front()
                        : fmt::format("{} layouts cannot run:\n  {}", refused.size(), join(refused, "\n  ")));
}

/// Why it cannot run, or cannot be proven; "" if it can.
std::string CompareSweep::refusal_of(CompareRow& row, bool is_proven) const {
  const int processes = row.layout.world_size();
  compile::CompileFacts facts{.world_size = processes, .shared_memory = processes > 1};
  if (!row.link.empty() && processes > 1) {
    facts.hosts = stand_in_hosts(processes);
    facts.shared_memory = false;
  }
  try {
    const compile::CompiledRun run = train::compile_run(config_of(row), facts);
    run.check();
    if (!facts.hosts.empty()) set_theory(row, run, facts.hosts, {"host-a", "host-b"});
  } catch (const ConfigError& error) {
    return refusal(row, error.what());
  }
  if (!is_proven) return "";
  try {
    train::compile_run(config_of(row, {"parallel.reduction=REPRODUCIBLE"}), facts).check();
  } catch (const ConfigError& error) {
    return refusal(
        row,
        fmt::format("cannot be proven equal under REPRODUCIBLE: {}; pass --proof-steps 0 to skip the proof",
                    error.what()));
  }
  return "";
}

}  // namespace lockstep::compare
