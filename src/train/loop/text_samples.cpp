#include "train/loop/text_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/agreement.h"
#include "data/documents.h"
#include "lockstep/error.h"
#include "tokenizer/tokenizer_file.h"
#include "train/faults/position.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

std::unique_ptr<tokenizer::Tokenizer> tokenizer_of(const data::Dataset& data) {
  auto tokenizer = tokenizer::tokenizer_among(data.encodings(), "");
  if (!tokenizer)
    throw ConfigError("nobody knows what the data's tokens stand for: they come without a tokenizer");
  return std::make_unique<tokenizer::Tokenizer>(std::move(*tokenizer));
}

}  // namespace

TextSamples::TextSamples(const Worker& worker) try
    : worker_(worker),
      options_(worker.config().trainer.sample),
      tokenizer_(tokenizer_of(worker.train_data())),
      prompt_(tokenizer_->encode(options_.prompt)) {
  const model::Graph& graph = worker.compiled().graph();
  const int64_t vocabulary = graph.value(graph.node(graph.loss).inputs[0]).spec.shape[-1];
  if (const int32_t largest = std::ranges::max(prompt_); largest >= vocabulary)
    throw ConfigError(
        fmt::format("the prompt has token {}, but the model knows {} tokens", largest, vocabulary));
} catch (const Error& error) {
  throw comm::CollectiveError(fmt::format("trainer.sample: {}; change it, or leave it out", error.what()),
                              ExitCode::usage);
}

void TextSamples::read_parameters(comm::Communicator& world, control::Progress* progress) {
  worker_.finish_step();
  // The same on all ranks: then no other rank is needed.
  const bool rank_0_has_all = worker_.compiled().ownership().holds_all(0);
  infer::Evaluator* to = model_ ? &model_->evaluator() : nullptr;
  if (rank_0_has_all && to == nullptr) return;
  for (int p = 0; p < static_cast<int>(worker_.compiled().graph().parameters.size()); ++p) {
    enter_phase(progress, Phase::write_text);
    const int64_t bytes = 4 * worker_.compiled().graph().parameter(p).spec.shape.count();
    if (rank_0_has_all) {
      std::memcpy(to->parameter(p).data, worker_.window().read(worker_.parameter_data(p), bytes),
                  static_cast<size_t>(bytes));
    } else {
      const std::vector<float> values = gather_parameter(worker_, world, p);
      if (to != nullptr) std::ranges::copy(values, to->parameter(p).as<float>());
    }
  }
}

std::string TextSamples::write(comm::Communicator& world, control::Progress* progress) {
  const config::RunConfig& config = worker_.config();
  if (world.rank() == 0 && !model_)
    model_ =
        std::make_unique<infer::LanguageModel>(*config.graph, std::max(1, config.parallel.intra_op_threads),
                                               data::begin_of_documents(config.data, tokenizer_.get()));
  read_parameters(world, progress);
  if (!model_) return "";
  // The same random numbers each time: what differs is what was learned.
  const infer::WritingOptions writing{.sampling = {.temperature = options_.temperature},
                                      .tokens = options_.tokens,
                                      .seed = config.trainer.seed,
                                      .vocabulary = tokenizer_->size(),
                                      .end = tokenizer_->end_of_text().value_or(-1)};
  std::vector<int32_t> written =
      model_->write(prompt_, writing, [&](int32_t) { enter_phase(progress, Phase::write_text); });
  if (!written.empty() && written.back() == writing.end) written.pop_back();
  return options_.prompt + tokenizer_->decode(written);
}

}  // namespace lockstep::train
