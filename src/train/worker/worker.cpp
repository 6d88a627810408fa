#include "train/worker/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/log.h"
#include "data/stop.h"
#include "device/openmp_team.h"
#include "lockstep/error.h"
#include "observe/process_memory.h"
#include "plan/memory_limit.h"
#include "train/faults/position.h"
#include "train/loop/stop_request.h"
#include "train/worker/compile_options.h"
#include "train/worker/fingerprint.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {

compile::CompileFacts Worker::compile_facts() const {
  return {.world_size = options_.world_size,
          .shared_memory = options_.shared_memory,
          .hosts = options_.hosts,
          .device = options_.device};
}

namespace {

/// Reading headers may take minutes: who is asked to stop meanwhile does not wait for it.
data::DatasetPair open_data(data::DataOptions options) {
  options.stop_requested = stop_requested;
  try {
    return data::open_datasets(options);
  } catch (const data::StopRequested& stop) {
    throw Error(stop.what(), stop_exit_code());
  }
}

}  // namespace

Worker::Worker(const config::RunConfig& config, const WorkerOptions& options)
    : options_(options), config_(config) {
  device::require_openmp_team(config.parallel.intra_op_threads);
  spent_on(observe::StartupPart::other);
  const compile::CompileFacts facts = compile_facts();
  const compile::CompileOptions compiling = fitted_options(config, facts);
  compiled_ = std::make_unique<compile::CompiledRun>(compiling, facts);
  plan::require_fits(*compiled_, compiling, facts, config.device.memory_limit);
  programs_ = compiled_->compile(options.rank);
  // One proof serves all: the ranks agree on everything that programs are compiled from.
  if (options.rank == 0) {
    compiled_->check([&options] {
      enter_phase(options.progress, Phase::prove);
      if (options.proof_gets_on) options.proof_gets_on();
    });
    enter_phase(options.progress, Phase::prepare);
  }
  spent_on(observe::StartupPart::programs);
  data_ = open_data(config.data);
  if (data_.train)
    check_data_fits_model(*data_.train, compiled_->graph(), compiled_->training_code().options().packed);
  if (data_.eval)
    check_data_fits_model(*data_.eval, compiled_->graph(), compiled_->evaluation_code().options().packed);
  if (data_.train) length_.emplace(config.trainer, data_.train->size());

  const Positions positions = is_worker() ? micro_batches() : Positions{};
  spent_on(observe::StartupPart::data);

  device_ = computes_on_gpu()      ? device::make_cuda_device(options.gpu_ordinal)
            : options.asynchronous ? device::make_async_cpu_device(*options.asynchronous)
                                   : device::make_cpu_device();
  share_progress();
  spent_on(observe::StartupPart::device);
  if (compiled_->device_of(options.rank) == compiled_->device()) compiled_->prepare(*device_);
  spent_on(observe::StartupPart::kernels);
  private_bytes_before_plan_ = observe::process_private_bytes();
  if (program::loads(programs_.step)) make_batches(positions);
  memory_ = std::make_unique<run::ProgramMemory>(*device_, programs_.plans());
  window_ = std::make_unique<device::HostWindow>(*device_, largest_tensor_bytes(programs_.step));
  spent_on(observe::StartupPart::memory);
  step_context_ = std::make_unique<run::ExecutionContext>(
      make_context(compiled_->training_code(), positions.train, train_batches_.get()));
  evaluate_context_ = std::make_unique<run::ExecutionContext>(
      make_context(compiled_->evaluation_code(), positions.eval, eval_batches_.get()));
  boundary_context_ =
      std::make_unique<run::ExecutionContext>(make_context(compiled_->evaluation_code(), {}, nullptr));
  boundary_context_->snapshot = [this] { return prepare_save_(); };
}

Worker::~Worker() {
  // Messages use memory of executors; and a step's streams may wait for the host, which others' memory would
  // wait for.
  serving_.reset();
  step_executor_.reset();
}

bool Worker::computes_on_gpu() const {
  return compiled_->device_of(options_.rank) == device::DeviceKind::cuda;
}

Worker::Positions Worker::micro_batches() const {
  const auto& division = compiled_->division();
  const int replica = compiled_->ownership().replica_of(options_.rank);
  Positions positions;
  const bool by_share = compiled_->layout().mode == layout::ServerMode::asynchronous;
  const layout::BatchDivision evaluation = division.of_evaluation();
  for (const layout::BatchPart& part : by_share ? division.parts_of({{0, 1}}) : division.parts_of(replica))
    positions.train.push_back({part.first_sample, part.samples});
  for (const layout::BatchPart& part : evaluation.parts_of(replica))
    positions.eval.push_back({part.first_sample, part.samples});
  return positions;
}

