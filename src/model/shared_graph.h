#pragma once

#include <memory>

#include "model/graph.h"

namespace lockstep::model {

/// A model's graph in float32, made once for all who look at it. Throws ConfigError as make_graph() does.
std::shared_ptr<const Graph> share_graph(const ModelSpec& spec);

/// The same graph with its values stored in another type: float32, bfloat16 or float16.
Graph stored_as(Graph graph, DType compute);

}  // namespace lockstep::model
