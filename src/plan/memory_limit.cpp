#include "plan/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <utility>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "plan/balance.h"
#include "plan/device_plan.h"
#include "plan/step_estimate.h"

namespace lockstep::plan {
namespace {

/// More stages than that are not tried.
constexpr int kMostStages = 64;
/// Where the largest stage is larger by this, moving cuts is not tried: the others have no such room.
constexpr double kMovable = 1.5;

compile::CompileFacts facts_of(compile::CompileFacts facts, const layout::Layout& layout) {
  const int processes = layout.world_size();
  // Of processes that are not there yet nobody knows the host.
  if (processes != facts.world_size) facts.hosts.clear();
  facts.world_size = processes;
  return facts;
}

class Search {
 public:
  Search(const compile::CompileOptions& options, const compile::CompileFacts& facts, int64_t limit)
      : options_(options), facts_(facts), limit_(limit), run_(options, facts), time_(estimate_step(run_)) {}

  WaysOut find() {
    change_recomputation();
    change_schedule();
    change_micro_batch();
    shard_optimizer();
    add_stages();
    if (ways_.fitting.empty()) combine();
    if (!ways_.fitting.empty()) ways_.closest.reset();
    std::ranges::stable_sort(ways_.fitting, [](const WayOut& a, const WayOut& b) {
      return std::pair(a.time, a.layout.world_size()) < std::pair(b.time, b.layout.world_size());
    });
    return std::move(ways_);
  }

 private:
  layout::Layout base() const { return run_.layout(); }
  int64_t own_micro_batch() const { return run_.division().micro_batch; }

