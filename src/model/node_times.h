#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor.h"
#include "model/graph.h"

namespace lockstep::model {

/// A node's part of a micro-batch's time.
struct NodeTime {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double backward() const { return backward_input + backward_weight; }
  double all() const { return forward + backward(); }
  NodeTime& operator+=(const NodeTime& other);
  NodeTime& operator*=(double factor);
  bool operator==(const NodeTime&) const = default;
};

/// Estimated times by node, for a micro-batch of so many samples, in floating-point operations: its
/// operations (ops::cost), and its memory traffic at kOperationsPerByte.
std::vector<NodeTime> estimated_times(const Graph& graph, int64_t micro_batch);
/// Operations that a processor does while it moves one byte to or from memory: approximately for a core with
/// vectors of 256 bits, beside others that also compute. Only estimates depend on it.
inline constexpr double kOperationsPerByte = 8;

/// Measured times of nodes.
struct Profile {
  struct Node {
    std::string name;
    NodeTime seconds;
    bool operator==(const Node&) const = default;
  };
  std::string source;  ///< its name in messages: its file
  std::string model;   ///< hash_of(graph), as to_hex has it
  std::string device;  ///< on which kind of device, by device::name_of
  DType storage{};     ///< of activations
  int intra_op_threads = 1;
  int64_t micro_batch = 0;  ///< samples
  std::vector<Node> nodes;  ///< in the order of the graph
  /// Of an optimizer step, for each element of the parameters; with what is proposed before (LAMB).
  double update_seconds = 0;
  bool operator==(const Profile&) const = default;
};
/// Measured times by node, in seconds; for a micro-batch of another size than the profile's, in proportion.
/// Throws ConfigError if the profile is of another model or another storage, or is empty.
std::vector<NodeTime> measured_times(const Graph& graph, int64_t micro_batch, const Profile& profile);

/// Times by fused group, all passes together.
std::vector<double> group_times(const Graph& graph, const std::vector<NodeTime>& nodes);

}  // namespace lockstep::model
