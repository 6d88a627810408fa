#include "train/start/run_traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/shell_text.h"
#include "base/text.h"
#include "plan/largest_batch.h"
#include "plan/other_layouts.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

/// "lockstep compare CONFIG --workers 2 --layouts 'pp=1; pp=2' --out comparison". "" if there is no other
/// layout.
std::string compare_command(const Worker& worker, const RunCircumstances& circumstances) {
  const compile::CompiledRun& run = worker.compiled();
  std::vector<layout::Layout> layouts = plan::other_layouts(run, compile_options(worker.config()),
                                                            worker.compile_facts(), circumstances.gets_on);
  if (layouts.empty()) return "";
  layouts.insert(layouts.begin(), run.layout());
  std::vector<std::string> names;
  for (layout::Layout& layout : layouts) {
    layout.dp = 0;
    names.push_back(layout::to_string(layout));
  }
  std::vector<std::string> words = {"lockstep", "compare"};
  const auto& config = circumstances.config_words;
  if (config.empty())
    words.emplace_back("CONFIG");
  else
    words.insert(words.end(), config.begin(), config.end());
  words.insert(words.end(), {"--workers", fmt::to_string(run.layout().workers()), "--layouts",
                             join(names, "; "), "--out", "comparison"});
  // compare proves equal bits under REPRODUCIBLE, which these do not have.
  const auto algorithm = worker.config().parallel.algorithm;
  if (algorithm == parallel::AllReduceAlgorithm::ring || algorithm == parallel::AllReduceAlgorithm::library)
    words.insert(words.end(), {"--proof-steps", "0"});
  if (!circumstances.one_host) words.insert(words.end(), {"--hostfile", "FILE"});
  return shell_line(words);
}

std::optional<observe::LargerBatch> largest_batch(const Worker& worker, int64_t limit_bytes,
                                                  const std::function<void()>& gets_on) {
  const config::RunConfig& config = worker.config();
  if (config.device.memory_limit > 0) limit_bytes = std::min(limit_bytes, config.device.memory_limit);
  const auto found = plan::largest_batch(compile_options(config), worker.compile_facts(), limit_bytes,
                                         worker.train_data().size(), gets_on)
                         .fit;
  if (!found || found->global_batch <= worker.compiled().division().global_batch) return {};
  const bool replicas_follow =
      config.parallel.reduction == layout::Reduction::reproducible && !config.states_virtual_replicas;
  return observe::LargerBatch{
      .micro_batch = found->micro_batch,
      .global_batch = found->global_batch,
      .bytes = found->bytes,
      .virtual_replicas = replicas_follow ? config::resolved_virtual_replicas(config.trainer) : 0};
}

}  // namespace

observe::RunTraits run_traits(const Worker& worker, const RunCircumstances& circumstances) {
  const config::RunConfig& config = worker.config();
  observe::RunTraits traits{
      .on_gpus = worker.compiled().device() == device::DeviceKind::cuda,
      .float32 = config.precision.compute == config::ComputeType::float32,
      .micro_batch = worker.compiled().division().micro_batch,
      .prefetch_threads = config.data.prefetch_threads,
      .intra_op_threads = config.parallel.intra_op_threads,
      .reading_adapts = config.data.threads_adapt,
      .saves_in_background = config.checkpoint.background,
      .saves = circumstances.saves,
      .faster_layout = circumstances.faster_layout,
  };
  if (circumstances.goes_on) return traits;
  traits.compare_command = [&worker, circumstances] { return compare_command(worker, circumstances); };
  traits.largest_batch = [&worker, gets_on = circumstances.gets_on](int64_t limit) {
    return largest_batch(worker, limit, gets_on);
  };
  return traits;
}

}  // namespace lockstep::train
