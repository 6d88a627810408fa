#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"
#include "model/partition.h"

namespace lockstep::proof {

/// What a segment hands on and gets: values by whose memory is theirs (Value::storage, gradient_storage),
/// ascending. A value that several nodes read has a fork for each further one, and every end of a fork has a
/// gradient of its own: so lists of gradients name every use.
struct SegmentFlow {
  std::vector<int> inputs;            ///< made before it, read in it
  std::vector<int> outputs;           ///< made in it, read after it
  std::vector<int> output_gradients;  ///< of values made in it, computed after it
  std::vector<int> input_gradients;   ///< of values made before it, computed in it
  /// Of those that cross its ends in either direction, what gradients of parameters are computed from, where
  /// they are computed apart from those of inputs.
  std::vector<int> weight_gradients;
  bool operator==(const SegmentFlow&) const = default;
};

/// What flows between the segments of a model, as its graph alone says: neither how segments lay out their
/// memory nor what programs say is asked.
struct ModelFlow {
  struct Parameter {
    std::string name;
    int64_t size_bytes;
    std::vector<int> uses;  ///< segments, in graph order
  };
  std::vector<SegmentFlow> segments;
  std::vector<Parameter> parameters;
  std::vector<int> inputs;         ///< values that batches bring
  std::vector<std::string> names;  ///< by value
};

ModelFlow flow_of(const model::Graph& graph, const model::Partition& partition);

}  // namespace lockstep::proof
