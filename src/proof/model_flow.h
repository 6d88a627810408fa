#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"
#include "model/partition.h"

namespace lockstep::proof {

/// What a segment receives and passes on: values, ascending, by the value whose memory they use
/// (Value::storage, gradient_storage). A value with several readers has a fork for each further one, and each
/// end of a fork has its own gradient; so lists of gradients name every use.
struct SegmentFlow {
  std::vector<int> inputs;            ///< made before it, read in it
  std::vector<int> outputs;           ///< made in it, read after it
  std::vector<int> output_gradients;  ///< of values made in it, computed after it
  std::vector<int> input_gradients;   ///< of values made before it, computed in it
  /// Among the gradients that cross its ends in either direction, those from which gradients of parameters
  /// are computed, if these are computed apart from those of inputs.
  std::vector<int> weight_gradients;
  bool operator==(const SegmentFlow&) const = default;
};

/// What flows between the segments of a model, derived only from its graph, not from memory layouts of
/// segments or from programs.
struct ModelFlow {
  struct Parameter {
    std::string name;
    int64_t size_bytes;
    std::vector<int> uses;  ///< segments, in graph order
    bool frozen = false;
  };
  std::vector<SegmentFlow> segments;
  std::vector<Parameter> parameters;
  std::vector<int> inputs;         ///< values that batches bring
  std::vector<std::string> names;  ///< by value
};

ModelFlow flow_of(const model::Graph& graph, const model::Partition& partition);

}  // namespace lockstep::proof
