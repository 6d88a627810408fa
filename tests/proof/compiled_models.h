#pragma once

#include <string>
#include <vector>

#include "compile/compiled_run.h"
#include "lockstep/model.h"
#include "model/presets.h"
#include "model/shared_graph.h"

namespace lockstep::proof {

/// A product's output is added to what was made before it: the smallest model whose segments send a gradient
/// that is a product's, too.
inline ModelSpec sum_model() {
  ModelBuilder b;
  const auto image = b.input("image", {{8}}), label = b.input("label", {{}, DType::int32});
  const auto t = b.add("t", Tanh{}, {b.add("a", Linear{.units = 8}, {image})});
  const auto product = b.add("b", Linear{.units = 8}, {b.add("d", Tanh{}, {t})});
  const auto sum = b.add("sum", Add{}, {product, t});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("c", Linear{.units = 4}, {sum}), label});
  return b.build();
}

/// Sums, forks, views, tied weights, what is repeated, and what backward keeps of an op besides its output.
inline ModelSpec gpt_model(float dropout = 0) {
  return model::make_gpt(
      {.vocabulary = 12, .context = 4, .layers = 3, .heads = 2, .width = 16, .dropout = dropout});
}

inline ModelSpec lenet_model() {
  return model::make_lenet({.image = Shape{12, 12, 1}, .classes = 4, .dropout = 0.2f, .batch_norm = true});
}

inline compile::CompileOptions options_of(const ModelSpec& model, const std::string& layout,
                                          std::vector<std::string> cuts = {}) {
  compile::CompileOptions options{.graph = model::share_graph(model), .global_batch = 8, .micro_batch = 2};
  options.parallel.layout = layout::parse_layout(layout);
  options.parallel.bucket_bytes = 2000;
  options.parallel.cuts = std::move(cuts);
  return options;
}

inline compile::CompileFacts facts_of(const compile::CompileOptions& options,
                                      device::DeviceKind device = device::DeviceKind::cpu) {
  return {.world_size = options.parallel.layout.world_size(), .device = device};
}

inline std::vector<program::Program> steps_of(const compile::CompiledRun& run) {
  std::vector<program::Program> steps;
  for (int rank = 0; rank < run.ownership().ranks(); ++rank) steps.push_back(run.compile(rank).step);
  return steps;
}

inline const std::vector<std::string>& layouts_of_calls() {
  static const std::vector<std::string> layouts = {"dp=1",
                                                   "dp=1,pp=2",
                                                   "dp=1,pp=3,schedule=zero_bubble",
                                                   "dp=1,recompute=full",
                                                   "dp=1,pp=2,recompute=selective",
                                                   "dp=1,pp=2,schedule=zero_bubble,recompute=selective",
                                                   "dp=1,pp=2,schedule=zero_bubble,recompute=full",
                                                   "dp=1,pp=2,schedule=interleaved"};
  return layouts;
}

}  // namespace lockstep::proof
