#include "train/checkpoints/run_checkpoints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/state_hash.h"
#include "lockstep/error.h"
#include "train/checkpoints/best_checkpoint.h"
#include "train/checkpoints/known_faults.h"
#include "train/checkpoints/state_change.h"
#include "train/faults/position.h"
#include "train/worker/averages.h"
#include "train/worker/fingerprint.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

/// Loads into the worker's own memory, which NamedTensor borrows as constant for writers and hashes.
template <class Load>
void load_each(const Worker& worker, const std::vector<checkpoint::NamedTensor>& tensors, const Load& load) {
  for (const auto& tensor : tensors)
    worker.window().write(const_cast<void*>(tensor.data), tensor.size_bytes(), [&](void* to) {
      load(std::vector<checkpoint::TensorDestination>{
          {tensor.name, tensor.dtype, tensor.shape, to, tensor.part}});
    });
}

void load_tensors(const Worker& worker, const checkpoint::Checkpoint& checkpoint, checkpoint::FileKind kind,
                  const std::vector<checkpoint::NamedTensor>& tensors,
                  const checkpoint::BeforeRead& before_read) {
  load_each(worker, tensors,
            [&](const auto& destinations) { checkpoint.load(kind, destinations, before_read); });
}

/// Where the first element that is not finite lies, or -1. By blocks, so that compilers vectorise the search.
int64_t first_nonfinite(const checkpoint::NamedTensor& tensor) {
  constexpr int64_t kBlock = 4096;
  constexpr uint32_t kExponent = 0x7f800000;
  const auto* bits = static_cast<const uint32_t*>(tensor.data);
  const int64_t count = tensor.count();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    uint32_t found = 0;
    for (int64_t i = begin; i < end; ++i) found |= (bits[i] & kExponent) == kExponent ? 1u : 0u;
    for (int64_t i = begin; found != 0 && i < end; ++i)
      if ((bits[i] & kExponent) == kExponent) return i;
  }
  return -1;
}

/// What a step wrote from finite gradients may still have overflowed. Such a state is never saved over a good
/// one.
void require_finite(const checkpoint::NamedTensor& tensor, int64_t step) {
  const int64_t element = first_nonfinite(tensor);
  if (element < 0) return;
  throw Error(fmt::format("the state after step {} is not saved: element {} of {} is {}; resume from an "
                          "earlier checkpoint with a "
                          "lower optimizer.learning_rate",
                          step, tensor.part.element(element), tensor.name,
                          static_cast<const float*>(tensor.data)[element]),
              ExitCode::internal);
}

/// What headers, index and manifest take beside the tensors, roughly: the check for space is no promise
/// anyway.
int64_t size_bytes_of_text(int64_t tensors) { return 65536 + 512 * tensors; }

/// What `action` throws; null where it throws nothing.
template <class Action>
std::exception_ptr failure_of(Action&& action) {
  try {
    action();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

[[noreturn]] void throw_other_hash(const std::string& path) {
  throw CheckpointError(
      fmt::format("checkpoint {}: the loaded state has another hash than the saved state", path));
}

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return to_hex(hash_combine(static_cast<uint64_t>(now), static_cast<uint64_t>(::getpid())));
}

/// All of it: what ranks must have alike to go on together.
std::string to_text(const TrainingProgress& progress) {
  std::string text = fmt::format(
      "{} skipped steps, {} of them overflows, loss scale {} for {} steps, {} updates, best {} {}{}",
      progress.skipped_steps, progress.overflowed_steps, progress.loss_scaling.scale,
      progress.loss_scaling.good_steps, progress.optimizer_updates, progress.evaluations.best_step,
      progress.evaluations.since_best, progress.pending_evaluation ? ", an evaluation put off" : "");
  for (const auto& [name, updates] : progress.learning_since)
    text += fmt::format(", {} since {}", name, updates);
  return text;
}

}  // namespace

