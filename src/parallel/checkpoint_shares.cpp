#include "parallel/checkpoint_shares.h"

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

int slots_of(const Parameter& parameter, int state_slots) {
  return parameter.spec.role == ParameterRole::weight ? state_slots : 0;
}

int64_t size_bytes_of(const Parameter& parameter) {
  return parameter.spec.shape.count() * size_of(DType::float32);
}

}  // namespace

CheckpointShares divide_checkpoint(const Graph& graph, int state_slots, int ranks) {
  const auto& parameters = graph.parameters;
  const auto with_state = [&](int p) {
    const auto& parameter = parameters[static_cast<size_t>(p)];
    return size_bytes_of(parameter) * (1 + slots_of(parameter, state_slots));
  };
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return with_state(a) > with_state(b); });

  std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
  std::vector<std::vector<int>> owned(static_cast<size_t>(ranks));
  for (const int p : order) {
    const auto rank = static_cast<size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    bytes[rank] += with_state(p);
    owned[rank].push_back(p);
  }

  CheckpointShares shares;
  for (auto& own : owned) {
    std::sort(own.begin(), own.end());
    auto& share = shares.emplace_back();
    for (const int p : own) share.push_back({p, -1, size_bytes_of(parameters[static_cast<size_t>(p)])});
    for (const int p : own) {
      const auto& parameter = parameters[static_cast<size_t>(p)];
      for (int slot = 0; slot < slots_of(parameter, state_slots); ++slot)
        share.push_back({p, slot, size_bytes_of(parameter)});
    }
  }
  return shares;
}

int64_t size_bytes_of(const std::vector<SavedTensor>& share) {
  int64_t bytes = 0;
  for (const auto& tensor : share) bytes += tensor.size_bytes;
  return bytes;
}

}  // namespace lockstep
