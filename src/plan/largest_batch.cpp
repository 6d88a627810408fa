#include "plan/largest_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/error.h"
#include "ops/replica_kernel.h"
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
  /// From one size of a micro-batch to the next with the same division.
  int64_t unit() const {
    const bool on_gpu = facts_.device == device::DeviceKind::cuda;
    return on_gpu && division_.leaves_at_once > 1 ? ops::kReplicaSamplesOnGpu : 1;
  }
  int64_t global_batch(int64_t samples) const {
    return samples * division_.micro_batches_per_leaf * division_.leaves;
  }

  /// What it takes, whether or not it fits, with stages balanced so that it fits if possible. Nothing if it
  /// cannot be, or if it would be another division: `why` says so.
  std::optional<BatchFit> compiled(int64_t samples, std::string& why) const {
    compile::CompileOptions options = options_;
    options.micro_batch = samples * division_.leaves_at_once;
    options.global_batch = global_batch(samples);
    try {
      const compile::CompiledRun run(balanced(options, facts_, limit_), facts_);
      const layout::BatchDivision& its = run.division();
      if (its.leaves_at_once != division_.leaves_at_once || its.leaves != division_.leaves ||
          its.micro_batches_per_leaf != division_.micro_batches_per_leaf) {
        why = "fewer virtual replicas would be computed at once";
        return std::nullopt;
      }
      return BatchFit{.micro_batch = options.micro_batch,
                      .global_batch = options.global_batch,
                      .bytes = fullest_rank(run).plan.total_bytes};
    } catch (const ConfigError& error) {
      why = error.what();
      return std::nullopt;
    }
  }

 private:
  const compile::CompileOptions& options_;
  const compile::CompileFacts& facts_;
  int64_t limit_;
  layout::BatchDivision division_;
};

/// Between a size that fits and one that does not. Memory is nearly a straight line, so that its end is
/// guessed from two sizes, and proven by its neighbours.
class BatchSearch {
 public:
  BatchSearch(const Batches& batches, int64_t limit, int64_t most_samples,
              const std::function<void()>& gets_on)
      : batches_(batches),
        gets_on_(gets_on),
        limit_(limit),
        most_samples_(most_samples),
        refused_(most_samples / batches.global_batch(batches.unit()) + 1) {}

  LargestBatch find(int64_t first) {
    found_.bound = fmt::format("global batches have at most {} samples", most_samples_);
    probe(std::clamp<int64_t>(first, 1, refused_ - 1));
    // Every third size is one that halves what is left, however memory grows.
    for (int n = 1; refused_ - fits_ > 1; ++n)
      probe(std::clamp(n % 3 == 0 ? halved() : guessed(), fits_ + 1, refused_ - 1));
    return std::move(found_);
  }

 private:
  struct Point {
    double units = 0, bytes = 0;
  };

  void probe(int64_t units) {
    if (gets_on_) gets_on_();
    std::string why;
    const std::optional<BatchFit> batch = batches_.compiled(units * batches_.unit(), why);
    if (batch)
      older_ = std::exchange(newer_, {static_cast<double>(units), static_cast<double>(batch->bytes)});
    if (batch && batch->bytes <= limit_) {
      found_.fit = batch;
      fits_ = units;
    } else {
      found_.next = batch;
      found_.bound = why;
      refused_ = units;
    }
  }

  /// Where the line through the last two sizes meets the limit.
  int64_t guessed() const {
    const double slope = (newer_.bytes - older_.bytes) / (newer_.units - older_.units);
    if (!(slope > 0) || older_.units == 0) return halved();
    const double end = newer_.units + (static_cast<double>(limit_) - newer_.bytes) / slope;
    return static_cast<int64_t>(std::clamp(end, 0.0, static_cast<double>(refused_)));
  }

  /// While nothing is refused yet, or nothing fits, the other end is far away.
  int64_t halved() const {
    if (!found_.next && fits_ > 0) return std::min(2 * fits_, refused_ - 1);
    return fits_ + (refused_ - fits_) / 2;
  }

  const Batches& batches_;
  const std::function<void()>& gets_on_;
  int64_t limit_, most_samples_;
  int64_t fits_ = 0, refused_;  // units
  Point older_, newer_;
  LargestBatch found_;
};

}  // namespace

std::optional<BatchFit> fit_batch(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                  int64_t limit, int64_t samples) {
  std::string why;
  const std::optional<BatchFit> batch = Batches(options, facts, limit).compiled(samples, why);
  return batch && batch->bytes <= limit ? batch : std::nullopt;
}

LargestBatch largest_batch(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                           int64_t limit, int64_t most_samples, const std::function<void()>& gets_on) {
  const Batches batches(options, facts, limit);
  if (limit <= 0 || most_samples < batches.global_batch(batches.unit())) return {};
  return BatchSearch(batches, limit, most_samples, gets_on).find(batches.own_samples() / batches.unit());
}

}  // namespace lockstep::plan