RunCheckpoints::RunCheckpoints(Worker& worker, RunCheckpointsOptions options)
    : worker_(&worker),
      options_(std::move(options)),
      files_(*options_.files, options_.progress, control::Progress::kMainSlot),
      directory_(options_.output_directory.empty() ? "" : options_.output_directory + "/checkpoints"),
      run_id_(new_run_id()) {
  make_saver();
}

void RunCheckpoints::make_saver() {
  const auto& config = worker_->config();
  if (options_.mailbox == nullptr || !config.checkpoint.background) return;
  const auto& shares = worker_->compiled().checkpoint_shares();
  std::vector<int> writers;
  for (size_t rank = 1; rank < shares.size(); ++rank)
    if (!shares[rank].empty()) writers.push_back(static_cast<int>(rank));
  saver_ =
      std::make_unique<CheckpointSaver>(CheckpointSaverOptions{.directory = directory_,
                                                               .keep = config.checkpoint.keep,
                                                               .mailbox = options_.mailbox,
                                                               .writers = std::move(writers),
                                                               .files = options_.files,
                                                               .progress = options_.progress,
                                                               .patience = config.watchdog.storage_deadline});
}

void RunCheckpoints::follow(Worker& worker, control::Mailbox* mailbox) {
  settle();
  worker_ = &worker;
  options_.mailbox = mailbox;
  make_saver();
}

void RunCheckpoints::save(comm::Communicator& world, int64_t step, const TrainingProgress& progress) {
  settle();
  std::exception_ptr not_finite, not_begun;
  const bool ready = worker_->run_boundary([&] {
    not_finite = failure_of([&] { require_finite_snapshot(step); });
    if (!not_finite) not_begun = failure_of([&] { begin(step); });
    return !not_finite && !not_begun;
  });
  if (!ready) {
    if (world.rank() == 0) checkpoint::CheckpointWriter(directory_, step, files_).abandon();
    comm::agree_on_outcome(world, not_finite, patience());
    // Whatever it is, it counts as it would if it came later, while the checkpoint is written.
    try {
      comm::agree_on_outcome(world, not_begun, patience());
    } catch (const comm::CollectiveError& error) {
      outcomes_.push_back({.step = step, .path = "", .error = error.what(), .code = error.code()});
    }
    return;
  }
  checkpoint::Manifest manifest;
  if (world.rank() == 0) manifest = make_manifest(step, progress);
  manifest.step = step;
  if (saver_) {
    saver_->start(own_share(), std::move(manifest));
  } else {
    outcomes_.push_back(save_in_foreground(world, own_share(), std::move(manifest)));
    enter_phase(options_.progress, Phase::between_steps);
  }
}

std::optional<checkpoint::SaveOutcome> RunCheckpoints::poll() {
  if (saver_)
    if (auto outcome = saver_->poll()) outcomes_.push_back(std::move(*outcome));
  if (outcomes_.empty()) return std::nullopt;
  auto outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return outcome;
}

void RunCheckpoints::settle() {
  if (!saver_ || saver_->settled()) return;
  enter_phase(options_.progress, Phase::settle);
  outcomes_.push_back(*saver_->settle());
  enter_phase(options_.progress, Phase::between_steps);
}

void RunCheckpoints::require_finite_snapshot(int64_t step) const {
  if (worker_->config().trainer.nonfinite == config::NonFinitePolicy::ignore) return;
  const checkpoint::CheckpointShare share = own_share();
  for (const auto* tensors : {&share.parameters, &share.state})
    for (const auto& tensor : *tensors) require_finite(tensor, step);
}

void RunCheckpoints::begin(int64_t step) {
  if (worker_->rank() != 0) return;
  if (options_.before_write) options_.before_write(step);
  int64_t bytes = 0, tensors = 0;
  for (const auto& each : worker_->compiled().checkpoint_shares()) {
    bytes += layout::size_bytes_of(each);
    tensors += static_cast<int64_t>(each.size());
  }
  checkpoint::CheckpointWriter(directory_, step, *options_.files).begin(bytes + size_bytes_of_text(tensors));
}

