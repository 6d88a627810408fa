#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/state_hash.h"

namespace lockstep::test {

/// A model of two parameters and an optimizer slot each, whose values tell it apart.
struct SmallState {
  explicit SmallState(float value) : weight(6, value), bias{value + 1, value + 2}, momentum(6, -value) {}
  bool operator==(const SmallState&) const = default;

  std::vector<NamedTensor> parameters() const {
    return {{"fc.weight", DType::float32, Shape{2, 3}, weight.data()},
            {"fc.bias", DType::float32, Shape{2}, bias.data()}};
  }
  std::vector<NamedTensor> state() const {
    return {{"fc.weight.momentum", DType::float32, Shape{2, 3}, momentum.data()}};
  }
  Manifest manifest(int64_t step) const {
    Manifest manifest;
    manifest.run_id = "r1";
    manifest.step = step;
    manifest.data_position = 64 * step;
    manifest.total_steps = 100;
    manifest.seed = 0xffffffffffffffffu;
    manifest.math_hash = 0x0123456789abcdefu;
    manifest.math_fields = {{"trainer.seed", "1"}};
    manifest.params_hash = parameters_hash(parameters());
    return manifest;
  }
  /// Overwrites everything with what the checkpoint holds.
  void load(const Checkpoint& checkpoint) {
    const std::vector<TensorDestination> parameters{
        {"fc.bias", DType::float32, Shape{2}, bias.data()},
        {"fc.weight", DType::float32, Shape{2, 3}, weight.data()}};
    const std::vector<TensorDestination> state{
        {"fc.weight.momentum", DType::float32, Shape{2, 3}, momentum.data()}};
    checkpoint.load(FileKind::model, parameters);
    checkpoint.load(FileKind::optimizer, state);
  }

  std::vector<float> weight, bias, momentum;
};

inline std::string save(const std::string& directory, int64_t step, const SmallState& state, int keep = 0,
                        FileSystem& files = posix_file_system()) {
  return write_checkpoint(directory, state.manifest(step), state.parameters(), state.state(), keep, files);
}

inline SmallState loaded(const Checkpoint& checkpoint) {
  SmallState state(0);
  state.load(checkpoint);
  return state;
}

}  // namespace lockstep::test
