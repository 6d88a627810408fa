#include <utility>

#include "lockstep/model.h"
#include "model/graph.h"

namespace lockstep {

ModelBuilder::Ref ModelBuilder::input(std::string name, TensorSpec spec) {
  spec_.inputs.push_back({name, std::move(spec)});
  return {std::move(name)};
}

ModelBuilder::Ref ModelBuilder::add(std::string name, Op op, std::vector<Ref> inputs, std::vector<Tie> ties) {
  Layer layer{.name = name, .op = std::move(op), .ties = std::move(ties)};
  for (auto& input : inputs) layer.inputs.push_back(std::move(input.name));
  spec_.layers.push_back(std::move(layer));
  return {std::move(name)};
}

ModelSpec ModelBuilder::build() {
  model::make_graph(spec_);  // whatever is wrong with the model is thrown from here
  return std::exchange(spec_, {});
}

}  // namespace lockstep