checkpoint::CheckpointShare RunCheckpoints::own_share() const {
  return checkpoint_share(worker_->compiled(), worker_->config(), worker_->rank(), worker_->snapshot());
}

checkpoint::SaveOutcome RunCheckpoints::save_in_foreground(comm::Communicator& world,
                                                           const checkpoint::CheckpointShare& share,
                                                           checkpoint::Manifest manifest) {
  checkpoint::CheckpointWriter writer(directory_, manifest.step, files_);
  checkpoint::ShareReports reports;
  for (const auto& text :
       comm::gather_texts(world, checkpoint::to_text(checkpoint::write_share(writer, share)), patience()))
    reports.emplace(static_cast<int>(reports.size()), checkpoint::share_report_from_text(text));
  checkpoint::SaveOutcome outcome;
  if (world.rank() == 0)
    outcome =
        checkpoint::conclude_save(writer, std::move(manifest), reports, worker_->config().checkpoint.keep);
  return checkpoint::save_outcome_from_text(
      comm::gather_texts(world, checkpoint::to_text(outcome), patience())[0]);
}

checkpoint::Manifest RunCheckpoints::make_manifest(int64_t step, const TrainingProgress& progress) const {
  const auto& config = worker_->config();
  checkpoint::Manifest manifest;
  manifest.run_id = run_id_;
  manifest.step = step;
  manifest.data_position = worker_->length().samples_after(step);
  manifest.total_steps = worker_->total_steps();
  manifest.total_epochs = config.trainer.steps > 0 ? 0 : config.trainer.epochs;
  manifest.seed = config.trainer.seed;
  manifest.math_hash = config.math_hash;
  manifest.config_hash = config.config_hash;
  manifest.layout = layout::to_string(worker_->compiled().layout());
  manifest.math_fields = config.math_fields;
  manifest.dataset_identity = worker_->train_data().identity();
  manifest.arithmetic_fingerprint =
      arithmetic_fingerprint(worker_->device(), worker_->compiled().division().summed_samples());
  manifest.pending_evaluation = progress.pending_evaluation;
  manifest.skipped_steps = progress.skipped_steps;
  manifest.overflowed_steps = progress.overflowed_steps;
  manifest.optimizer_updates = progress.optimizer_updates;
  manifest.learning_since = progress.learning_since;
  manifest.loss_scale = progress.loss_scaling.scale;
  manifest.loss_scale_steps = progress.loss_scaling.good_steps;
  manifest.best_step = progress.evaluations.best_step;
  manifest.best_eval_loss = progress.evaluations.best_loss;
  manifest.evaluations_since_best = progress.evaluations.since_best;
  manifest.last_evaluated_step = progress.evaluations.last_step;
  if (worker_->has_eval_data()) manifest.evaluation_data_identity = worker_->eval_data().identity();
  manifest.encodings = worker_->train_data().encodings();
  manifest.weights_from = weights_.path;
  manifest.weights_hash = weights_.params_hash;
  manifest.keeps_best = config.checkpoint.keep_best;
  manifest.evaluates_average = config.evaluates_average;
  return manifest;
}

std::chrono::milliseconds RunCheckpoints::patience() const {
  return worker_->config().watchdog.storage_deadline;
}

void RunCheckpoints::read_on() const { enter_phase(options_.progress, Phase::restore); }

void RunCheckpoints::tell(const std::string& message) const {
  if (options_.on_message) options_.on_message(message);
}

std::optional<RestoredState> RunCheckpoints::restore_newest(comm::Communicator& world) {
  const std::string path = first_ranks_choice(
      world, [&] { return newest_checkpoint(directory_, [this] { read_on(); }).value_or(""); });
  if (path.empty()) return std::nullopt;
  return load_on_all(world, path);
}