void Worker::make_batches(const Positions& positions) {
  const auto& division = compiled_->division();
  // Where no worker waits for another, whoever comes next takes the next share of a batch.
  const bool by_share = compiled_->layout().mode == layout::ServerMode::asynchronous;
  const int64_t shares = by_share ? division.leaves : 1;
  device::Device* const exchanging = device_->shares_host_memory() ? nullptr : device_.get();
  const auto form_of = [&](const program::ModelCode& code) {
    return BatchForm{
        .packed = code.options().packed, .device = exchanging, .most_samples = code.options().micro_batch};
  };
  const ReadAhead ahead = read_ahead_of(config_.data, options_.reading_threads);
  if (data_.train)
    train_batches_ = std::make_unique<PrefetchedBatches>(
        *data_.train, compiled_->graph(),
        data::SampleOrder(config_.trainer.seed, data_.train->size(), config_.data.shuffle),
        division.global_batch / shares, positions.train, ahead, shares, form_of(compiled_->training_code()));
  if (data_.eval)
    eval_batches_ = std::make_unique<PrefetchedBatches>(*data_.eval, compiled_->graph(),
                                                        data::SampleOrder::once(data_.eval->size()),
                                                        division.of_evaluation().global_batch, positions.eval,
                                                        ahead, 1, form_of(compiled_->evaluation_code()));
}

void Worker::share_progress() {
  if (options_.progress == nullptr) return;
  // A rank alone has nobody to wait for: the host's looks at events tell where it is, and no stream spends
  // microseconds on words between its kernels.
  device_tells_ = options_.world_size > 1;
  if (!device_tells_) return;
  const std::string problem = device_->share_host_memory(options_.progress, sizeof *options_.progress);
  device_tells_ = problem.empty();
  if (!device_tells_)
    log_warning(
        fmt::format("{} cannot write its progress to the host's memory ({}); training goes on, but if a rank "
                    "gets stuck on its GPU, the report says only what the host saw",
                    device_->description(), problem));
}

void Worker::spent_on(observe::StartupPart part) {
  if (options_.startup != nullptr) options_.startup->end(part);
}

run::ExecutionContext Worker::make_context(const program::ModelCode& code,
                                           const std::vector<data::SampleSpan>& micro_batches,
                                           run::BatchSource* batches) {
  const auto& division = compiled_->division();
  std::vector<int64_t> first_samples;
  for (const data::SampleSpan& span : micro_batches) first_samples.push_back(span.first_position);
  return {.graph = compiled_->graph(),
          .code = code,
          .memory = *memory_,
          .device = *device_,
          .optimizer = config_.optimizer,
          .group_rates = config_.group_rates,
          .updates_before = &updates_before_,
          .clip_norm = config_.trainer.clip_norm,
          .update_threads = is_worker() ? 1 : config_.parallel.server_threads,
          .matrix_threads = is_worker() ? config_.parallel.intra_op_threads : config_.parallel.server_threads,
          .sum_order =
              compiled_->device() == device::DeviceKind::cuda ? run::SumOrder::as_gpus : run::SumOrder::own,
          .static_count = static_cast<double>(division.global_batch) *
                          static_cast<double>(compiled_->graph().loss_positions()),
          .statistic_scale = 1.0 / (static_cast<double>(division.leaves) * division.micro_batches_per_leaf),
          .first_samples = std::move(first_samples),
          .batches = batches,
          .snapshot = {},
          .communicators = {}};
}

const program::Program* Worker::program_of(int number) const {
  switch (number) {
    case kStepProgram:
    case kReplayProgram:
      return &programs_.step;
    case kEvaluateProgram:
      return &programs_.evaluate;
    case kBoundaryProgram:
      return &programs_.boundary;
    case kServeProgram:
      return &programs_.serve;
    case kGatherProgram:
      return &programs_.gather;
    default:
      return nullptr;
  }
}

void Worker::go_on_from(RunPosition position) {
  if (!data_.train) return;
  length_.emplace(config_.trainer, data_.train->size(), position);
  if (train_batches_) train_batches_->shift(length_->shift_samples());
}

