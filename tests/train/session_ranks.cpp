#include "train/session_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

void spoil(const Worker& worker, const program::Program& program, int instruction) {
  const auto& norm = program.instruction(instruction);
  if (program.name != "step" || norm.kind != program::InstructionKind::norm) return;
  const float no_number = std::nanf("");
  for (const auto& operand : norm.operands)
    if (operand.role == program::Role::gradients)
      worker.device().copy_now(worker.memory().at(program, operand.range), &no_number, sizeof no_number);
}

void expect_planned_memory(const Worker& worker) {
  const WorkerMemory plan = plan_worker_memory(worker.compiled(), worker.programs(), worker.config());
  const device::Device& device = worker.device();
  EXPECT_EQ(device.memory_use().peak_bytes, plan.device.total_bytes) << worker.rank();
  EXPECT_LE(device.memory_use().allocations, program::kSpaceCount) << worker.rank();
  // What is read ahead is made when it is first needed.
  const int64_t pinned = device.memory_use(device::MemoryKind::host).peak_bytes;
  EXPECT_LE(pinned, plan.host.pinned_bytes()) << worker.rank();
  EXPECT_GE(pinned, plan.host.pinned_bytes() - plan.host.pinned_read_ahead_bytes) << worker.rank();
}

}  // namespace

std::vector<EndedRank> train_sessions(const config::RunConfig& config, const std::string& layout,
                                      const SessionRanksOptions& options) {
  const int ranks = processes_of(layout);
  std::vector<EndedRank> ended(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    EndedRank& own = nth(ended, rank);
    control::Progress progress;
    WorkerOptions worker_options{
        .rank = rank, .world_size = ranks, .device = options.device, .asynchronous = {}};
    if (options.watched) worker_options.progress = &progress;
    if (options.before || !options.spoiled.empty())
      worker_options.before_instruction = [&options, rank](const Worker& worker,
                                                           const program::Program& program,
                                                           uint64_t iteration, int instruction) {
        if (options.before) options.before(rank, program, iteration, instruction);
        if (std::ranges::count(options.spoiled, iteration) > 0) spoil(worker, program, instruction);
      };
    Worker worker(with(config, layout), worker_options);
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) { own.records.push_back(record); };
    TrainerRunOptions run{.output_directory = options.folder, .stop_requested = {}};
    run.stop_after = options.stop_after;
    run.progress = worker_options.progress;
    if (options.stop_requested)
      run.stop_requested = [&options, rank] { return options.stop_requested(rank); };
    Trainer trainer(worker, world, events, run);
    trainer.prepare();
    own.outcome = trainer.run();
    own.transferred = worker.transferred();
    if (worker.holds_all()) own.parameters_hash = parameters_hash_of(worker);
    own.state_hash = state_hash_of(worker, world);
    expect_planned_memory(worker);
  });
  for (const EndedRank& one : ended) {
    EXPECT_EQ(one.outcome.steps, ended[0].outcome.steps) << layout;
    EXPECT_EQ(one.state_hash, ended[0].state_hash) << layout;
    EXPECT_TRUE(one.parameters_hash == 0 || one.parameters_hash == ended[0].parameters_hash) << layout;
    for (size_t i = 0; i < one.records.size(); ++i)
      EXPECT_EQ(one.records[i].step, one.records[0].step + static_cast<int64_t>(i))
          << "each step is told of once";
  }
  return ended;
}

}  // namespace lockstep::train