RestoredState RunCheckpoints::restore(comm::Communicator& world, const std::string& path) {
  return load_on_all(world,
                     first_ranks_choice(world, [&] { return find_checkpoint(path, [this] { read_on(); }); }));
}

std::string RunCheckpoints::first_ranks_choice(comm::Communicator& world,
                                               const std::function<std::string()>& choose) {
  std::string choice;
  const auto failure = failure_of([&] {
    if (world.rank() == 0) choice = choose();
  });
  comm::agree_on_outcome(world, failure, patience());
  return comm::gather_texts(world, choice, patience())[0];
}

RestoredState RunCheckpoints::load_on_all(comm::Communicator& world, const std::string& path) {
  comm::agree_on_outcome(world, failure_of([&] { load(path); }), patience());
  // Under one name, hosts that share no folder may hold different checkpoints.
  read_on();
  comm::agree_on_fields(
      world,
      {{"step of checkpoint " + path, std::to_string(restored_.position.step), ExitCode::data},
       {"samples of checkpoint " + path, std::to_string(restored_.position.samples), ExitCode::data},
       {"run of checkpoint " + path, run_id_, ExitCode::data},
       {"state of checkpoint " + path, to_hex(saved_hash_), ExitCode::data},
       {"progress of checkpoint " + path, to_text(restored_.progress), ExitCode::data}},
      patience());
  read_on();
  const std::optional<uint64_t> hash = loaded_hash(world);
  comm::agree_on_outcome(world, failure_of([&] {
                           if (hash && *hash != saved_hash_) throw_other_hash(path);
                         }),
                         patience());
  if (options_.averages) comm::agree_on_outcome(world, failure_of([&] { load_averages(path); }), patience());
  return restored_;
}

std::optional<uint64_t> RunCheckpoints::loaded_hash(comm::Communicator& world) const {
  if (options_.parameters_alone) {
    const uint64_t hash = parameters_hash_of(*worker_, world);
    return worker_->is_worker() ? std::optional(hash) : std::nullopt;
  }
  if (!other_state_) return state_hash_of(*worker_, world);
  auto hashes = tensor_hashes(*worker_, world);
  std::erase_if(hashes, [&](const auto& tensor) { return other_state_->missing.contains(tensor.first); });
  hashes.insert(hashes.end(), other_state_->left_over.begin(), other_state_->left_over.end());
  return world.rank() == 0 ? std::optional(checkpoint::fold_tensors(std::move(hashes))) : std::nullopt;
}

void RunCheckpoints::load_averages(const std::string& path) {
  const auto before_read = [this] { read_on(); };
  const checkpoint::Checkpoint checkpoint(path, before_read);
  load_each(*worker_, parameter_tensors(*worker_), [&](const auto& destinations) {
    checkpoint.load_weights(checkpoint::Weights::averages, destinations, before_read);
  });
}

