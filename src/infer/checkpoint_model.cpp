#include "infer/checkpoint_model.h"

#include "base/index.h"

namespace lockstep::infer {

void load_parameters(Evaluator& evaluator, const checkpoint::Checkpoint& checkpoint,
                     checkpoint::Weights weights) {
  std::vector<checkpoint::TensorRecord> records;
  std::vector<checkpoint::TensorDestination> destinations;
  const auto& parameters = evaluator.graph().parameters;
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    const auto& parameter = nth(parameters, p);
    records.push_back({.name = parameter.name, .shape = parameter.spec.shape});
    destinations.push_back(
        {.name = parameter.name, .shape = parameter.spec.shape, .data = evaluator.parameter(p).data});
  }
  checkpoint.require_exactly(checkpoint::FileKind::model, records);
  checkpoint.load_weights(weights, destinations);
}

}  // namespace lockstep::infer
