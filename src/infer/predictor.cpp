#include "infer/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/index.h"
#include "data/batch_reader.h"
#include "lockstep/error.h"

namespace lockstep::infer {
namespace {

/// As many samples at once as keep all values of the model below this, up to 64.
constexpr int64_t kValueBytes = int64_t{256} << 20, kMostAtOnce = 64;

int64_t batch_of(const model::Graph& graph) {
  int64_t bytes = 1;
  for (const model::Value& value : graph.values)
    bytes += value.spec.shape.count() * size_of(value.spec.dtype);
  return std::clamp<int64_t>(kValueBytes / bytes, 1, kMostAtOnce);
}

const model::Value* compared(const model::Graph& graph) {
  const model::Node& loss = graph.node(graph.loss);
  return loss.inputs.size() > 1 ? &graph.value(loss.inputs[1]) : nullptr;
}

/// Data have NaN for what they do not know.
std::span<const float> known_target(std::span<const float> target) {
  const bool is_known = std::ranges::none_of(target, [](float value) { return std::isnan(value); });
  return is_known ? target : std::span<const float>{};
}

bool is_input(const model::Value* value) { return value != nullptr && value->producer < 0; }

}  // namespace

Predictor::Predictor(model::Graph graph, int threads)
    : evaluator_(graph, threads, batch_of(graph)) {}  // a copy: its batch is counted first

Shape Predictor::output_shape() const {
  const model::Graph& graph = evaluator_.graph();
  return graph.value(graph.node(graph.loss).inputs[0]).spec.shape;
}

bool Predictor::has_cross_entropy() const {
  const model::Graph& graph = evaluator_.graph();
  return std::holds_alternative<SoftmaxCrossEntropy>(graph.node(graph.loss).op);
}

std::vector<std::string> Predictor::fields_in(const data::Dataset& dataset) const {
  const model::Graph& graph = evaluator_.graph();
  std::vector<std::string> names;
  for (const int id : graph.inputs) {
    const model::Value& input = graph.value(id);
    const auto field = std::ranges::find(dataset.fields(), input.name, &data::Field::name);
    if (field == dataset.fields().end() && &input == compared(graph)) continue;
    if (field == dataset.fields().end())
      throw ConfigError(fmt::format("the model reads '{}', which the samples do not have", input.name));
    if (field->spec != TensorSpec{input.spec.shape, input.spec.dtype})
      throw ConfigError(fmt::format("'{}' of a sample is {} {}, but the model reads {} {}", input.name,
                                    name_of(field->spec.dtype), field->spec.shape.to_string(),
                                    name_of(input.spec.dtype), input.spec.shape.to_string()));
    names.push_back(input.name);
  }
  return names;
}

void Predictor::predict(const data::Dataset& dataset, const std::function<void(const Prediction&)>& visit) {
  const std::vector<std::string> fields = fields_in(dataset);
  const data::EvaluationReader reader(dataset, fields);
  std::vector<Tensor> inputs;
  for (const std::string& field : fields) inputs.push_back(evaluator_.input(field));
  const model::Value* truth = compared(evaluator_.graph());
  const bool knows = is_input(truth) && std::ranges::find(fields, truth->name) != fields.end();
  const Tensor known = knows ? evaluator_.input(truth->name) : Tensor{};
  const auto width = static_cast<size_t>(output_shape().count());
  const auto* entropy =
      std::get_if<SoftmaxCrossEntropy>(&evaluator_.graph().node(evaluator_.graph().loss).op);
  for (int64_t first = 0; first < dataset.size(); first += evaluator_.batch()) {
    reader.read({first, evaluator_.batch()}, inputs);
    const auto* outputs = evaluator_.evaluate().as<const float>();
    for (int64_t i = 0; i < std::min(evaluator_.batch(), dataset.size() - first); ++i) {
      Prediction prediction{.sample = first + i,
                            .outputs = {outputs + static_cast<size_t>(i) * width, width}};
      if (knows && entropy == nullptr && known.dtype == DType::float32)
        prediction.target = known_target({known.as<const float>() + static_cast<size_t>(i) * width, width});
      if (knows && entropy != nullptr && tells_classes())
        if (const int32_t label = known.as<const int32_t>()[i]; label >= 0 && label != entropy->ignore_index)
          prediction.label = label;
      visit(prediction);
    }
  }
}

std::vector<float> outputs_of(Predictor& predictor, const data::Dataset& dataset) {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(dataset.size() * predictor.output_shape().count()));
  predictor.predict(dataset, [&](const Prediction& prediction) {
    all.insert(all.end(), prediction.outputs.begin(), prediction.outputs.end());
  });
  return all;
}

std::vector<double> probabilities(std::span<const float> logits) {
  const auto no_number =
      std::ranges::find_if(logits, [](float logit) { return !std::isfinite(logit); }) != logits.end();
  if (no_number || logits.empty())
    throw DataError("the model's logits are not finite: its training diverged, or the sample is no number");
  const double largest = std::ranges::max(logits);
  std::vector<double> weights;
  for (const float logit : logits) weights.push_back(std::exp(static_cast<double>(logit) - largest));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

int64_t most_probable(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

int64_t Confusion::samples() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

int64_t Confusion::correct() const {
  int64_t right = 0;
  for (int64_t c = 0; c < classes; ++c) right += count(c, c);
  return right;
}

}  // namespace lockstep::infer