std::set<std::string> RunCheckpoints::load_state(const checkpoint::Checkpoint& checkpoint,
                                                 const checkpoint::BeforeRead& before_read) {
  const auto& config = worker_->config();
  auto records = optimizer_records(worker_->compiled(), config);
  const StateChange change = state_change_of(checkpoint, config.math_fields, records);
  const ResidualChange residuals = residual_change_of(checkpoint, residual_records(worker_->compiled()));
  // Under FAST leaves are workers, of which there may be another number.
  const bool same_leaves = config.parallel.reduction == layout::Reduction::reproducible &&
                           checkpoint.manifest().math_fields == config.math_fields;
  const auto& expected = same_leaves ? residuals.wanted : residuals.saved;
  records.insert(records.end(), expected.begin(), expected.end());
  if (!change.is_explained) checkpoint.require_exactly(checkpoint::FileKind::optimizer, records);
  if (change.is_explained || !residuals.is_same()) {
    other_state_ = {.missing = change.missing, .left_over = {}};
    auto left_over = change.left_over;
    if (!residuals.is_same()) {
      for (const auto& record : residuals.wanted) other_state_->missing.insert(record.name);
      left_over.insert(left_over.end(), residuals.saved.begin(), residuals.saved.end());
    }
    if (worker_->rank() == 0)
      for (const auto& record : left_over)
        other_state_->left_over.emplace_back(
            record.name, checkpoint.hash_of(checkpoint::FileKind::optimizer, record, before_read));
  }
  if (change.begins_averages) {
    begin_averages(*worker_);
    tell("the checkpoint has no moving averages: they begin at its parameters");
  }
  if (!change.learning_anew.empty())
    tell(fmt::format("{} parameters were frozen in the checkpoint: their optimizer state begins at 0",
                     change.learning_anew.size()));
  auto state = optimizer_tensors(*worker_);
  std::erase_if(state, [&](const auto& tensor) { return change.missing.contains(tensor.name); });
  load_tensors(*worker_, checkpoint, checkpoint::FileKind::optimizer, state, before_read);
  load_residuals(checkpoint, residuals, before_read);
  return change.learning_anew;
}

void RunCheckpoints::load_residuals(const checkpoint::Checkpoint& checkpoint, const ResidualChange& change,
                                    const checkpoint::BeforeRead& before_read) {
  if (change.is_same())
    return load_tensors(*worker_, checkpoint, checkpoint::FileKind::optimizer, residual_tensors(*worker_),
                        before_read);
  if (const std::string told = describe(change); !told.empty()) tell(told);
  load_changed(*worker_, checkpoint, change, before_read);
}

/// What learns anew begins now. Of what is frozen again, the state is dropped, so that it would begin anew.
std::map<std::string, int64_t> RunCheckpoints::learning_since(const checkpoint::Manifest& manifest,
                                                              int64_t updates,
                                                              const std::set<std::string>& anew) const {
  std::map<std::string, int64_t> since;
  for (const auto& parameter : worker_->compiled().graph().parameters) {
    const auto saved = manifest.learning_since.find(parameter.name);
    if (anew.contains(parameter.name) && updates > 0)
      since.emplace(parameter.name, updates);
    else if (parameter.has_state() && saved != manifest.learning_since.end())
      since.insert(*saved);
  }
  return since;
}

void RunCheckpoints::check_model(const checkpoint::Manifest& manifest) const {
  require_same_model(manifest, worker_->config().math_fields);
  const data::Encodings now = worker_->eval_data().encodings();
  for (const auto& [name, text] : manifest.encodings)
    if (const auto found = now.find(name); found == now.end() || found->second != text)
      throw DataError(
          fmt::format("the evaluation data are not encoded as the model's training data were: {} of the "
                      "checkpoint {}; evaluate on data that are read by the checkpoint's",
                      name, found == now.end() ? "is none of theirs" : "differs from theirs"));
}

