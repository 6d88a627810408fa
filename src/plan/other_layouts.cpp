#include "plan/other_layouts.h"

#include <algorithm>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::plan {
namespace {

using layout::Layout;
using layout::SyncMethod;

constexpr size_t kMostLayouts = 3;

Layout with_all_reduce(const Layout& layout) {
  return {.dp = layout.dp,
          .pp = layout.pp,
          .schedule = layout.schedule,
          .chunks = layout.chunks,
          .recompute = layout.recompute};
}

Layout with_servers(const Layout& layout) {
  Layout other = with_all_reduce(layout);
  other.sync = SyncMethod::parameter_server;
  other.placement = layout::ServerPlacement::colocated;
  other.servers = layout.workers();
  return other;
}

Layout with_stages(const Layout& layout, int stages) {
  Layout other = with_all_reduce(layout);
  other.dp = layout.workers() / stages;
  other.pp = stages;
  return other;
}

bool can_run(const Layout& layout, compile::CompileOptions options, compile::CompileFacts facts) {
  // Of servers that are not there yet nobody knows the host.
  if (layout.world_size() != facts.world_size) facts.hosts.clear();
  facts.world_size = layout.world_size();
  options.parallel.layout = layout;
  try {
    return compile::CompiledRun(options, facts).layout() == layout;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

std::vector<Layout> other_layouts(const compile::CompiledRun& run, const compile::CompileOptions& options,
                                  const compile::CompileFacts& facts, const std::function<void()>& gets_on) {
  const Layout& own = run.layout();
  std::vector<Layout> candidates = {with_all_reduce(own)};
  if (own.sync == SyncMethod::parameter_server && own.servers < own.workers()) {
    Layout more = own;
    more.servers = std::min(2 * own.servers, own.workers());
    candidates.push_back(more);
  }
  if (own.pp > 1) candidates.push_back(with_stages(own, 1));
  if (own.pp == 1 && own.workers() % 2 == 0) candidates.push_back(with_stages(own, 2));
  // A stated algorithm is one of sums among workers, and refused beside servers.
  const bool may_serve = options.parallel.algorithm == parallel::AllReduceAlgorithm::automatic;
  if (own.sync != SyncMethod::parameter_server && may_serve) candidates.push_back(with_servers(own));
  std::vector<Layout> layouts;
  for (Layout& candidate : candidates) {
    if (layouts.size() == kMostLayouts) break;
    if (candidate == own) continue;
    if (gets_on) gets_on();
    if (!can_run(candidate, options, facts)) continue;
    candidate.dp = 0;
    if (std::ranges::find(layouts, candidate) == layouts.end()) layouts.push_back(std::move(candidate));
  }
  return layouts;
}

}  // namespace lockstep::plan
