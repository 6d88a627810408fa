#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor.h"
#include "model/graph.h"

namespace lockstep::model {

/// What a node takes of a micro-batch's time.
struct NodeTime {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double backward() const { return backward_input + backward_weight; }
  double all() const { return forward + backward(); }
  NodeTime& operator+=(const NodeTime& other);
  NodeTime& operator*=(double factor);
  bool operator==(const NodeTime&) const = default;
};

/// By node, of a micro-batch of so many samples, in units of floating-point operations: those that it does
/// (ops::cost), and its traffic with memory at kOperationsPerByte.
std::vector<NodeTime> estimated_times(const Graph& graph, int64_t micro_batch);
/// How many operations a processor does in the time in which it moves a byte to or from memory: about that of
/// a core with vectors of 256 bits beside others that compute, too. Only estimates depend on it.
inline constexpr double kOperationsPerByte = 8;

/// What nodes took where they were measured.
struct Profile {
  struct Node {
    std::string name;
    NodeTime seconds;
    bool operator==(const Node&) const = default;
  };
  std::string source;  ///< what messages call it: its file
  std::string model;   ///< hash_of(graph), as to_hex has it
  std::string device;  ///< on which kind of device, by device::name_of
  DType storage{};     ///< of activations
  int intra_op_threads = 1;
  int64_t micro_batch = 0;    ///< samples
  std::vector<Node> nodes;    ///< in the order of the graph
  double update_seconds = 0;  ///< of an optimizer step, for each element of the parameters
  bool operator==(const Profile&) const = default;
};
/// By node, in seconds; of a micro-batch of another size than the profile's, in proportion to it. Throws
/// ConfigError where it is of another model or another storage, or says nothing.
std::vector<NodeTime> measured_times(const Graph& graph, int64_t micro_batch, const Profile& profile);

/// By fused group, of all passes.
std::vector<double> group_times(const Graph& graph, const std::vector<NodeTime>& nodes);

}  // namespace lockstep::model
