#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "run/executor.h"
#include "train/worker/worker.h"

namespace lockstep {

/// Fields that depend on the place in the global batch alone.
class NumberedBatches : public BatchSource {
 public:
  void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) override;
};

/// One rank's step program with what executors need to run it, and nothing of the trainer.
struct ProgramRank {
  /// Puts something around the communicator of a group.
  using Wrap = std::function<std::unique_ptr<Communicator>(int group, std::unique_ptr<Communicator>)>;

  /// COLLECTIVE over `world`: makes a communicator for each group.
  ProgramRank(const RunConfig& config, int rank, BatchSource& batches, Communicator& world,
              bool shared_memory = false, const Wrap& wrap = {});

  std::vector<std::vector<float>> parameters() const;

  CompiledRun run;
  CompiledRun::RankPrograms programs;
  std::unique_ptr<Device> device;
  ProgramMemory memory;
  std::vector<std::unique_ptr<Communicator>> channels;  // by group
  ExecutionContext context;
};

}  // namespace lockstep
