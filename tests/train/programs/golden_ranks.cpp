#include "train/programs/golden_ranks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "ops/orthogonalizer.h"
#include "parallel/step_programs.h"
#include "program/matrix_scratch.h"

namespace lockstep::train {
namespace {

/// The first input is drawn from 8 numbers, the label from 2 classes: every model has as many.
class Batches : public run::BatchSource {
 public:
  void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) override {
    for (size_t f = 0; f < fields.size(); ++f) {
      const int64_t count = fields[f].shape.count(), each = count / fields[f].shape[0];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t number = static_cast<int64_t>(iteration) * 1009 + position * each + i;
        const auto whole = static_cast<int32_t>(number * 7919 % 101 % (f == 0 ? 8 : 2));
        const float real = static_cast<float>(number * 31 % 17) / 17.0f;
        auto* to = static_cast<std::byte*>(fields[f].data) + 4 * i;
        if (fields[f].dtype == DType::int32)
          std::memcpy(to, &whole, 4);
        else
          std::memcpy(to, &real, 4);
      }
    }
  }
};

bool trains(const program::Program& program) { return program.name == "step"; }

/// One rank's program with all that running it takes.
struct Rank {
  Rank(const GoldenModel& m, program::Program p, device::Device& d)
      : model(m),
        program(std::move(p)),
        plan(program::plan_memory(program)),
        device(d),
        memory(d, std::span(&plan, 1)),
        code(m.code(trains(program))),
        context{.graph = m.graph,
                .code = *code,
                .memory = memory,
                .device = d,
                .optimizer = m.optimizer,
                .group_rates = m.group_rates} {
    code->prepare(d);
    context.clip_norm = m.clip_norm;
    context.static_count = static_cast<double>(m.division.global_batch * m.graph.loss_positions());
    context.batches = &batches;
    // A program says itself which leaves its micro-batches belong to.
    for (const auto& instruction : program.instructions) {
      if (instruction.kind != program::InstructionKind::load || instruction.micro_batch < 0) continue;
      const int in_leaf = instruction.micro_batch % program.micro_batches_per_leaf;
      context.first_samples.push_back(instruction.leaf * m.division.leaf_samples +
                                      in_leaf * m.division.micro_batch);
    }
    for (size_t b = 0; b < program.buffers.size(); ++b)
      std::memset(memory.at(program, program.whole(static_cast<int>(b))), 0,
                  static_cast<size_t>(program.buffers[b].size_bytes));
    for (const auto& place : program.parameters)
      for (int64_t i = 0; place.buffer >= 0 && i < place.size_bytes / 4; ++i)
        parameter(place)[i] =
            static_cast<float>((i * 5 + static_cast<int64_t>(place.name.size())) % 7 - 3) / 16.0f;
  }

  void connect(comm::Communicator& world) {
    for (size_t group = 0; group < program.groups.size(); ++group) {
      channels.push_back(world.split(0, program.rank));
      context.communicators.push_back(channels.back().get());
    }
  }

  float* parameter(const program::ParameterPlace& place) const {
    return reinterpret_cast<float*>(memory.at(program, {place.buffer, place.offset, place.size_bytes}));
  }

  const program::Verdict* verdict() const {
    for (size_t b = 0; b < program.buffers.size(); ++b)
      if (program.buffers[b].name == "verdict")
        return reinterpret_cast<const program::Verdict*>(
            memory.at(program, program.whole(static_cast<int>(b))));
    return nullptr;
  }

  bool knows_norm() const {
    return std::ranges::any_of(program.instructions,
                               [](const auto& i) { return i.kind == program::InstructionKind::norm; });
  }

  GoldenOutcome run(const GoldenRun& options) {
    const run::ExecutorOptions patience{.communication_timeout = std::chrono::seconds(30)};
    const auto executor = options.asynchronous ? run::make_stream_executor(program, context, patience, device)
                                               : run::make_inline_executor(program, context, patience);
    EXPECT_EQ(device.memory_use(device::MemoryKind::host).peak_bytes,
              run::staging_bytes(program, model.graph, model.division.micro_batch, device.kind()));
    GoldenOutcome outcome;
    for (int k = 0; k < options.iterations; ++k) {
      run::StepInputs inputs{.constants = {}, .iteration = static_cast<uint64_t>(k)};
      inputs.constants.kernels.step = inputs.iteration;
      inputs.constants.update.learning_rate = model.optimizer.learning_rate;
      inputs.constants.update.beta1_power = std::pow(model.optimizer.beta1, k + 1);
      inputs.constants.update.beta2_power = std::pow(model.optimizer.beta2, k + 1);
      executor->run(inputs);
      outcome.losses.push_back(verdict()->loss_sum);
      outcome.counts.push_back(verdict()->count);
      if (knows_norm()) outcome.norms.push_back(verdict()->gradient_norm);
    }
    executor->finish();
    for (const auto& place : program.parameters)
      if (place.buffer >= 0)
        outcome.parameters[place.name] = {parameter(place), parameter(place) + place.size_bytes / 4};
    if (options.look) options.look(program.rank, program, memory);
    return outcome;
  }

