#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "control/progress.h"
#include "infer/language_model.h"
#include "tokenizer/tokenizer.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// What trainer.sample asks for: text that the model writes while it trains. Rank 0 has a copy of the model
/// for it, in float32 on the CPU. Only reads what is trained.
class TextSamples {
 public:
  /// Throws CollectiveError, on all ranks alike, if the data's tokens stand for no text, or no token stands
  /// for a character of the prompt. REQUIRES: the config asks for samples, and the layout has no sessions.
  explicit TextSamples(const Worker& worker);

  /// Whether there is a text after so many complete steps, of so many in all. The same on all ranks.
  bool is_due(int64_t step, int64_t total_steps) const {
    return step % options_.every_steps == 0 || step == total_steps;
  }
  /// COLLECTIVE: rank 0 gets the parameters and writes; returns the prompt and what follows there, and
  /// nothing on other ranks. `progress` may be null. Throws DataError on rank 0 if logits are no numbers.
  std::string write(comm::Communicator& world, control::Progress* progress);

 private:
  void read_parameters(comm::Communicator& world, control::Progress* progress);

  const Worker& worker_;
  config::SampleOptions options_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<infer::LanguageModel> model_;  // on rank 0
};

}  // namespace lockstep::train
