#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "run/executor.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Fields that depend on the place in the global batch alone.
class NumberedBatches : public run::BatchSource {
 public:
  void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) override;
};

/// One rank's step program with what executors need to run it, and nothing of the trainer.
struct ProgramRank {
  /// Puts something around the communicator of a group.
  using Wrap =
      std::function<std::unique_ptr<comm::Communicator>(int group, std::unique_ptr<comm::Communicator>)>;

  /// COLLECTIVE over `world`: makes a communicator for each group.
  ProgramRank(const config::RunConfig& config, int rank, run::BatchSource& batches, comm::Communicator& world,
              bool shared_memory = false, const Wrap& wrap = {});

  std::vector<std::vector<float>> parameters() const;

  compile::CompiledRun run;
  compile::CompiledRun::RankPrograms programs;
  std::unique_ptr<device::Device> device;
  run::ProgramMemory memory;
  std::vector<std::unique_ptr<comm::Communicator>> channels;  // by group
  run::ExecutionContext context;
};

}  // namespace lockstep::train
