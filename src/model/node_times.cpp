#include "model/node_times.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::model {
namespace {

NodeTime time_of(const Graph& graph, const Node& node, int64_t micro_batch) {
  std::vector<TensorSpec> inputs;
  for (const int input : node.inputs) inputs.push_back(graph.logical_spec(input));
  const ops::OpCost cost = ops::cost(node.op, inputs, micro_batch);
  NodeTime time{.forward = cost.forward_flops + kOperationsPerByte * cost.forward_bytes};
  if (!graph.runs_backward(node)) return time;
  time.backward_input = cost.backward_input_flops + kOperationsPerByte * cost.backward_input_bytes;
  if (!node.frozen)
    time.backward_weight = cost.backward_weight_flops + kOperationsPerByte * cost.backward_weight_bytes;
  return time;
}

[[noreturn]] void refuse(const Profile& profile, const std::string& what) {
  throw ConfigError(fmt::format("profile {}: {}; measure this config: lockstep profile CONFIG --out FILE",
                                profile.source, what));
}

}  // namespace

NodeTime& NodeTime::operator+=(const NodeTime& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  return *this;
}

NodeTime& NodeTime::operator*=(double factor) {
  forward *= factor;
  backward_input *= factor;
  backward_weight *= factor;
  return *this;
}

std::vector<NodeTime> estimated_times(const Graph& graph, int64_t micro_batch) {
  std::vector<NodeTime> times;
  for (const auto& node : graph.nodes) times.push_back(time_of(graph, node, micro_batch));
  return times;
}

std::vector<NodeTime> measured_times(const Graph& graph, int64_t micro_batch, const Profile& profile) {
  if (profile.storage != graph.compute)
    refuse(profile, fmt::format("was measured with {}, but this model stores {}", name_of(profile.storage),
                                name_of(graph.compute)));
  if (profile.model != to_hex(hash_of(graph))) refuse(profile, "is of another model");
  if (profile.nodes.size() != graph.nodes.size())
    refuse(profile,
           fmt::format("has {} layers, but this model has {}", profile.nodes.size(), graph.nodes.size()));
  std::vector<NodeTime> times;
  double all = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (profile.nodes[n].name != graph.nodes[n].name)
      refuse(profile, fmt::format("its layer {} is {}, but this model's is {}", n + 1, profile.nodes[n].name,
                                  graph.nodes[n].name));
    times.push_back(profile.nodes[n].seconds);
    times.back() *= static_cast<double>(micro_batch) / static_cast<double>(profile.micro_batch);
    all += times.back().all();
  }
  if (!(all > 0)) refuse(profile, "says that no layer takes any time");
  return times;
}

std::vector<double> group_times(const Graph& graph, const std::vector<NodeTime>& nodes) {
  std::vector<double> times(static_cast<size_t>(graph.group_count), 0);
  for (size_t n = 0; n < nodes.size(); ++n) nth(times, graph.nodes[n].group) += nodes[n].all();
  return times;
}

}  // namespace lockstep::model