  /// What it takes; nothing if it cannot be.
  std::optional<WayOut> tried(const layout::Layout& layout, int64_t micro_batch) {
    compile::CompileOptions options = options_;
    options.parallel.layout = layout;
    if (micro_batch > 0) options.micro_batch = micro_batch;
    try {
      const compile::CompileFacts facts = facts_of(facts_, layout);
      const auto way_of = [&](const compile::CompiledRun& run) {
        const double time = estimate_step(run);
        return WayOut{.layout = run.layout(),
                      .micro_batch = micro_batch,
                      .bytes = fullest_rank(run).plan.total_bytes,
                      .time = time / time_,
                      .seconds = run.profile() ? time : 0};
      };
      WayOut way = way_of(compile::CompiledRun(options, facts));
      if (way.bytes > limit_ && static_cast<double>(way.bytes) < kMovable * static_cast<double>(limit_))
        way = way_of(compile::CompiledRun(balanced(options, facts, limit_), facts));
      if (!ways_.closest || way.bytes < ways_.closest->bytes) ways_.closest = way;
      return way;
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

  bool fits(const std::optional<WayOut>& way) const { return way && way->bytes <= limit_; }

  bool add_if_fits(const layout::Layout& layout, int64_t micro_batch = 0) {
    auto way = tried(layout, micro_batch);
    if (!fits(way)) return false;
    ways_.fitting.push_back(std::move(*way));
    return true;
  }

  void change_recomputation() {
    layout::Layout layout = base();
    for (const auto kind : {layout::Recompute::selective, layout::Recompute::full}) {
      if (kind <= base().recompute) continue;
      layout.recompute = kind;
      if (add_if_fits(layout)) return;
    }
  }

  void change_schedule() {
    layout::Layout layout = base();
    if (layout.pp == 1 || layout.schedule == layout::PipelineSchedule::one_f_one_b) return;
    layout.schedule = layout::PipelineSchedule::one_f_one_b;
    add_if_fits(layout);
  }

  /// Smaller ones that hold virtual replicas, or divide one, descending.
  std::vector<int64_t> smaller_micro_batches() const {
    const layout::BatchDivision& division = run_.division();
    const int64_t leaf = division.leaf_samples;
    std::vector<int64_t> sizes;
    for (int64_t size = own_micro_batch() - 1; size >= 1; --size)
      if (leaf % size == 0 || (size % leaf == 0 && std::has_single_bit(static_cast<uint64_t>(size / leaf))))
        sizes.push_back(size);
    return sizes;
  }

  void change_micro_batch() {
    for (const int64_t size : smaller_micro_batches())
      if (add_if_fits(base(), size)) return;
  }

  void shard_optimizer() {
    layout::Layout layout = base();
    if (layout.dp == 1 || layout.sync != layout::SyncMethod::all_reduce) return;
    if (std::exchange(layout.shard, layout::ShardedState::optimizer) == layout::ShardedState::none)
      add_if_fits(layout);
  }

  /// At least as many micro-batches as there are stages keep them busy for more than half of the time.
  int64_t micro_batch_for(int stages) const {
    const auto& division = run_.division();
    const int leaves = division.leaves_of(0).size();
    // A pipeline joins no leaves that it needs apart (layout::join_leaves).
    const auto count = [&](int64_t size) {
      return leaves * (division.leaf_samples / std::min(size, division.leaf_samples));
    };
    if (count(own_micro_batch()) >= 2 * stages) return 0;
    for (const int64_t size : smaller_micro_batches())
      if (count(size) >= 2 * stages) return size;
    const auto sizes = smaller_micro_batches();
    return sizes.empty() ? 0 : sizes.back();
  }

  int most_stages() const { return std::min(kMostStages, run_.graph().group_count); }

  layout::Layout with_stages(int stages) const {
    layout::Layout layout = base();
    const bool colocated = layout.sync == layout::SyncMethod::parameter_server &&
                           layout.placement == layout::ServerPlacement::colocated;
    if (colocated) layout.servers = layout.servers / layout.pp * stages;
    layout.pp = stages;
    return layout;
  }

  void add_stages() {
    for (int stages = base().pp + 1; stages <= most_stages(); ++stages)
      if (add_if_fits(with_stages(stages), micro_batch_for(stages))) return;
  }

  /// Everything at once, for the fewest stages with which that suffices; then whatever is not needed is taken
  /// back.
  void combine() {
    const std::vector<int64_t> sizes = smaller_micro_batches();
    const int64_t smallest = sizes.empty() ? 0 : sizes.back();
    for (int stages = base().pp; stages <= most_stages(); ++stages) {
      layout::Layout all = with_stages(stages);
      all.recompute = layout::Recompute::full;
      if (all.dp > 1 && all.sync == layout::SyncMethod::all_reduce)
        all.shard = layout::ShardedState::optimizer;
      std::optional<WayOut> way = tried(all, smallest);
      if (!fits(way)) continue;
      const auto keep = [&](const layout::Layout& layout, int64_t micro_batch) {
        if (auto simpler = tried(layout, micro_batch); fits(simpler)) way = std::move(simpler);
      };
      layout::Layout without = way->layout;
      without.shard = base().shard;
      keep(without, smallest);
      without = way->layout;
      without.recompute = base().recompute;
      keep(without, smallest);
      for (const int64_t size : sizes) {
        const int64_t before = way->micro_batch;
        if (size > before) keep(way->layout, size);
        if (way->micro_batch != before) break;
      }
      ways_.fitting.push_back(std::move(*way));
      return;
    }
  }

  const compile::CompileOptions& options_;
  const compile::CompileFacts& facts_;
  int64_t limit_;
  compile::CompiledRun run_;
  double time_;
  WaysOut ways_;
};

std::string head_of(const WayOut& way) {
  return fmt::format("  {:>12}{:>8}{}{:>11}\n", "memory", "time", way.seconds > 0 ? "      a step" : "",
                     "processes");
}

std::string line_of(const WayOut& way) {
  return fmt::format(
      "  {:>12}{:>8.2f}{}{:>11}   --layout {}{}\n", human_bytes(way.bytes), way.time,
      way.seconds > 0 ? fmt::format("{:>12}", human_seconds(way.seconds)) : "", way.layout.world_size(),
      layout::to_string(way.layout),
      way.micro_batch > 0 ? fmt::format(" --set trainer.micro_batch={}", way.micro_batch) : "");
}

std::string text_of(const WaysOut& ways) {
  std::string text;
  if (!ways.fitting.empty()) {
    text = "these fit; time: the computation of a step, relative to this layout\n" +
           head_of(ways.fitting.front());
    for (const WayOut& way : ways.fitting) text += line_of(way);
  } else if (ways.closest) {
    text =
        "nothing fits, not even with more stages, smaller micro-batches, recomputation and a sharded "
        "optimizer; the closest is\n" +
        head_of(*ways.closest) + line_of(*ways.closest) +
        "make the model smaller, or raise device.memory_limit\n";
  } else {
    text = "nothing else can be tried; make the model smaller, or raise device.memory_limit\n";
  }
  text.pop_back();
  return text;
}

std::string name_of(const compile::CompiledRun& run, int rank) {
  const layout::Ownership& ownership = run.ownership();
  if (!ownership.is_worker(rank)) return fmt::format("rank {}, a server,", rank);
  if (ownership.stages() > 1) return fmt::format("rank {}, of stage {},", rank, ownership.stage_of(rank));
  return fmt::format("rank {}", rank);
}

}  // namespace

WaysOut ways_out(const compile::CompileOptions& options, const compile::CompileFacts& facts, int64_t limit) {
  return Search(options, facts, limit).find();
}

std::string excess(const compile::CompiledRun& run, const compile::CompileOptions& options,
                   const compile::CompileFacts& facts, int64_t limit) {
  if (limit == 0) return "";
  const FullestRank fullest = fullest_rank(run);
  const int64_t bytes = fullest.plan.total_bytes;
  if (bytes <= limit) return "";
  return fmt::format("layout '{}': {} takes {}, {} more than device.memory_limit allows ({}):\n{}{}",
                     layout::to_string(run.layout()), name_of(run, fullest.rank), human_bytes(bytes),
                     human_bytes(bytes - limit), human_bytes(limit), program::describe(fullest.plan),
                     text_of(ways_out(options, facts, limit)));
}

void require_fits(const compile::CompiledRun& run, const compile::CompileOptions& options,
                  const compile::CompileFacts& facts, int64_t limit) {
  if (const std::string what = excess(run, options, facts, limit); !what.empty()) throw ConfigError(what);
}

}  // namespace lockstep::plan
