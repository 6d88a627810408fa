#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/state_hash.h"
#include "lockstep/error.h"

namespace lockstep::test {

/// A model of two parameters and an optimizer slot each, whose values tell it apart.
struct SmallState {
  explicit SmallState(float value) : weight(6, value), bias{value + 1, value + 2}, momentum(6, -value) {}
  bool operator==(const SmallState&) const = default;

  std::vector<checkpoint::NamedTensor> parameters() const {
    return {{"fc.weight", DType::float32, Shape{2, 3}, weight.data()},
            {"fc.bias", DType::float32, Shape{2}, bias.data()}};
  }
  std::vector<checkpoint::NamedTensor> state() const {
    return {{"fc.weight.momentum", DType::float32, Shape{2, 3}, momentum.data()}};
  }
  checkpoint::Manifest manifest(int64_t step) const {
    checkpoint::Manifest manifest;
    manifest.run_id = "r1";
    manifest.step = step;
    manifest.data_position = 64 * step;
    manifest.total_steps = 100;
    manifest.seed = 0xffffffffffffffffu;
    manifest.math_hash = 0x0123456789abcdefu;
    manifest.math_fields = {{"trainer.seed", "1"}};
    manifest.params_hash = checkpoint::parameters_hash(parameters());
    return manifest;
  }
  /// Overwrites everything with what the checkpoint holds.
  void load(const checkpoint::Checkpoint& checkpoint) {
    const std::vector<checkpoint::TensorDestination> parameters{
        {"fc.bias", DType::float32, Shape{2}, bias.data()},
        {"fc.weight", DType::float32, Shape{2, 3}, weight.data()}};
    const std::vector<checkpoint::TensorDestination> state{
        {"fc.weight.momentum", DType::float32, Shape{2, 3}, momentum.data()}};
    checkpoint.load(checkpoint::FileKind::model, parameters);
    checkpoint.load(checkpoint::FileKind::optimizer, state);
  }

  std::vector<float> weight, bias, momentum;
};

/// All of a checkpoint by one writer, in one shard of each kind.
/// `best_step`: as of an evaluated run that keeps its best checkpoint.
inline std::string save(const std::string& directory, int64_t step, const SmallState& state, int keep = 0,
                        FileSystem& files = posix_file_system(), int64_t best_step = -1) {
  checkpoint::CheckpointWriter writer(directory, step, files);
  try {
    writer.begin();
    checkpoint::Manifest manifest = state.manifest(step);
    manifest.best_step = best_step;
    manifest.files = {writer.write_shard(checkpoint::FileKind::model, 1, 1, state.parameters()),
                      writer.write_shard(checkpoint::FileKind::optimizer, 1, 1, state.state())};
    const std::string path = writer.commit(std::move(manifest));
    writer.prune(keep, best_step);
    return path;
  } catch (...) {
    writer.abandon();
    throw;
  }
}

inline SmallState loaded(const checkpoint::Checkpoint& checkpoint) {
  SmallState state(0);
  state.load(checkpoint);
  return state;
}

/// The newest checkpoint that can be used; every other one that looks complete must be so too.
inline std::optional<checkpoint::Checkpoint> latest_of_all_complete(const std::string& directory) {
  const auto fail = [](const std::string& path, const std::string& reason) {
    ADD_FAILURE() << path << " looks complete and is not: " << reason;
  };
  for (const auto& found : checkpoint::find_checkpoints(directory)) {
    try {
      checkpoint::Checkpoint{found.path};
    } catch (const Error& error) {
      fail(found.path, error.what());
    }
  }
  return checkpoint::load_latest_valid(directory, fail);
}

}  // namespace lockstep::test
