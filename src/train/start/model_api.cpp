#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "data/class_names.h"
#include "data/documents.h"
#include "data/own_samples.h"
#include "device/openmp_team.h"
#include "infer/checkpoint_model.h"
#include "infer/language_model.h"
#include "infer/predictor.h"
#include "lockstep/predict.h"
#include "tokenizer/tokenizer_file.h"
#include "train/checkpoints/kept_config.h"

namespace lockstep {

struct Model::Parts {
  Parts(train::OpenedRun opened, int thread_count)
      : run(std::move(opened)),
        threads(thread_count),
        predictor(*run.config.graph, threads),
        shape(predictor.output_shape()),
        classes(data::class_names_among(run.checkpoint.manifest().encodings)) {
    infer::load_parameters(predictor.evaluator(), run.checkpoint, run.weights);
    const model::Graph& graph = predictor.evaluator().graph();
    for (const int id : graph.inputs)
      if (const model::Value& input = graph.value(id); input.consumer != graph.loss)
        inputs.push_back({input.name, {input.spec.shape, input.spec.dtype}});
  }

  const train::OpenedRun run;
  const int threads;
  infer::Predictor predictor;
  const Shape shape;
  const std::vector<std::string> classes;
  std::vector<ModelInput> inputs;
  // Made when they are asked for.
  std::optional<tokenizer::Tokenizer> tokenizer;
  std::optional<infer::LanguageModel> writer;
};

Model::Model(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

namespace {

std::optional<bool> wish_of(ModelWeights weights) {
  return weights == ModelWeights::as_evaluated ? std::nullopt
                                               : std::optional(weights == ModelWeights::averages);
}

}  // namespace

Model Model::open(const std::string& checkpoint, int threads, ModelWeights weights) {
  require(threads >= 0, fmt::format("Model::open: threads must be 0 or more, is {}", threads));
  if (threads == 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  device::set_openmp_team(threads);
  return Model(std::make_unique<Parts>(
      train::open_run(checkpoint, "", {}, wish_of(weights), "open a run's folder, or a checkpoint in it"),
      threads));
}

int64_t Model::step() const { return parts_->run.checkpoint.manifest().step; }
const std::vector<ModelInput>& Model::inputs() const { return parts_->inputs; }
const Shape& Model::output_shape() const { return parts_->shape; }
const std::vector<std::string>& Model::classes() const { return parts_->classes; }

std::vector<float> Model::outputs(const Samples& samples) {
  const auto dataset = SamplesAccess::dataset_of(samples);
  return dataset == nullptr ? std::vector<float>{} : infer::outputs_of(parts_->predictor, *dataset);
}

std::string Model::write(const std::string& prompt, const WritingWishes& wishes) {
  const infer::SamplingOptions sampling{
      .temperature = wishes.temperature, .top_k = wishes.top_k, .top_p = wishes.top_p};
  infer::check(sampling);
  require(wishes.tokens >= 0, fmt::format("Model::write: tokens must be 0 or more, is {}", wishes.tokens));
  if (!parts_->tokenizer) {
    const checkpoint::Checkpoint& checkpoint = parts_->run.checkpoint;
    parts_->tokenizer = tokenizer::tokenizer_among(checkpoint.manifest().encodings, checkpoint.path());
    require(parts_->tokenizer.has_value(),
            fmt::format("Model::write: {} does not say what its tokens stand for: it was not trained on text",
                        checkpoint.path()));
  }
  const tokenizer::Tokenizer& tokenizer = *parts_->tokenizer;
  if (!parts_->writer) {
    parts_->writer.emplace(*parts_->run.config.graph, parts_->threads,
                           data::begin_of_documents(parts_->run.config.data, &tokenizer));
    infer::load_parameters(parts_->writer->evaluator(), parts_->run.checkpoint, parts_->run.weights);
  }
  const infer::WritingOptions options{.sampling = sampling,
                                      .tokens = wishes.tokens,
                                      .seed = wishes.seed,
                                      .vocabulary = tokenizer.size(),
                                      .end = tokenizer.end_of_text().value_or(-1)};
  std::string text;
  parts_->writer->write(tokenizer.encode(prompt), options, [&](int32_t token) {
    if (token == options.end) return;
    const std::string piece = tokenizer.decode({&token, 1});
    text += piece;
    if (wishes.on_piece) wishes.on_piece(piece);
  });
  return text;
}

std::vector<float> probabilities(const std::vector<float>& logits, int64_t width) {
  require(width > 0 && static_cast<int64_t>(logits.size()) % width == 0,
          fmt::format("probabilities: {} logits are no whole rows of {}", logits.size(), width));
  std::vector<float> all;
  for (size_t first = 0; first < logits.size(); first += static_cast<size_t>(width))
    for (const double share : infer::probabilities({logits.data() + first, static_cast<size_t>(width)}))
      all.push_back(static_cast<float>(share));
  return all;
}

}  // namespace lockstep
