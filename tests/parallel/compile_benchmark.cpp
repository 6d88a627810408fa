// How long one worker's step takes to be written, given its dependencies and places, hashed and proven, by
// the number of micro-batches. Run by scripts/bench_compile.sh.

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "model/presets.h"
#include "parallel/step_programs.h"
#include "program/memory/memory_plan.h"
#include "proof/checker.h"

namespace {

using namespace lockstep;

constexpr int kStateSlots = 2;  // Adam's

ModelSpec model_named(const std::string& name) {
  if (name == "mnist_mlp") return model::make_mlp({});
  if (name == "shakespeare_gpt")
    return model::make_gpt({.vocabulary = 65, .context = 64, .layers = 4, .heads = 4, .width = 128});
  fmt::print(stderr, "unknown model '{}'; known are mnist_mlp and shakespeare_gpt\n", name);
  std::exit(2);
}

/// High-water mark of the process.
double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// Milliseconds since it was last asked.
class Watch {
 public:
  double lap() {
    const auto now = Clock::now();
    const double ms = milliseconds_between(begin_, now);
    begin_ = now;
    return ms;
  }

 private:
  Clock::time_point begin_ = Clock::now();
};

void measure(const std::string& name, int leaves, int micro_batches_per_leaf, int64_t bucket_bytes) {
  const model::Graph graph = model::make_graph(model_named(name));
  const parallel::ParallelOptions parallel{
      .reduction = leaves > 1 ? layout::Reduction::reproducible : layout::Reduction::fast,
      .bucket_bytes = bucket_bytes};
  const model::Partition partition = model::make_partition(graph, bucket_bytes);
  const layout::BatchDivision division =
      layout::divide_batch(int64_t{leaves} * micro_batches_per_leaf, 1, leaves, parallel.reduction, 1);
  const program::ModelCode training(graph, partition, {.micro_batch = 1}),
      evaluation(graph, partition, {.micro_batch = 1, .training = false});
  const layout::Ownership ownership(graph, partition, {.workers = 1, .state_slots = kStateSlots});
  const parallel::ProgramPlan plan{.graph = graph,
                                   .partition = partition,
                                   .training = training,
                                   .evaluation = evaluation,
                                   .division = division,
                                   .parallel = parallel,
                                   .ownership = ownership,
                                   .shares = ownership.shares(),
                                   .state_slots = kStateSlots};
  Watch watch;
  program::Program step = parallel::compile_step(plan, 0);
  const double written = watch.lap();
  program::derive_dependencies(step);
  const double derived = watch.lap();
  const program::MemoryPlan memory = program::plan_memory(step);
  const double planned = watch.lap();
  const uint64_t hash = program::hash_of(step);
  const double hashed = watch.lap();
  proof::ensure_checked({&step, 1});
  const double proven = watch.lap();
  fmt::print(
      "{:<16}{:>7} x{:>5}{:>9}{:>9}{:>8.0f}{:>8.0f}{:>8.0f}{:>8.0f}{:>8.0f}{:>9.0f} MiB  {:016x} {:>10}\n",
      name, leaves, micro_batches_per_leaf, step.instructions.size(), step.buffers.size(), written, derived,
      planned, hashed, proven, peak_mebibytes(), hash, memory.total_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    fmt::print(stderr, "usage: {} mnist_mlp|shakespeare_gpt LEAVES MICRO_BATCHES_PER_LEAF [BUCKET_BYTES]\n",
               argv[0]);
    return 2;
  }
  measure(argv[1], std::atoi(argv[2]), std::atoi(argv[3]),
          argc > 4 ? std::atoll(argv[4]) : parallel::kBucketBytes);
  return 0;
}
