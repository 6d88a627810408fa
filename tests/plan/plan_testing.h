#pragma once

#include <string>

#include "compile/compiled_run.h"
#include "model/presets.h"

namespace lockstep::plan {

/// A GPT with AdamW's state, in batches of 16.
inline compile::CompileOptions gpt_options(const std::string& layout, int64_t micro_batch = 2) {
  compile::CompileOptions options{
      .model = model::make_gpt({.vocabulary = 65, .context = 32, .layers = 4, .heads = 2, .width = 32}),
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

}  // namespace lockstep::plan
