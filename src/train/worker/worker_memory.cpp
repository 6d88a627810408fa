#include "train/worker/worker_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "base/text.h"
#include "run/program_memory.h"
#include "train/worker/batches.h"

namespace lockstep::train {

WorkerMemory plan_worker_memory(const compile::CompiledRun& run,
                                const compile::CompiledRun::RankPrograms& programs,
                                const data::DataOptions& data) {
  WorkerMemory memory{.device = run::combine_plans(programs.plans()), .host = {}};
  program::MemoryPlan& device = memory.device;
  HostMemory& host = memory.host;
  const bool is_gpu = run.device() == device::DeviceKind::cuda;
  if (is_gpu) {
    host.checkpoint_copy_bytes = std::exchange(nth(device.space_bytes, program::Space::host), 0);
    nth(device.category_bytes, program::Category::staging) -= host.checkpoint_copy_bytes;
    device.total_bytes -= host.checkpoint_copy_bytes;
    host.staging_bytes = largest_tensor_bytes(programs.step);
  }
  const auto micro_batch = run.division().micro_batch;
  // The step twice: once more for its replay, which looks for values that are not finite.
  for (const program::Program* program :
       {&programs.step, &programs.step, &programs.evaluate, &programs.boundary})
    host.staging_bytes += run::staging_bytes(*program, run.graph(), micro_batch, run.device());
  if (program::loads(programs.step))
    host.read_ahead_bytes =
        2 * read_ahead_bytes(run.graph(), micro_batch, data.prefetch_threads, data.prefetch_depth);
  return memory;
}

int64_t largest_tensor_bytes(const program::Program& program) {
  int64_t most = 0;
  for (const auto& place : program.parameters) most = std::max(most, place.size_bytes);
  return most;
}

std::string describe(const WorkerMemory& memory) {
  std::string text = program::describe(memory.device) + "beside it, of the host:\n";
  for (const auto& [name, size_bytes] :
       {std::pair("checkpoint copy", memory.host.checkpoint_copy_bytes),
        std::pair("staging", memory.host.staging_bytes),
        std::pair("read ahead", memory.host.read_ahead_bytes), std::pair("total", memory.host.total_bytes())})
    text += fmt::format("  {:<16}{:>12}\n", name, human_bytes(size_bytes));
  return text;
}

}  // namespace lockstep::train
