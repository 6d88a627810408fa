#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "data/test_files.h"
#include "model/graph.h"
#include "model/presets.h"

namespace lockstep::test {

/// A tensor of whole numbers, which every element type holds exactly up to 256.
struct NumberedTensor {
  std::string name;
  Shape shape;
  float first = 0;  ///< then first + 1, ...
};

inline std::vector<float> numbers_from(float first, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

inline void write_numbered(const std::string& path, const std::vector<NumberedTensor>& tensors) {
  std::vector<std::vector<float>> values;
  std::vector<checkpoint::NamedTensor> named;
  for (const auto& tensor : tensors) {
    values.push_back(numbers_from(tensor.first, tensor.shape.count()));
    named.push_back({tensor.name, DType::float32, tensor.shape, values.back().data()});
  }
  checkpoint::write_safetensors(posix_file_system(), path, named, {{"format", "pt"}});
}

inline ModelSpec small_gpt(bool tied = true, bool bias = true) {
  return model::make_gpt(
      {.vocabulary = 7, .context = 5, .layers = 2, .heads = 2, .width = 4, .bias = bias, .tied_head = tied});
}

inline ModelSpec small_llama(bool tied = false) {
  return model::make_llama({.vocabulary = 7,
                            .context = 5,
                            .layers = 2,
                            .heads = 4,
                            .key_value_heads = 2,
                            .width = 8,
                            .hidden = 6,
                            .tied_head = tied});
}

/// The number of a parameter of the model's graph.
inline int parameter_of(const ModelSpec& model, const std::string& name) {
  const auto graph = model::make_graph(model);
  for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p)
    if (graph.parameter(p).name == name) return p;
  ADD_FAILURE() << "no parameter " << name;
  return 0;
}

}  // namespace lockstep::test
