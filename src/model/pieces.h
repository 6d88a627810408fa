#pragma once

#include <vector>

#include "model/graph.h"

namespace lockstep::model {

/// What a fused group takes of a micro-batch's time, forward and backward, in units of floating-point
/// operations: those that it does (ops::cost), and its traffic with memory at kOperationsPerByte.
std::vector<double> group_times(const Graph& graph);
/// How many operations a processor does in the time in which it moves a byte to or from memory: about that of
/// a core with vectors of 256 bits beside others that compute, too. Only the balance of cuts depends on it.
inline constexpr double kOperationsPerByte = 8;

/// Divides a graph into consecutive pieces, as the ranks of a pipeline hold them: the last node of each,
/// ascending. Cuts lie between fused groups. The slowest piece is as fast as it can be; of the divisions for
/// which that is so, fewest bytes cross the cuts, and then the earliest cut is the earliest. Throws
/// ConfigError where there are fewer groups than pieces.
std::vector<int> divide_into_pieces(const Graph& graph, int pieces);

/// Values that are made at or before `node` and read after it, each once, views as what they are views of:
/// what must pass from what lies before a cut to what lies behind it. Model inputs are everybody's.
std::vector<int> values_crossing(const Graph& graph, int node);

}  // namespace lockstep::model
