#include "train/checkpoints/starting_weights.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/index.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "comm/gather_texts.h"
#include "exchange/weight_source.h"
#include "lockstep/error.h"
#include "tokenizer/tokenizer_file.h"
#include "train/checkpoints/best_checkpoint.h"
#include "train/faults/position.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

template <class Action>
std::exception_ptr error_of(Action&& action) {
  try {
    action();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

constexpr std::string_view kCheckpoint = "checkpoint ", kFiles = "files ";

/// What the config's path means: "checkpoint PATH" or "files PATH".
std::string resolved(const std::string& path, const checkpoint::BeforeRead& before_read) {
  std::error_code unknown;
  if (!fs::exists(path, unknown) && !run_of_best(path))
    throw CheckpointError(fmt::format("weights.from: there is no file or folder {}", path));
  const bool has_tensors = fs::is_regular_file(path, unknown) || exchange::is_weight_folder(path);
  if (has_tensors && !checkpoint::claims_to_be_checkpoint(path)) return std::string(kFiles) + path;
  return std::string(kCheckpoint) + find_checkpoint(path, before_read);
}

/// COLLECTIVE: rank 0's answer. A run that goes on elsewhere may save meanwhile.
std::string resolved_on_all(comm::Communicator& world, const std::string& path,
                            const checkpoint::BeforeRead& before_read, std::chrono::milliseconds patience) {
  std::string text;
  const auto failure = error_of([&] {
    if (world.rank() == 0) text = resolved(path, before_read);
  });
  comm::agree_on_outcome(world, failure, patience);
  return comm::gather_texts(world, text, patience)[0];
}

void write_held(Worker& worker, const exchange::WeightSource& source,
                const checkpoint::BeforeRead& before_read) {
  for (const HeldParameter& held : worker.held_parameters()) {
    before_read();
    std::vector<float> values(static_cast<size_t>(held.part.count()));
    if (!source.read(held.parameter, held.part, values)) continue;
    worker.window().write(held.data, held.size_bytes(),
                          [&](void* to) { std::ranges::copy(values, static_cast<float*>(to)); });
  }
}

/// Tokens with other numbers than those that the weights were trained on make them worthless.
void warn_of_other_tokenizer(const exchange::WeightSource& source, const Worker& worker) {
  const auto ours = worker.train_data().encodings();
  const auto name = std::string(tokenizer::kTokenizerFile);
  try {
    const auto theirs = source.tokenizer_text();
    if (!theirs || !ours.contains(name)) return;
    if (tokenizer::tokenizer_from_json(*theirs, name) == tokenizer::tokenizer_from_json(ours.at(name), name))
      return;
  } catch (const DataError&) {
    // Of another kind than lockstep's, so certainly not the data's.
  } catch (const std::exception& error) {
    log_warning(fmt::format("the tokenizer of {} cannot be compared with the data's: {}", source.path(),
                            error.what()));
    return;
  }
  log_warning(
      fmt::format("the data's tokenizer is not the one that the weights of {} were trained with: unless the "
                  "embeddings are new, encode the data by that one",
                  source.path()));
}

/// Files of one folder on one host: what lies there is the same to all who read it.
std::string place_of_files(const Worker& worker, const std::string& path) {
  const auto& hosts = worker.compile_facts().hosts;
  const int host = hosts.empty() ? 0 : nth(hosts, worker.rank());
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) return fmt::format("rank {}", worker.rank());
  return fmt::format("host {}, device {}, file {}", host, found.st_dev, found.st_ino);
}

/// COLLECTIVE: what ranks of equal weights have alike, or kAgreesWithAny. Under one name, hosts that share no
/// folder may have different files.
std::string weights_read(const Worker& worker, comm::Communicator& world,
                         const exchange::WeightSource& source, const checkpoint::BeforeRead& before_read,
                         std::chrono::milliseconds patience) {
  if (worker.compiled().ownership().stages() == 1) return to_hex(state_hash_of(worker, world));
  // Stages hold different parts: somebody has to read all.
  const std::string own = place_of_files(worker, source.path());
  const auto places = comm::gather_texts(world, own, patience);
  const bool is_first = std::ranges::find(places, own) - places.begin() == world.rank();
  const bool is_one = std::ranges::count(places, own) == std::ssize(places);
  uint64_t hash = 0;
  comm::agree_on_outcome(world, error_of([&] {
                           if (is_first && !is_one) hash = source.contents_hash(before_read);
                         }),
                         patience);
  return is_first ? to_hex(hash) : comm::kAgreesWithAny;
}

std::string message_about(const exchange::WeightSource& source) {
  std::string text = fmt::format("begins with the weights of {}: {}, {} tensors", source.path(),
                                 source.kind(), source.tensor_count());
  for (const auto& note : source.notes()) text += "; " + note;
  return text;
}

}  // namespace

StartingWeights load_starting_weights(Worker& worker, comm::Communicator& world,
                                      const StartingWeightsOptions& options) {
  const auto& weights = worker.config().weights;
  const auto patience = worker.config().watchdog.storage_deadline;
  const auto read_on = [&] { enter_phase(options.progress, Phase::restore); };
  read_on();
  const std::string found = resolved_on_all(world, weights.from, read_on, patience);
  const bool is_checkpoint = found.starts_with(kCheckpoint);
  const std::string path = found.substr(is_checkpoint ? kCheckpoint.size() : kFiles.size());
  std::optional<exchange::WeightSource> source;
  comm::agree_on_outcome(world, error_of([&] {
                           source.emplace(worker.config().model,
                                          exchange::WeightSourceOptions{.path = path,
                                                                        .checkpoint = is_checkpoint,
                                                                        .new_layers = weights.new_layers,
                                                                        .leave_out = weights.leave_out,
                                                                        .before_read = read_on});
                           write_held(worker, *source, read_on);
                         }),
                         patience);
  read_on();
  const std::string read = weights_read(worker, world, *source, read_on, patience);
  read_on();
  comm::agree_on_fields(world, {{"weights of " + path, read, ExitCode::data}}, patience);
  const uint64_t hash = parameters_hash_of(worker, world);
  if (world.rank() == 0) {
    if (options.on_message) options.on_message(message_about(*source));
    warn_of_other_tokenizer(*source, worker);
  }
  return {.path = path, .params_hash = hash};
}

}  // namespace lockstep::train
