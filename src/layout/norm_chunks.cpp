#include "layout/norm_chunks.h"

#include "base/index.h"

namespace lockstep::layout {

NormChunks norm_chunks_of(const model::Graph& graph) {
  NormChunks chunks;
  chunks.first.resize(graph.parameters.size());
  for (const ops::ParameterRole role : {ops::ParameterRole::weight, ops::ParameterRole::statistic}) {
    for (size_t p = 0; p < graph.parameters.size(); ++p) {
      const auto& spec = graph.parameters[p].spec;
      if (spec.role != role) continue;
      chunks.first[p] = chunks.count;
      chunks.count += chunks_in(spec.shape.count());
    }
    if (role == ops::ParameterRole::weight) chunks.weights = chunks.count;
  }
  return chunks;
}

int NormChunks::parameter_of(int64_t chunk) const {
  int found = -1;
  for (size_t p = 0; p < first.size(); ++p)
    if (first[p] <= chunk && (found < 0 || first[p] > nth(first, found))) found = static_cast<int>(p);
  return found;
}

}  // namespace lockstep::layout
