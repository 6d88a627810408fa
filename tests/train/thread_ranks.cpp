#include "train/thread_ranks.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "train/worker/model_state.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

/// Puts what `from` has where `parameters` have nothing.
void fill(std::vector<std::vector<float>>& parameters, const std::vector<std::vector<float>>& from) {
  for (size_t p = 0; p < parameters.size(); ++p)
    for (size_t i = 0; i < parameters[p].size(); ++i)
      if (std::isnan(parameters[p][i])) parameters[p][i] = from[p][i];
}

}  // namespace

Trace train_on_threads(const config::RunConfig& config, int ranks, const TraceOptions& options) {
  std::vector<Trace> traces(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    Trace& trace = traces[static_cast<size_t>(rank)];
    control::Progress progress;
    WorkerOptions worker_options{.rank = rank,
                                 .world_size = ranks,
                                 .shared_memory = options.shared_memory,
                                 .hosts = options.hosts,
                                 .device = options.device,
                                 .asynchronous = options.asynchronous,
                                 .progress = options.watched ? &progress : nullptr};
    Worker worker(config, worker_options);
    comm::agree_on_fields(world, worker.agreement_fields(), std::chrono::seconds(60));
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) {
      trace.losses.push_back(record.loss);
      trace.norms.push_back(record.gradient_norm);
    };
    events.on_evaluation = [&](const EvaluationRecord& record) { trace.eval_loss = record.loss; };
    Trainer trainer(worker, world, events,
                    {.output_directory = options.output_directory, .stop_requested = {}});
    trainer.prepare();
    trainer.run();
    if (options.hashes) trace.hashes = tensor_hashes(worker, world);
    const auto& graph = worker.compiled().graph();
    for (const auto& parameter : graph.parameters)
      trace.parameters.emplace_back(parameter.spec.shape.count(), std::nanf(""));
    for (const HeldParameter& held : worker.held_parameters()) {
      auto& all = trace.parameters[static_cast<size_t>(held.parameter)];
      tensor::copy_common(all.data(), tensor::Part::range(0, std::ssize(all)),
                          worker.window().read(held.data, held.size_bytes()), held.part, sizeof(float));
    }
    const int64_t allocated = worker.device().memory_use().allocations;
    EXPECT_LE(allocated, program::kSpaceCount) << "a device allocates one buffer per space and nothing later";
    const WorkerMemory plan = plan_worker_memory(worker.compiled(), worker.programs(), worker.config());
    EXPECT_EQ(worker.device().memory_use().peak_bytes, plan.device.total_bytes);
    // What is read ahead is made when it is first needed.
    const int64_t pinned = worker.device().memory_use(device::MemoryKind::host).peak_bytes;
    EXPECT_LE(pinned, plan.host.pinned_bytes());
    EXPECT_GE(pinned, plan.host.pinned_bytes() - plan.host.pinned_read_ahead_bytes);
    EXPECT_LE(worker.peak_host_bytes(), plan.host.total_bytes());
  });
  // What a rank does not hold, others do.
  for (const Trace& trace : traces) fill(traces[0].parameters, trace.parameters);
  for (int rank = 1; rank < ranks; ++rank) {
    Trace& trace = traces[static_cast<size_t>(rank)];
    fill(trace.parameters, traces[0].parameters);
    EXPECT_EQ(trace, traces[0]) << "rank " << rank;
  }
  return traces[0];
}

const Trace& trace_of_one_rank(const config::RunConfig& config, device::DeviceKind device) {
  static std::map<std::pair<std::string, device::DeviceKind>, Trace> known;
  const auto [found, is_new] = known.try_emplace({config.effective_text, device});
  if (is_new)
    found->second = train_on_threads(
        config, 1, {.asynchronous = {}, .shared_memory = false, .output_directory = {}, .device = device});
  return found->second;
}

}  // namespace lockstep::train