void Worker::learn_since(std::map<std::string, int64_t> updates) {
  finish_step();
  learning_since_ = std::move(updates);
  const auto& parameters = compiled_->graph().parameters;
  updates_before_.assign(learning_since_.empty() ? 0 : parameters.size(), 0);
  for (const auto& [name, count] : learning_since_) {
    const auto found = std::ranges::find(parameters, name, &model::Parameter::name);
    ensure(found != parameters.end(), "what learns is a parameter of the model");
    updates_before_[static_cast<size_t>(found - parameters.begin())] =
        static_cast<uint32_t>(std::min<int64_t>(count, UINT32_MAX - 1));
  }
}

void Worker::start_reading(uint64_t step) {
  if (!train_batches_) return;
  // Where shares are whoever's comes next, probably by turns.
  const bool by_share = compiled_->layout().mode == layout::ServerMode::asynchronous;
  const auto shares = static_cast<uint64_t>(compiled_->layout().pushes_per_step());
  train_batches_->start(by_share ? step * shares + static_cast<uint64_t>(options_.rank) : step);
}

int64_t Worker::step_of(const program::Program& program, uint64_t iteration) const {
  const bool by_share = serving_ && &program == &programs_.step;
  return static_cast<int64_t>(iteration) / (by_share ? serving_->updates_per_step() : 1);
}

std::string Worker::gpu_uuid() const {
  if (device_->kind() != device::DeviceKind::cuda) return "";
  for (const auto& gpu : device::probe_gpus().devices)
    if (gpu.ordinal == options_.gpu_ordinal) return gpu.uuid;
  return "";
}

std::vector<comm::AgreementField> Worker::agreement_fields() const {
  std::vector<comm::AgreementField> fields;
  fields.push_back({"lockstep binary", binary_identity(), ExitCode::usage});
  fields.push_back({"arithmetic",
                    compiled_->device_of(options_.rank) == compiled_->device()
                        ? arithmetic_fingerprint(*device_, compiled_->division().summed_samples())
                        : comm::kAgreesWithAny,
                    ExitCode::usage});
  fields.push_back({"libc", libc_version(), ExitCode::usage});
  if (options_.device == device::DeviceKind::cuda && options_.world_size > 1)
    fields.push_back({"communication library", comm::gpu_communication_library(), ExitCode::usage});
  for (const auto& [name, value] : config_.math_fields)
    fields.push_back({"config " + name, value, ExitCode::usage});
  fields.push_back({"config", to_hex(config_.config_hash), ExitCode::usage});
  if (const auto& profile = config_.parallel.profile)
    fields.push_back(
        {"parallel.profile", to_hex(hash64(config::profile_to_text(*profile))), ExitCode::usage});
  if (data_.train) fields.push_back({"training data", to_hex(data_.train->identity()), ExitCode::data});
  if (data_.eval) fields.push_back({"evaluation data", to_hex(data_.eval->identity()), ExitCode::data});
  fields.push_back({"programs", to_hex(compiled_->program_hash()), ExitCode::usage});
  return fields;
}

bool Worker::needs_attention() const {
  return std::ranges::any_of(channels_, [](const auto& channel) { return channel->needs_host(); });
}

void Worker::finish_step() const {
  if (step_executor_) step_executor_->finish();
}

std::vector<int> Worker::end_session() {
  finish_step();
  serving_->finish();
  return serving_->meet();
}

void Worker::gather() {
  gather_executor_->run({});
  gather_executor_->finish();
}

device::HostWindow& Worker::window() const {
  finish_step();
  return *window_;
}

// All programs share memory and communicators: one is complete before another begins.

void Worker::run_observed_step(const run::StepInputs& inputs, const run::KernelObserver& observer) {
  finish_step();
  last_was_observed_ = true;
  observer_ = observer;
  replay_executor_->run(inputs);
  replay_executor_->finish();
  observer_ = {};
}

void Worker::replay_step(run::StepInputs inputs, const run::KernelObserver& observer) {
  const bool last_was_observed = last_was_observed_;
  inputs.suppress_updates = true;
  run_observed_step(inputs, observer);
  last_was_observed_ = last_was_observed;
}

