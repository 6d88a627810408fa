// A server of sessions alone, in memory of a compiled program, and workers that the test plays.

#include "run/serve/server_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "layout/layout.h"
#include "program/memory/memory_plan.h"
#include "run/program_memory.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

constexpr const char* kConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 8 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { reduction: FAST bucket_bytes: 64 }
)";

using Ports = std::pair<std::unique_ptr<comm::MessagePort>, std::unique_ptr<comm::MessagePort>>;

/// A port whose owner cannot look at a message without somebody else having had a turn.
class TurnTakingPort : public comm::MessagePort {
 public:
  TurnTakingPort(comm::MessagePort& real, std::function<void()> others_turn)
      : real_(real), others_turn_(std::move(others_turn)) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  comm::Ticket start(const comm::Transfer& transfer) override { return real_.start(transfer); }
  bool poll(comm::Ticket& transfer) override {
    others_turn_();
    return real_.poll(transfer);
  }
  comm::TransferredBytes transferred() const override { return real_.transferred(); }
  void abort(std::string_view reason) noexcept override { real_.abort(reason); }

 private:
  comm::MessagePort& real_;
  std::function<void()> others_turn_;
};

/// Makes steps as fast as the server lets it: asks, gets all ranges, and pushes them as they are.
class EagerWorker {
 public:
  EagerWorker(Ports& ports, int server, std::vector<int64_t> ranges)
      : to_servers_(*ports.first), to_workers_(*ports.second), server_(server) {
    for (const int64_t size_bytes : ranges) ranges_.emplace_back(static_cast<size_t>(size_bytes));
  }

  void advance() {
    if (todo_.empty() && !refused_) make_step();
    while (!todo_.empty() && todo_.front()()) todo_.pop_front();
  }

 private:
  void make_step() {
    do_transfer([this] {
      question_ = {.kind = run::WorkerMessage::Kind::ask, .clock = step_, .facts = {}};
      return to_servers_.start(comm::send_to(server_, &question_, sizeof question_));
    });
    do_transfer([this] { return to_workers_.start(comm::receive_from(server_, &answer_, sizeof answer_)); },
                &to_workers_);
    todo_.push_back([this] {
      refused_ = answer_.kind == run::ServerMessage::Kind::refuse;
      todo_.resize(1);
      refused_ ? leave() : push();
      return true;
    });
  }
  void push() {
    const auto size_of = [](const std::vector<std::byte>& range) {
      return static_cast<int64_t>(range.size());
    };
    for (auto& range : ranges_)
      do_transfer(
          [this, &range, size_of] {
            return to_workers_.start(comm::receive_from(server_, range.data(), size_of(range)));
          },
          &to_workers_);
    for (size_t i = 0; i < ranges_.size(); ++i) {
      do_transfer([this, i] {
        question_ = {.kind = run::WorkerMessage::Kind::push,
                     .range = static_cast<int32_t>(i),
                     .clock = step_,
                     .completes = i + 1 == ranges_.size() ? 1 : 0,
                     .facts = {.count = 1}};
        return to_servers_.start(comm::send_to(server_, &question_, sizeof question_));
      });
      do_transfer([this, i, size_of] {
        return to_servers_.start(comm::send_to(server_, ranges_[i].data(), size_of(ranges_[i])));
      });
    }
    todo_.push_back([this] { return ++step_ > 0; });
  }
  void leave() {
    do_transfer([this] {
      question_ = {.kind = run::WorkerMessage::Kind::leave, .facts = {}};
      return to_servers_.start(comm::send_to(server_, &question_, sizeof question_));
    });
  }
  void do_transfer(std::function<comm::Ticket()> start, comm::MessagePort* port = nullptr) {
    comm::MessagePort& by = port != nullptr ? *port : to_servers_;
    todo_.push_back([&by, start = std::move(start), ticket = std::optional<comm::Ticket>()]() mutable {
      if (!ticket) ticket = start();
      return by.poll(*ticket);
    });
  }

  comm::MessagePort &to_servers_, &to_workers_;
  int server_;
  std::vector<std::vector<std::byte>> ranges_;
  std::deque<std::function<bool()>> todo_;
  run::WorkerMessage question_;
  run::ServerMessage answer_;
  int64_t step_ = 0;
  bool refused_ = false;
};

/// Opened together on all ranks.
std::vector<Ports> open_ports(int ranks) {
  std::vector<Ports> ports(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    auto to_servers = world.open_port();
    ports[static_cast<size_t>(rank)] = {std::move(to_servers), world.open_port()};
  });
  return ports;
}

TEST(ServerSession, ACallDoesABoundedAmountOfWorkHoweverFastWorkersAre) {
  constexpr int kWorkers = 2;
  constexpr int64_t kSteps = 40;
  config::RunConfig config = config::parse_run_config(kConfig, "test", {});
  config.parallel.layout = layout::parse_layout("dp=2,sync=ps,mode=async");
  const compile::CompiledRun run = compile_run(config, {.world_size = kWorkers + 1});
  const auto programs = run.compile(kWorkers);
  const auto device = device::make_cpu_device();
  const run::ProgramMemory memory(*device, std::span(&programs.serve_plan, 1));
  const run::ExecutionContext context{.graph = run.graph(),
                                      .code = run.training_code(),
                                      .memory = memory,
                                      .device = *device,
                                      .optimizer = config.optimizer,
                                      .communicators = {}};
  std::vector<int64_t> ranges;
  for (const auto& instruction : programs.serve.instructions)
    for (const auto& operand : instruction.operands)
      if (operand.role == program::Role::parameters) ranges.push_back(operand.range.size_bytes);
  ASSERT_GT(ranges.size(), 1u);

  auto ports = open_ports(kWorkers + 1);
  std::deque<EagerWorker> workers;
  for (int worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back(ports[static_cast<size_t>(worker)], kWorkers, ranges);
  const auto all_advance = [&] {
    for (EagerWorker& worker : workers) worker.advance();
  };
  TurnTakingPort to_servers(*ports.back().first, all_advance), to_workers(*ports.back().second, all_advance);
  run::ServerSession server({to_servers, to_workers}, {0, 1}, 0, run.session_terms(), programs.serve,
                            context);
  int updates = 0, most = 0;  // of ranges: in all, and of one call
  server.begin({.steps = kSteps,
                .constants =
                    [&](int64_t, int64_t) {
                      ++updates;
                      return run::StepScalars{};
                    },
                .stop_requested = {},
                .before_update = {}});
  while (!server.is_over()) {
    const int before = updates;
    if (!server.advance()) all_advance();
    most = std::max(most, updates - before);
  }
  EXPECT_EQ(updates, kSteps * static_cast<int64_t>(ranges.size()));
  EXPECT_EQ(server.totals().updates, kSteps);
  EXPECT_LE(most, kWorkers);
}

}  // namespace
}  // namespace lockstep::train
