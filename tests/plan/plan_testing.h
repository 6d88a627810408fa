#pragma once

#include <string>

#include "base/hash.h"
#include "compile/compiled_run.h"
#include "model/node_times.h"
#include "model/presets.h"
#include "model/shared_graph.h"

namespace lockstep::plan {

/// A GPT with AdamW's state, in batches of 16.
inline compile::CompileOptions gpt_options(const std::string& layout, int64_t micro_batch = 2) {
  compile::CompileOptions options{
      .graph = model::share_graph(
          model::make_gpt({.vocabulary = 65, .context = 32, .layers = 4, .heads = 2, .width = 32})),
      .global_batch = 16,
      .micro_batch = micro_batch,
      .state_slots = 2};
  options.parallel.layout = layout::parse_layout(layout);
  options.parallel.bucket_bytes = 16384;
  return options;
}

inline compile::CompileFacts facts_of(const compile::CompileOptions& options) {
  return {.world_size = options.parallel.layout.world_size()};
}

/// Every layer takes a millisecond forward and two back, but the last, which takes ten times as long.
inline model::Profile profile_of(const compile::CompileOptions& options) {
  const model::Graph& graph = *options.graph;
  model::Profile profile{
      .source = "p", .model = to_hex(model::hash_of(graph)), .device = "cpu", .micro_batch = 1, .nodes = {}};
  for (const auto& node : graph.nodes) profile.nodes.push_back({node.name, {1e-3, 1e-3, 1e-3}});
  profile.nodes.back().seconds *= 10;
  profile.update_seconds = 1e-6;
  return profile;
}

}  // namespace lockstep::plan
