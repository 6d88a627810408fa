#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/graph.h"

namespace lockstep::model {

/// Whether groups [first, last) fit into a device as piece number `piece`.
using PieceFits = std::function<bool(int piece, int first, int last)>;

/// Divides a graph into consecutive pieces for the ranks of a pipeline. Returns the last node of each piece,
/// ascending. Cuts are between fused groups, whose times are `group_times`. Cuts minimise the slowest piece's
/// time, then the bytes that cross them; among equals the earliest cut is taken. Throws ConfigError if there
/// are fewer groups than pieces. `fits`: considers only divisions whose pieces all fit; empty if there is
/// none.
std::vector<int> divide_into_pieces(const Graph& graph, const std::vector<double>& group_times, int pieces,
                                    const PieceFits& fits = {});

/// The same for pieces that begin with these nodes, by name, except the first piece. Throws ConfigError,
/// which names the nearest valid node, if there is no such node, if nodes are not in the graph's order, or if
/// a cut would be within a fused group.
std::vector<int> cut_before(const Graph& graph, const std::vector<std::string>& names);
/// The first nodes of a graph's groups.
std::vector<int> group_begins(const Graph& graph);

/// Values that are made at or before `node` and read after it, each once; a view counts as the value behind
/// it. These must pass over a cut after `node`. Model inputs are available everywhere and do not count.
std::vector<int> values_crossing(const Graph& graph, int node);

}  // namespace lockstep::model
