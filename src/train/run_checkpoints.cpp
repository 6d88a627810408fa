#include "train/run_checkpoints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_writer.h"
#include "lockstep/error.h"
#include "train/fingerprint.h"
#include "train/model_state.h"

namespace lockstep {
namespace {

constexpr std::chrono::minutes kPatience{5};

std::vector<TensorRecord> records_of(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorRecord> records;
  for (const auto& tensor : tensors) records.push_back({tensor.name, tensor.dtype, tensor.shape});
  return records;
}

/// The worker's own memory, to load into: NamedTensor borrows it as constant for writers and hashes.
std::vector<TensorDestination> destinations_of(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorDestination> destinations;
  for (const auto& tensor : tensors)
    destinations.push_back({tensor.name, tensor.dtype, tensor.shape, const_cast<void*>(tensor.data)});
  return destinations;
}

/// What a step wrote from finite gradients may still have overflowed. Such a state is never saved over a good one.
void require_finite(const NamedTensor& tensor, int64_t step) {
  const auto* values = static_cast<const float*>(tensor.data);
  const int64_t count = tensor.shape.count();
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(values[i]))
      throw Error(fmt::format("the state behind step {} is not saved: element {} of {} is {}; go on from an earlier checkpoint "
                              "with a lower optimizer.learning_rate", step, i, tensor.name, values[i]), ExitCode::internal);
}

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return to_hex(hash_combine(static_cast<uint64_t>(now), static_cast<uint64_t>(::getpid())));
}

}  // namespace

RunCheckpoints::RunCheckpoints(const std::string& output_directory, Worker& worker, Message on_message)
    : directory_(output_directory.empty() ? "" : output_directory + "/checkpoints"),
      worker_(worker),
      on_message_(std::move(on_message)),
      run_id_(new_run_id()) {}

std::string RunCheckpoints::save(Communicator& world, int64_t step) {
  std::string path = directory_ + "/" + checkpoint_folder_name(step);
  std::exception_ptr failure;
  const bool saved = worker_.run_boundary([&] {
    try {
      path = write(step);
    } catch (...) {
      failure = std::current_exception();
    }
    return failure == nullptr;
  });
  if (!saved) agree_on_outcome(world, failure, kPatience);
  return path;
}

std::string RunCheckpoints::write(int64_t step) {
  const auto parameters = parameter_tensors(worker_), state = optimizer_tensors(worker_);
  const auto& config = worker_.compiled().config();
  if (config.trainer.nonfinite != NonFinitePolicy::ignore)
    for (const auto& tensors : {parameters, state})
      for (const auto& tensor : tensors) require_finite(tensor, step);
  return write_checkpoint(directory_, make_manifest(step), parameters, state, config.checkpoint.keep);
}

Manifest RunCheckpoints::make_manifest(int64_t step) const {
  const auto& config = worker_.compiled().config();
  Manifest manifest;
  manifest.run_id = run_id_;
  manifest.step = step;
  manifest.data_position = step * config.trainer.global_batch;
  manifest.total_steps = worker_.total_steps();
  manifest.total_epochs = config.trainer.steps > 0 ? 0 : config.trainer.epochs;
  manifest.seed = config.trainer.seed;
  manifest.math_hash = config.math_hash;
  manifest.config_hash = config.config_hash;
  manifest.math_fields = config.math_fields;
  manifest.dataset_identity = worker_.train_data().identity();
  manifest.arithmetic_fingerprint = arithmetic_fingerprint(config.parallel.intra_op_threads);
  manifest.params_hash = parameters_hash_of(worker_);
  manifest.state_hash = state_hash_of(worker_);
  return manifest;
}

void RunCheckpoints::tell(const std::string& message) const {
  if (on_message_) on_message_(message);
}

std::optional<std::string> RunCheckpoints::newest_below(const std::string& directory) const {
  const auto checkpoint = load_latest_valid(directory, [&](const std::string& path, const std::string& reason) {
    log_warning(fmt::format("refused checkpoint {}: {}", path, reason));
  });
  if (checkpoint) return checkpoint->path();
  if (find_checkpoints(directory).empty()) return std::nullopt;
  throw CheckpointError(fmt::format("none of the checkpoints in {} can be used; to start anew choose another --out", directory));
}