program::Verdict Worker::evaluate(const std::function<bool()>& stop_requested) {
  const int64_t samples_each = compiled_->division().of_evaluation().global_batch;
  const int64_t iterations = (data_.eval->size() + samples_each - 1) / samples_each;
  finish_step();
  if (eval_batches_) eval_batches_->start(0);
  program::Verdict total;
  run::StepInputs inputs;
  for (int64_t i = 0; i < iterations; ++i) {
    inputs.iteration = static_cast<uint64_t>(i);
    inputs.constants.kernels.samples = data_.eval->size() - i * samples_each;
    inputs.stop_requested = stop_requested && stop_requested() ? 1 : 0;
    evaluate_executor_->run(inputs);
    const program::Verdict part = verdict_of(programs_.evaluate);
    total.stop_requested = part.stop_requested;
    if (part.stop_requested > 0) break;
    total.loss_sum += part.loss_sum;
    total.count += part.count;
    total.correct += part.correct;
  }
  evaluate_executor_->finish();
  return total;
}

bool Worker::run_boundary(const std::function<bool()>& prepare) {
  finish_step();
  prepare_save_ = prepare;
  boundary_executor_->run({});
  boundary_executor_->finish();
  prepare_save_ = {};
  return verdict_of(programs_.boundary).loss_sum == 0;
}

std::byte* Worker::snapshot() const {
  for (const auto& instruction : programs_.boundary.instructions)
    for (const auto& operand : instruction.operands)
      if (instruction.kind == program::InstructionKind::snapshot &&
          operand.role == program::Role::destination)
        return memory_->at(programs_.boundary, operand.range);
  return nullptr;  // an empty share
}

program::Verdict Worker::verdict_of(const program::Program& program) const {
  for (const auto& instruction : program.instructions)
    if (instruction.kind == program::InstructionKind::agree)
      for (const auto& operand : instruction.operands)
        if (operand.role == program::Role::verdict) {
          program::Verdict verdict;
          device_->copy_now(&verdict, memory_->at(program, operand.range), sizeof verdict);
          // The sign of what is no number means nothing, and people would see it.
          for (double* value : {&verdict.loss_sum, &verdict.gradient_norm})
            if (std::isnan(*value)) *value = std::numeric_limits<double>::quiet_NaN();
          return verdict;
        }
  throw InternalError(fmt::format("the {} program agrees on nothing", program.name));
}

std::vector<uint64_t> Worker::parameter_digests() const {
  for (const auto& instruction : programs_.step.instructions)
    if (instruction.kind == program::InstructionKind::digest)
      for (const auto& operand : instruction.operands)
        if (operand.role == program::Role::chunks) {
          std::vector<uint64_t> digests(static_cast<size_t>(operand.range.size_bytes) / sizeof(uint64_t));
          device_->copy_now(digests.data(), memory_->at(programs_.step, operand.range),
                            operand.range.size_bytes);
          return digests;
        }
  return {};
}

comm::TransferredBytes Worker::transferred() const {
  comm::TransferredBytes sum;
  if (serving_) sum = serving_->transferred();
  for (const comm::Communicator* channel : step_context_->communicators) {
    if (channel == nullptr) continue;
    const comm::TransferredBytes bytes = channel->transferred();
    sum.sent += bytes.sent;
    sum.received += bytes.received;
  }
  return sum;
}

int64_t Worker::peak_host_bytes() const {
  int64_t bytes = device_->memory_use(device::MemoryKind::host).peak_bytes;
  for (const auto* batches : {train_batches_.get(), eval_batches_.get()})
    if (batches != nullptr) bytes += batches->held_bytes();
  return bytes;
}

std::vector<HeldParameter> Worker::held_parameters() const {
  std::vector<HeldParameter> held;
  for (size_t p = 0; p < programs_.step.parameters.size(); ++p)
    if (const auto& place = programs_.step.parameters[p]; !place.held.empty())
      held.push_back({static_cast<int>(p), place.held,
                      reinterpret_cast<float*>(memory_->at(programs_.step, place.held_range()))});
  return held;
}

float* Worker::parameter_data(int parameter) const {
  const auto& place = nth(programs_.step.parameters, parameter);
  ensure(place.is_held_whole(), "a parameter is read whole where it is held whole");
  return reinterpret_cast<float*>(memory_->at(programs_.step, place.held_range()));
}

float* Worker::state_data(int parameter, int slot) const {
  const auto& place = nth(programs_.step.parameters, parameter);
  if (static_cast<size_t>(slot) >= place.states.size())
    throw InternalError(
        fmt::format("this worker holds no optimizer state {} of parameter {}", slot, place.name));
  return reinterpret_cast<float*>(memory_->at(programs_.step, place.state_range(slot)));
}

}  // namespace lockstep::train
