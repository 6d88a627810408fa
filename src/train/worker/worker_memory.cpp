#include "train/worker/worker_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/index.h"
#include "base/text.h"
#include "plan/device_plan.h"
#include "run/program_memory.h"
#include "train/worker/batches.h"

namespace lockstep::train {

namespace {

/// In the host's space of the program that serves: versions of parameters, and where pushes land.
int64_t served_in_host_space(const program::Program& serve) {
  std::set<int> buffers;  // some are of several instructions
  for (const auto& instruction : serve.instructions)
    for (const auto& operand : instruction.operands)
      if (serve.buffer(operand.range.buffer).space == program::Space::host)
        buffers.insert(operand.range.buffer);
  int64_t size_bytes = 0;
  for (const int buffer : buffers) size_bytes += program::placed_bytes(serve.buffer(buffer).size_bytes);
  return size_bytes;
}

/// What AveragedParameters keeps on workers, and the average that every rank gets meanwhile, whole.
int64_t averages_bytes(const model::Graph& graph, const program::Program& step, bool is_worker) {
  int64_t kept = 0, largest = 0;
  for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
    const model::Parameter& parameter = graph.parameter(p);
    if (!parameter.has_state()) continue;
    if (is_worker) kept += step.parameter(p).held_range().size_bytes;
    largest = std::max(largest, int64_t{sizeof(float)} * parameter.spec.shape.count());
  }
  return kept + largest;
}

}  // namespace

int64_t staged_bytes(const program::Program& program, int group, device::DeviceKind device) {
  const auto& [name, members, transport] = program.group(group);
  const bool stages =
      device == device::DeviceKind::cuda && transport == program::Transport::host && members.size() > 1;
  return stages ? run::staged_bytes(program, group) : 0;
}

WorkerMemory plan_worker_memory(const compile::CompiledRun& run,
                                const compile::CompiledRun::RankPrograms& programs,
                                const config::RunConfig& config) {
  const device::DeviceKind device = run.device_of(programs.step.rank);
  WorkerMemory memory{.device = plan::device_plan(programs, device), .host = {}};
  HostMemory& host = memory.host;
  const bool is_gpu = device == device::DeviceKind::cuda;
  if (is_gpu) {
    const program::MemoryPlan whole = program::combine_plans(programs.plans());
    const int64_t in_host_space = nth(whole.space_bytes, program::Space::host);
    host.served_bytes = served_in_host_space(programs.serve);
    host.checkpoint_copy_bytes = in_host_space - host.served_bytes;
    host.staging_bytes = largest_tensor_bytes(programs.step);
  }
  const auto micro_batch = run.division().micro_batch;
  const auto staged_by = [&](const program::Program& program) {
    const auto& code = &program == &programs.evaluate ? run.evaluation_code() : run.training_code();
    return run::staging_bytes(program, run.graph(), micro_batch, device, code.options().packed);
  };
  for (const program::Program* program : {&programs.step, &programs.evaluate, &programs.boundary})
    host.staging_bytes += staged_by(*program);
  // A step's replay looks for values that are not finite. Those of sessions happen once.
  if (!run.layout().has_sessions()) host.staging_bytes += staged_by(programs.step);
  for (const program::Program* program : programs.all())
    for (int group = 0; group < static_cast<int>(program->groups.size()); ++group)
      if (const int64_t bytes = staged_bytes(*program, group, device); bytes > 0)
        host.staging_bytes += bytes + comm::kStagedWordBytes;
  host.served_bytes += staged_by(programs.serve);
  if (program::loads(programs.step))
    for (const program::ModelCode* code : {&run.training_code(), &run.evaluation_code()}) {
      const ReadAheadBytes bytes = read_ahead_bytes(run.graph(), micro_batch, read_ahead_of(config.data, 1),
                                                    is_gpu, code->options().packed);
      host.read_ahead_bytes += bytes.batches + bytes.samples;
      if (is_gpu) host.pinned_read_ahead_bytes += bytes.batches;
    }
  if (config.evaluates_average)
    host.averages_bytes =
        averages_bytes(run.graph(), programs.step, run.ownership().is_worker(programs.step.rank));
  return memory;
}

int64_t largest_tensor_bytes(const program::Program& program) {
  int64_t most = 0;
  for (const auto& place : program.parameters) most = std::max(most, place.size_bytes);
  return most;
}

std::string describe(const WorkerMemory& memory) {
  std::string text = program::describe(memory.device) + "beside it, of the host:\n";
  const auto add = [&](std::string_view name, int64_t size_bytes) {
    text += fmt::format("  {:<16}{:>12}\n", name, human_bytes(size_bytes));
  };
  add("checkpoint copy", memory.host.checkpoint_copy_bytes);
  add("staging", memory.host.staging_bytes);
  if (memory.host.served_bytes > 0) add("served", memory.host.served_bytes);
  add("read ahead", memory.host.read_ahead_bytes);
  if (memory.host.averages_bytes > 0) add("averages", memory.host.averages_bytes);
  add("total", memory.host.total_bytes());
  return text;
}

}  // namespace lockstep::train
