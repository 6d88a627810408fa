#include "train/programs/program_rank.h"

#include <cstring>

#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

run::ExecutionContext context_of(const config::RunConfig& config, const compile::CompiledRun& run, int rank,
                                 const run::ProgramMemory& memory, run::BatchSource& batches) {
  const auto& division = run.division();
  run::ExecutionContext context{.graph = run.graph(),
                                .code = run.training_code(),
                                .memory = memory,
                                .device = memory.device(),
                                .optimizer = config.optimizer};
  context.clip_norm = config.trainer.clip_norm;
  context.static_count = static_cast<double>(division.global_batch);
  for (const layout::BatchPart& part : division.parts_of(rank))
    context.first_samples.push_back(part.first_sample);
  context.batches = &batches;
  return context;
}

}  // namespace

void NumberedBatches::load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) {
  for (const Tensor& field : fields) {
    const int64_t samples = field.shape[0], count = field.shape.count();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t number = static_cast<int64_t>(iteration) * 101 + position * (count / samples) + i;
      if (field.dtype == DType::float32) {
        const float value = static_cast<float>(number * 7 % 13) / 13.0f;
        std::memcpy(static_cast<std::byte*>(field.data) + i * 4, &value, 4);
      } else {
        const auto value = static_cast<int32_t>(number % 3);
        std::memcpy(static_cast<std::byte*>(field.data) + i * 4, &value, 4);
      }
    }
  }
}

ProgramRank::ProgramRank(const config::RunConfig& config, int rank, run::BatchSource& batches,
                         comm::Communicator& world, bool shared_memory, const Wrap& wrap)
    : run(compile_run(config, {.world_size = world.size(), .shared_memory = shared_memory})),
      programs(run.compile(rank)),
      device(device::make_cpu_device()),
      memory(*device, std::span(&programs.step_plan, 1)),
      context(context_of(config, run, rank, memory, batches)) {
  for (size_t group = 0; group < programs.step.groups.size(); ++group) {
    auto channel = world.split(0, rank);
    channels.push_back(wrap ? wrap(static_cast<int>(group), std::move(channel)) : std::move(channel));
    context.communicators.push_back(channels.back().get());
  }
  // Something that gradients depend on.
  for (const auto& place : programs.step.parameters) {
    auto* data =
        reinterpret_cast<float*>(memory.at(programs.step, {place.buffer, place.offset, place.size_bytes}));
    for (int64_t i = 0; i < place.size_bytes / 4; ++i) data[i] = static_cast<float>(i * 5 % 7 - 3) / 8.0f;
  }
}

std::vector<std::vector<float>> ProgramRank::parameters() const {
  std::vector<std::vector<float>> values;
  for (const auto& place : programs.step.parameters) {
    const auto* data = reinterpret_cast<const float*>(
        memory.at(programs.step, {place.buffer, place.offset, place.size_bytes}));
    values.emplace_back(data, data + place.size_bytes / 4);
  }
  return values;
}

}  // namespace lockstep::train
