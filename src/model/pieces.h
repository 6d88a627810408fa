#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/graph.h"

namespace lockstep::model {

/// Whether a device has room for groups [first, last) as a piece, by its number.
using PieceFits = std::function<bool(int piece, int first, int last)>;

/// Divides a graph into consecutive pieces, as the ranks of a pipeline hold them: the last node of each,
/// ascending. Cuts lie between fused groups, each of which takes its `group_times`. The slowest piece is as
/// fast as it can be; of the divisions for which that is so, fewest bytes cross the cuts, and then the
/// earliest cut is the earliest. Throws ConfigError if there are fewer groups than pieces. `fits`: of the
/// divisions whose pieces all do; empty if there is none.
std::vector<int> divide_into_pieces(const Graph& graph, const std::vector<double>& group_times, int pieces,
                                    const PieceFits& fits = {});

/// Likewise pieces that begin with these nodes, by name, but for the first piece. Throws ConfigError, naming
/// the nearest that would do, where there is no such node, where they are not in the order of the graph, or
/// where a cut would lie within a fused group.
std::vector<int> cut_before(const Graph& graph, const std::vector<std::string>& names);
/// The nodes with which the groups of a graph begin.
std::vector<int> group_begins(const Graph& graph);

/// Values that are made at or before `node` and read after it, each once, views as what they are views of:
/// what must pass from what lies before a cut to what lies behind it. Model inputs are everybody's.
std::vector<int> values_crossing(const Graph& graph, int node);

}  // namespace lockstep::model