std::optional<RestoredState> RunCheckpoints::restore_newest(Communicator& world) {
  const std::string path = first_ranks_choice(world, [&] { return newest_below(directory_).value_or(""); });
  if (path.empty()) return std::nullopt;
  return load_on_all(world, path);
}

RestoredState RunCheckpoints::restore(Communicator& world, const std::string& path) {
  return load_on_all(world, first_ranks_choice(world, [&] {
    namespace fs = std::filesystem;
    if (!fs::exists(path)) throw CheckpointError(fmt::format("there is no checkpoint {}", path));
    if (step_of_folder_name(fs::path(path).lexically_normal().filename().string())) return path;
    const auto newest = newest_below(fs::exists(path + "/checkpoints") ? path + "/checkpoints" : path);
    if (!newest) throw CheckpointError(fmt::format("{} is no checkpoint and holds none", path));
    return *newest;
  }));
}

std::string RunCheckpoints::first_ranks_choice(Communicator& world, const std::function<std::string()>& choose) {
  std::exception_ptr outcome;
  std::string choice;
  try {
    if (world.rank() == 0) choice = choose();
  } catch (...) {
    outcome = std::current_exception();
  }
  agree_on_outcome(world, outcome, kPatience);
  return gather_texts(world, choice, kPatience)[0];
}

RestoredState RunCheckpoints::load_on_all(Communicator& world, const std::string& path) {
  std::exception_ptr outcome;
  try {
    load(path);
  } catch (...) {
    outcome = std::current_exception();
  }
  agree_on_outcome(world, outcome, kPatience);
  // Under one name, hosts that share no folder may hold different checkpoints.
  agree_on_fields(world,
                  {{"step of checkpoint " + path, std::to_string(restored_step_), ExitCode::data},
                   {"run of checkpoint " + path, run_id_, ExitCode::data},
                   {"state of checkpoint " + path, to_hex(state_hash_of(worker_)), ExitCode::data}},
                  kPatience);
  return {restored_step_, path};
}

void RunCheckpoints::check_configuration(const Manifest& manifest) const {
  const auto& config = worker_.compiled().config();
  auto differences = compare_math(manifest.math_fields, config.math_fields);
  if (manifest.dataset_identity != worker_.train_data().identity())
    differences.push_back(fmt::format("training data: {} in the checkpoint, {} now", to_hex(manifest.dataset_identity),
                                      to_hex(worker_.train_data().identity())));
  if (!differences.empty() && !config.checkpoint.allow_config_change)
    throw ConfigError(fmt::format("the checkpoint was made by another configuration:\n  {}\nRestore these, or pass "
                                  "--allow-config-change to go on with the new ones.", join(differences, "\n  ")));
  for (const auto& difference : differences) tell("goes on with a changed configuration: " + difference);
  const std::string fingerprint = arithmetic_fingerprint(config.parallel.intra_op_threads);
  if (fingerprint != manifest.arithmetic_fingerprint)
    tell(fmt::format("the checkpoint was made with other arithmetic, so bits may differ from an uninterrupted run: it had '{}', "
                     "this is '{}'", manifest.arithmetic_fingerprint, fingerprint));
}

void RunCheckpoints::load(const std::string& path) {
  const Checkpoint checkpoint(path);
  const Manifest& manifest = checkpoint.manifest();
  check_configuration(manifest);
  const auto parameters = parameter_tensors(worker_), state = optimizer_tensors(worker_);
  checkpoint.require_exactly(FileKind::model, records_of(parameters));
  checkpoint.require_exactly(FileKind::optimizer, records_of(state));
  checkpoint.load(FileKind::model, destinations_of(parameters));
  checkpoint.load(FileKind::optimizer, destinations_of(state));
  if (parameters_hash_of(worker_) != manifest.params_hash || state_hash_of(worker_) != manifest.state_hash)
    throw CheckpointError(fmt::format("checkpoint {}: what was loaded has another hash than what was saved", path));
  run_id_ = manifest.run_id;
  restored_step_ = manifest.step;
}

}  // namespace lockstep