void RunCheckpoints::check_configuration(const checkpoint::Manifest& manifest) const {
  const auto& config = worker_->config();
  auto differences = checkpoint::compare_math(manifest.math_fields, config.math_fields);
  // The checkpoint has the weights of now; where the first ones came from is of no account.
  std::erase_if(differences,
                [](const std::string& difference) { return difference.starts_with("weights."); });
  if (manifest.dataset_identity != worker_->train_data().identity())
    differences.push_back(fmt::format("training data: {} in the checkpoint, {} now",
                                      to_hex(manifest.dataset_identity),
                                      to_hex(worker_->train_data().identity())));
  // Before sums were chains of fused multiply-adds, fields decided bits that decide none any more.
  if (config.parallel.reduction == layout::Reduction::reproducible &&
      manifest.arithmetic_fingerprint.find("onednn=") != std::string::npos) {
    std::erase_if(differences, [](const std::string& difference) {
      return difference.starts_with("parallel.intra_op_threads:") ||
             difference.starts_with("trainer.micro_batch:");
    });
    differences.emplace_back(
        "order of sums: that of an older version in the checkpoint; this one has another");
  }
  if (!differences.empty() && !config.checkpoint.allow_config_change)
    throw ConfigError(
        fmt::format("the checkpoint was made with another configuration:\n  {}\nRestore these values, or "
                    "pass --allow-config-change to resume with the new ones.",
                    join(differences, "\n  ")));
  for (const auto& difference : differences) tell("resumes with a changed configuration: " + difference);
  const std::string fingerprint =
      arithmetic_fingerprint(worker_->device(), worker_->compiled().division().summed_samples());
  if (fingerprint != manifest.arithmetic_fingerprint)
    tell(
        fmt::format("the checkpoint was made with other arithmetic, so bits may differ from an uninterrupted "
                    "run: it had '{}', "
                    "this is '{}'",
                    manifest.arithmetic_fingerprint, fingerprint));
}

void RunCheckpoints::load(const std::string& path) {
  const auto before_read = [this] { read_on(); };
  const checkpoint::Checkpoint checkpoint(path, before_read);
  const checkpoint::Manifest& manifest = checkpoint.manifest();
  const std::string fault = known_fault_of(manifest, worker_->compiled().graph());
  if (!fault.empty() && worker_->rank() == 0) log_warning(fault);
  if (options_.parameters_alone)
    check_model(manifest);
  else
    check_configuration(manifest);
  const auto parameters = parameter_tensors(*worker_);
  checkpoint.require_exactly(checkpoint::FileKind::model, parameter_records(worker_->compiled()));
  load_tensors(*worker_, checkpoint, checkpoint::FileKind::model, parameters, before_read);
  other_state_.reset();
  std::set<std::string> anew;
  if (!options_.parameters_alone) anew = load_state(checkpoint, before_read);
  read_on();
  // Of what lies on several ranks the hash of all state tells.
  if (worker_->holds_all() && parameters_hash_of(*worker_) != manifest.params_hash) throw_other_hash(path);
  saved_hash_ = options_.parameters_alone ? manifest.params_hash : manifest.state_hash;
  run_id_ = manifest.run_id;
  weights_ = {.path = manifest.weights_from, .params_hash = manifest.weights_hash};
  const int64_t updates =
      manifest.optimizer_updates >= 0 ? manifest.optimizer_updates : manifest.step - manifest.skipped_steps;
  restored_ = {.position = {manifest.step, manifest.data_position},
               .path = path,
               .progress = {.pending_evaluation = manifest.pending_evaluation,
                            .skipped_steps = manifest.skipped_steps,
                            .overflowed_steps = manifest.overflowed_steps,
                            .optimizer_updates = updates,
                            .learning_since = learning_since(manifest, updates, anew),
                            .loss_scaling = {manifest.loss_scale, manifest.loss_scale_steps},
                            .evaluations = history_of(manifest)}};
}

EvaluationHistory RunCheckpoints::history_of(const checkpoint::Manifest& manifest) const {
  if (options_.parameters_alone || manifest.last_evaluated_step < 0) return {};
  const uint64_t data = worker_->has_eval_data() ? worker_->eval_data().identity() : 0;
  if (manifest.evaluation_data_identity != 0 && manifest.evaluation_data_identity != data) {
    tell("the evaluation data have changed, so the best step is determined afresh");
    return {};
  }
  if (manifest.evaluates_average != worker_->config().evaluates_average) {
    tell("optimizer.ema.evaluate has changed, so the best step is determined afresh");
    return {};
  }
  return {.best_step = manifest.best_step,
          .best_loss = manifest.best_eval_loss,
          .since_best = manifest.evaluations_since_best,
          .last_step = manifest.last_evaluated_step};
}

}  // namespace lockstep::train
