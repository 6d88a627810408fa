// A worker's communicators, and the executors that use them.

#include <utility>

#include "base/index.h"
#include "comm/communicator.h"
#include "program/channel_use.h"
#include "run/patience.h"
#include "train/worker/worker.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {

void Worker::connect_groups(comm::Communicator& world, const program::Program& program,
                            run::ExecutionContext& context) {
  // A channel for each group, made in one order on all ranks: every rank's program lists the same groups.
  for (int number = 0; number < static_cast<int>(program.groups.size()); ++number) {
    const program::Group& group = program.group(number);
    const bool member = group.members.contains(options_.rank);
    if (group.members.size() == 1) {  // which takes nobody else, and may be another rank for each
      communicators_.push_back(member ? comm::make_solo_communicator() : nullptr);
      context.communicators.push_back(communicators_.back().get());
      continue;
    }
    // Those of GPUs take memory and time, and programs run one after the other: groups of one name share one.
    const bool of_device = group.transport == program::Transport::device;
    if (const auto made = gpu_channels_.find(group.name); of_device && made != gpu_channels_.end()) {
      context.communicators.push_back(made->second);
      continue;
    }
    communicators_.push_back(world.split(member ? 0 : -1, options_.rank));
    comm::Communicator* channel = communicators_.back().get();
    if (of_device) {
      if (member) channel = connect_gpus(*channel, group.name);
      gpu_channels_[group.name] = channel;
    } else if (const int64_t staging = staged_bytes(program, number, device_->kind());
               member && staging > 0) {
      channels_.push_back(
          comm::make_staged_communicator(std::move(communicators_.back()), *device_, staging));
      channel = channels_.back().get();
    } else if (member && group.transport == program::Transport::shared_memory &&
               !channel->sums_along_tree()) {
      // Threads of one process need no other memory than theirs.
      channels_.push_back(comm::make_shared_memory_communicator(*channel));
      channel = channels_.back().get();
    }
    context.communicators.push_back(channel);
  }
}

comm::Communicator* Worker::connect_gpus(comm::Communicator& channel, const std::string& group) {
  program::ChannelUse use;
  for (const program::Program* program :
       {&programs_.step, &programs_.evaluate, &programs_.boundary, &programs_.gather})
    use.add(program::channel_use(*program, group));
  const auto algorithm = config_.parallel.algorithm;
  const comm::GpuCommunicatorOptions options{
      .algorithm = algorithm == parallel::AllReduceAlgorithm::ring   ? comm::GpuAlgorithm::ring
                   : algorithm == parallel::AllReduceAlgorithm::tree ? comm::GpuAlgorithm::tree
                                                                     : comm::GpuAlgorithm::automatic,
      .partners = comm::ExchangePartners{.send = {use.sends_to.begin(), use.sends_to.end()},
                                         .receive = {use.receives_from.begin(), use.receives_from.end()}},
      .only_exchanges = use.only_exchanges};
  channels_.push_back(channel.size() > 1 ? comm::make_gpu_communicator(channel, *device_, options)
                                         : comm::make_solo_communicator());
  return channels_.back().get();
}

void Worker::connect(comm::Communicator& world) {
  connect_groups(world, programs_.step, *step_context_);
  connect_groups(world, programs_.evaluate, *evaluate_context_);
  connect_groups(world, programs_.boundary, *boundary_context_);
  if (compiled_->layout().has_sessions()) connect_servers(world);
  spent_on(observe::StartupPart::communicators);
  step_executor_ = make_executor(kStepProgram, *step_context_);
  // A step of a session happens once: what it has pushed is applied.
  if (!serving_) replay_executor_ = make_executor(kReplayProgram, *step_context_, &observer_);
  if (data_.eval) evaluate_executor_ = make_executor(kEvaluateProgram, *evaluate_context_);
  boundary_executor_ = make_executor(kBoundaryProgram, *boundary_context_);
}

void Worker::connect_servers(comm::Communicator& world) {
  serve_context_ =
      std::make_unique<run::ExecutionContext>(make_context(compiled_->training_code(), {}, nullptr));
  gather_context_ =
      std::make_unique<run::ExecutionContext>(make_context(compiled_->training_code(), {}, nullptr));
  connect_groups(world, programs_.gather, *gather_context_);
  gather_executor_ = make_executor(kGatherProgram, *gather_context_);
  ServingOptions options{.timeout = {},
                         .progress = options_.progress,
                         .company = {},
                         .recorder = options_.recorder,
                         .before_update = {}};
  // Programs of GPUs count on communicators that do not outlive a lost rank: there a loss ends the job.
  if (compiled_->layout().mode == layout::ServerMode::asynchronous &&
      compiled_->device() != device::DeviceKind::cuda)
    options.company = options_.company;
  if (options_.progress == nullptr) options.timeout = run::ExecutorOptions().communication_timeout;
  if (options_.before_instruction)
    options.before_update = [this](int64_t step, int instruction) {
      options_.before_instruction(*this, programs_.serve, static_cast<uint64_t>(step), instruction);
    };
  serving_ = std::make_unique<Serving>(world, *compiled_, programs_, *serve_context_, std::move(options));
  step_context_->session = serving_->worker();
}

std::unique_ptr<run::Executor> Worker::make_executor(int program_number, const run::ExecutionContext& context,
                                                     const run::KernelObserver* observer) {
  const program::Program& program = *program_of(program_number);
  run::ExecutorOptions options{.progress = options_.progress,
                               .program_number = program_number,
                               .device_tells = device_tells_,
                               .slowdown = options_.slowdown,
                               .failed = options_.failed};
  if (options_.progress != nullptr) options.communication_timeout.reset();
  if (program_number == kStepProgram || program_number == kReplayProgram)
    options.recorder = options_.recorder;
  options.samples_kernels = program_number == kStepProgram;
  // A server waits for most of a step, and may share its cores with workers.
  if (!is_worker()) options.longest_nap = run::kLongestNap;
  if (options_.before_instruction)
    options.before = [this, &program](uint64_t iteration, int instruction) {
      options_.before_instruction(*this, program, iteration, instruction);
    };
  if (serving_ && program_number == kStepProgram)
    options.alongside = [serving = serving_.get()] { return serving->alongside(); };
  return options_.asynchronous || computes_on_gpu()
             ? run::make_stream_executor(program, context, options, *device_, observer)
             : run::make_inline_executor(program, context, options, observer);
}

}  // namespace lockstep::train
