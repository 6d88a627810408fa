#include "layout/norm_chunks.h"

namespace lockstep::layout {

NormChunks norm_chunks_of(const model::Graph& graph) {
  NormChunks chunks;
  chunks.first.resize(graph.parameters.size());
  for (const ops::ParameterRole role : {ops::ParameterRole::weight, ops::ParameterRole::statistic}) {
    for (size_t p = 0; p < graph.parameters.size(); ++p) {
      const auto& spec = graph.parameters[p].spec;
      if (spec.role != role) continue;
      chunks.first[p] = chunks.count;
      chunks.count += (spec.shape.count() + kNormChunk - 1) / kNormChunk;
    }
    if (role == ops::ParameterRole::weight) chunks.weights = chunks.count;
  }
  return chunks;
}

}  // namespace lockstep::layout