  const GoldenModel& model;
  program::Program program;
  program::MemoryPlan plan;
  device::Device& device;
  run::ProgramMemory memory;
  std::unique_ptr<program::ModelCode> code;
  Batches batches;
  std::vector<std::unique_ptr<comm::Communicator>> channels;
  run::ExecutionContext context;
};

/// What one rank knows joins what others know; where both know something, it is the same.
void merge(GoldenOutcome& all, const GoldenOutcome& one, int rank) {
  EXPECT_EQ(one.losses, all.losses) << "rank " << rank;
  EXPECT_EQ(one.counts, all.counts) << "rank " << rank;
  if (all.norms.empty()) all.norms = one.norms;
  EXPECT_TRUE(one.norms.empty() || one.norms == all.norms) << "rank " << rank;
  for (const auto& [name, values] : one.parameters)
    EXPECT_TRUE(all.parameters.try_emplace(name, values).first->second == values)
        << name << ", rank " << rank;
}

std::unique_ptr<device::Device> make_device(const GoldenRun& run) {
  return run.asynchronous ? device::make_async_cpu_device(*run.asynchronous) : device::make_cpu_device();
}

/// As compile::CompiledRun has it.
parallel::WholeScratch whole_scratch_of(const GoldenModel& model) {
  parallel::WholeScratch scratch;
  for (const auto& parameter : model.graph.parameters) {
    const auto found = model.group_rates.find(parameter.name);
    const MatrixSize size = found == model.group_rates.end() ? MatrixSize{} : found->second.matrix;
    int64_t bytes = 0;
    if (size.is_matrix())
      bytes = program::MatrixScratch(
                  size, ops::make_orthogonalizer(device::DeviceKind::cpu, size, 1)->workspace_bytes())
                  .size_bytes;
    scratch.of_workers.push_back(bytes);
  }
  return scratch;
}

program::Program compiled_for_one(const GoldenModel& model,
                                  program::Program (*compile)(const parallel::ProgramPlan&, int)) {
  layout::BatchDivision division = model.division;
  division.workers = 1;
  const auto training = model.code(true), evaluation = model.code(false);
  const int slots = optim::state_slots(model.optimizer);
  const layout::Ownership ownership(model.graph, model.partition, {.workers = 1, .state_slots = slots});
  parallel::ProgramPlan plan{.graph = model.graph,
                             .partition = model.partition,
                             .training = *training,
                             .evaluation = *evaluation,
                             .division = division,
                             .parallel = {.layout = {},
                                          .reduction = layout::Reduction::reproducible,
                                          .wire = model.wire,
                                          .error_feedback = model.error_feedback},
                             .ownership = ownership,
                             .shares = ownership.shares(),
                             .state_slots = slots,
                             .measures = {.parameters = optim::measures_parameters(model.optimizer),
                                          .proposed_slots = optim::proposed_slots(model.optimizer)},
                             .whole_scratch = whole_scratch_of(model)};
  program::Program program = compile(plan, 0);
  program::derive_dependencies(program);
  return program;
}

}  // namespace

GoldenOutcome execute(const GoldenModel& model, std::vector<program::Program> programs,
                      const GoldenRun& run) {
  const int ranks = static_cast<int>(programs.size());
  std::vector<GoldenOutcome> outcomes(programs.size());
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    const auto device = make_device(run);
    Rank self(model, std::move(programs[static_cast<size_t>(rank)]), *device);
    self.context.snapshot = [&run, rank] { return run.saves(rank); };
    self.connect(world);
    outcomes[static_cast<size_t>(rank)] = self.run(run);
  });
  GoldenOutcome all = outcomes[0];
  for (int rank = 1; rank < ranks; ++rank) merge(all, outcomes[static_cast<size_t>(rank)], rank);
  return all;
}

void bind(const GoldenModel& model, program::Program program) {
  const auto device = device::make_cpu_device();
  const auto communicators = comm::make_local_communicators(program.world_size);
  Rank self(model, std::move(program), *device);
  // Binding talks to nobody: any communicator of the right size will do.
  self.context.communicators.assign(self.program.groups.size(),
                                    communicators[static_cast<size_t>(self.program.rank)].get());
  run::make_actions(self.program, self.context, nullptr);
}

program::Program one_rank_step(const GoldenModel& model) {
  return compiled_for_one(model, parallel::compile_step);
}
program::Program one_rank_evaluation(const GoldenModel& model) {
  return compiled_for_one(model, parallel::compile_evaluation);
}

}  // namespace lockstep::train
