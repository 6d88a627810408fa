#include "plan/largest_batch.h"

#include <algorithm>

#include "lockstep/error.h"
#include "plan/balance.h"
#include "plan/device_plan.h"

namespace lockstep::plan {
namespace {

/// Batches that keep a division's leaves and micro-batches.
class Batches {
 public:
  Batches(const compile::CompileOptions& options, const compile::CompileFacts& facts, int64_t limit)
      : options_(options),
        facts_(facts),
        limit_(limit),
        division_(compile::CompiledRun(options, facts).division()) {}

  int64_t own_samples() const { return division_.summed_samples(); }
  int64_t global_batch(int64_t samples) const {
    return samples * division_.micro_batches_per_leaf * division_.leaves;
  }

  std::optional<BatchFit> fit(int64_t samples) const {
    compile::CompileOptions options = options_;
    options.micro_batch = samples * division_.leaves_at_once;
    options.global_batch = global_batch(samples);
    try {
      const compile::CompiledRun run(balanced(options, facts_, limit_), facts_);
      // GPUs do not join virtual replicas of every size: then it would be another division, with less memory.
      const layout::BatchDivision& its = run.division();
      if (its.leaves_at_once != division_.leaves_at_once || its.leaves != division_.leaves ||
          its.micro_batches_per_leaf != division_.micro_batches_per_leaf)
        return std::nullopt;
      const BatchFit fit{.micro_batch = options.micro_batch,
                         .global_batch = options.global_batch,
                         .bytes = fullest_rank(run).plan.total_bytes};
      return fit.bytes <= limit_ ? std::optional(fit) : std::nullopt;
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

 private:
  const compile::CompileOptions& options_;
  const compile::CompileFacts& facts_;
  int64_t limit_;
  layout::BatchDivision division_;
};

}  // namespace

std::optional<BatchFit> fit_batch(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                  int64_t limit, int64_t samples) {
  return Batches(options, facts, limit).fit(samples);
}

std::optional<BatchFit> largest_batch(const compile::CompileOptions& options,
                                      const compile::CompileFacts& facts, int64_t limit,
                                      int64_t most_samples) {
  if (limit <= 0) return {};
  const Batches batches(options, facts, limit);
  const int64_t most = most_samples / batches.global_batch(1);
  if (most < 1) return {};
  // Memory grows with the batch: what fits is below a bound, which doubling brackets and halving finds.
  std::optional<BatchFit> best;
  int64_t fits = 0, refused = most + 1;
  for (int64_t samples = std::clamp<int64_t>(batches.own_samples(), 1, most); samples < refused;) {
    if (auto fit = batches.fit(samples)) {
      best = fit;
      fits = samples;
      samples = std::min(2 * samples, refused - 1);
      if (samples == fits) break;
    } else {
      refused = samples;
    }
  }
  while (refused - fits > 1) {
    const int64_t samples = fits + (refused - fits) / 2;
    if (auto fit = batches.fit(samples)) {
      best = fit;
      fits = samples;
    } else {
      refused = samples;
    }
  }
  return best;
}

}  // namespace lockstep::plan
