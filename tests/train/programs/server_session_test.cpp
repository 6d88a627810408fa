// A server of sessions alone, in memory of a compiled program, and workers that the test plays.

#include "run/serve/server_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <span>

#include "layout/layout.h"
#include "program/memory/memory_plan.h"
#include "run/program_memory.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

constexpr const char* kServerSessionConfig = R"(
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
  EagerWorker(Ports& ports, int server, const std::vector<int64_t>& ranges, program::SessionTerms terms)
      : to_servers_(*ports.first), to_workers_(*ports.second), server_(server), terms_(std::move(terms)) {
    for (const int64_t size_bytes : ranges) ranges_.emplace_back(static_cast<size_t>(size_bytes));
  }

  /// Is called with the ranges that a step got, before it pushes them.
  std::function<void(std::vector<std::vector<std::byte>>& ranges)> on_answer;
  double gradient_scale = 1;  ///< that its pushes tell

  /// Steps of which everything is pushed.
  int64_t steps() const { return step_; }

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
      for (int64_t begin = 0; begin < size_of(range); begin += terms_.slice_at(begin, size_of(range)))
        do_transfer(
            [this, &range, size_of, begin] {
              return to_workers_.start(
                  comm::receive_from(server_, range.data() + begin, terms_.slice_at(begin, size_of(range))));
            },
            &to_workers_);
    todo_.push_back([this] {
      if (on_answer) on_answer(ranges_);
      return true;
    });
    for (size_t i = 0; i < ranges_.size(); ++i) {
      do_transfer([this, i] {
        question_ = {.kind = run::WorkerMessage::Kind::push,
                     .range = static_cast<int32_t>(i),
                     .clock = step_,
                     .completes = i + 1 == ranges_.size() ? 1 : 0,
                     .facts = {.count = 1, .gradient_scale = gradient_scale}};
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
  program::SessionTerms terms_;
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

/// A dedicated server of two workers, and its memory.
struct ServedModel {
  static constexpr int kWorkers = 2;

  static config::RunConfig config_with(const char* layout, const std::vector<std::string>& overrides) {
    config::RunConfig config = config::parse_run_config(kServerSessionConfig, "test", overrides);
    config.parallel.layout = layout::parse_layout(layout);
    return config;
  }

  explicit ServedModel(const char* layout, const std::vector<std::string>& overrides = {})
      : config_(config_with(layout, overrides)) {
    for (const auto& instruction : programs_.serve.instructions)
      for (const auto& operand : instruction.operands) {
        if (operand.role == program::Role::state)
          std::fill_n(memory_.at(programs_.serve, operand.range), operand.range.size_bytes, std::byte{0});
        if (operand.role != program::Role::parameters) continue;
        ranges_.push_back(operand.range.size_bytes);
        contents_.emplace_back(reinterpret_cast<float*>(memory_.at(programs_.serve, operand.range)),
                               static_cast<size_t>(operand.range.size_bytes / 4));
      }
  }

  run::ServerSession make_server(const run::SessionPorts& ports, const program::SessionTerms& terms) const {
    return {ports, {0, 1}, 0, terms, programs_.serve, context_};
  }

  config::RunConfig config_;
  compile::CompiledRun run_ = compile_run(config_, {.world_size = kWorkers + 1});
  compile::CompiledRun::RankPrograms programs_ = run_.compile(kWorkers);
  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  run::ProgramMemory memory_{*device_, std::span(&programs_.serve_plan, 1)};
  run::ExecutionContext context_{.graph = run_.graph(),
                                 .code = run_.training_code(),
                                 .memory = memory_,
                                 .device = *device_,
                                 .optimizer = config_.optimizer,
                                 .group_rates = config_.group_rates,
                                 .communicators = {}};
  std::vector<int64_t> ranges_;             // their bytes
  std::vector<std::span<float>> contents_;  // of each
};

class ServerOfTwo : public ::testing::Test, protected ServedModel {
 protected:
  ServerOfTwo() : ServedModel("dp=2,sync=ps,mode=async") {}
};

/// What one update of a model makes of its parameters if muon updates its hidden layer. One worker pushes
/// `factor` times its gradients, and says that they are clipped to `gradient_scale` times what it pushes.
std::vector<std::vector<float>> updated_by_muon(float factor, double gradient_scale) {
  ServedModel served("dp=2,sync=ps,mode=stale,bound=1",
                     {"model.mlp.hidden=[8, 6]", "optimizer.muon={adamw: {learning_rate: 0.05}}"});
  for (const std::span<float> contents : served.contents_)
    for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<float>(i % 7) / 8;
  auto ports = open_ports(ServedModel::kWorkers + 1);
  const program::SessionTerms terms = served.run_.session_terms();
  run::ServerSession server = served.make_server({*ports.back().first, *ports.back().second}, terms);
  server.begin({.steps = 1,
                .constants =
                    [](int64_t, int64_t) {
                      return run::StepScalars{
                          .kernels = {},
                          .update = {.learning_rate = 0.1, .beta1_power = 0.9, .beta2_power = 0.95}};
                    },
                .stop_requested = {},
                .before_update = {}});
  std::deque<EagerWorker> workers;
  for (int worker = 0; worker < ServedModel::kWorkers; ++worker) {
    EagerWorker& its = workers.emplace_back(ports[static_cast<size_t>(worker)], ServedModel::kWorkers,
                                            served.ranges_, terms);
    its.gradient_scale = worker == 0 ? gradient_scale : 1;
    its.on_answer = [by = worker == 0 ? factor : 1.0f, random = std::mt19937(static_cast<unsigned>(worker))](
                        std::vector<std::vector<std::byte>>& ranges) mutable {
      for (auto& range : ranges) {
        const std::span<float> gradients(reinterpret_cast<float*>(range.data()), range.size() / 4);
        for (float& gradient : gradients)
          gradient = by * (static_cast<float>(random()) / 2147483648.0f - 1.0f);
      }
    };
  }
  for (int turn = 0; turn < 20'000 && !server.is_over(); ++turn) {
    for (EagerWorker& worker : workers) worker.advance();
    server.advance();
  }
  EXPECT_TRUE(server.is_over());
  EXPECT_EQ(server.totals().updates, 1);
  std::vector<std::vector<float>> contents;
  for (const std::span<float> of_range : served.contents_)
    contents.emplace_back(of_range.begin(), of_range.end());
  return contents;
}

/// With a bound, servers clip what was pushed: of matrices, too. A quarter is exact.
TEST(ServerOfMatrices, ClipsThePushesOfOneWorker) {
  const auto clipped = updated_by_muon(1, 0.25);
  EXPECT_EQ(clipped, updated_by_muon(0.25f, 1));
  const auto whole = updated_by_muon(1, 1);
  ASSERT_EQ(whole.size(), clipped.size());
  size_t large = 0;  // the matrix, and the first layer's weights
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i].size() >= 48) {
      ++large;
      EXPECT_NE(whole[i], clipped[i]) << "range " << i;
    }
  EXPECT_GE(large, 1u);
}

TEST_F(ServerOfTwo, DoesABoundedAmountOfWorkInACallHoweverFastWorkersAre) {
  constexpr int64_t kSteps = 40;
  ASSERT_GT(ranges_.size(), 1u);
  auto ports = open_ports(kWorkers + 1);
  std::deque<EagerWorker> workers;
  for (int worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back(ports[static_cast<size_t>(worker)], kWorkers, ranges_, run_.session_terms());
  const auto all_advance = [&] {
    for (EagerWorker& worker : workers) worker.advance();
  };
  TurnTakingPort to_servers(*ports.back().first, all_advance), to_workers(*ports.back().second, all_advance);
  run::ServerSession server = make_server({to_servers, to_workers}, run_.session_terms());
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
  EXPECT_EQ(updates, kSteps * static_cast<int64_t>(ranges_.size()));
  EXPECT_EQ(server.totals().updates, kSteps);
  EXPECT_LE(most, kWorkers);
}

TEST_F(ServerOfTwo, AnswersInSlicesThatDelayNobodyAndMaySeeMoreThanTheFirst) {
  constexpr int64_t kSteps = 7;
  program::SessionTerms terms = run_.session_terms();
  terms.slice_bytes = 20;
  ASSERT_GT(ranges_[0], program::kSlicesUnderWay * terms.slice_bytes);
  ASSERT_NE(ranges_[0] % terms.slice_bytes, 0) << "the last slice is a shorter one";
  for (const std::span<float> contents : contents_) std::ranges::fill(contents, 1.0f);
  auto ports = open_ports(kWorkers + 1);
  run::ServerSession server = make_server({*ports.back().first, *ports.back().second}, terms);
  server.begin(
      {.steps = kSteps,
       .constants = [](int64_t,
                       int64_t) { return run::StepScalars{.kernels = {}, .update = {.learning_rate = 0.5}}; },
       .stop_requested = {},
       .before_update = {}});

  // One worker asks, and listens to nothing that the server says; the other makes all other steps.
  Ports& slow = ports[0];
  run::WorkerMessage question{.kind = run::WorkerMessage::Kind::ask, .facts = {}};
  comm::Ticket asked = slow.first->start(comm::send_to(kWorkers, &question, sizeof question));
  while (!slow.first->poll(asked)) server.advance();
  server.advance();
  EagerWorker other(ports[1], kWorkers, ranges_, terms);
  const auto turns = [&] {  // more than all that can be done takes
    for (int turn = 0; turn < 5'000; ++turn) {
      other.advance();
      server.advance();
    }
  };
  turns();
  EXPECT_EQ(other.steps(), kSteps - 1);
  EXPECT_EQ(server.totals().updates, kSteps - 1);
  EXPECT_FALSE(server.is_over()) << "one step is with the slow worker";

  // What was copied before the updates, and what was copied after them.
  run::ServerMessage answer;
  std::vector<float> got(static_cast<size_t>(ranges_[0] / 4));
  std::vector<comm::Ticket> tickets{slow.second->start(comm::receive_from(kWorkers, &answer, sizeof answer))};
  for (int64_t begin = 0; begin < ranges_[0]; begin += terms.slice_bytes)
    tickets.push_back(slow.second->start(
        comm::receive_from(kWorkers, got.data() + begin / 4, terms.slice_at(begin, ranges_[0]))));
  for (comm::Ticket& ticket : tickets)
    while (!slow.second->poll(ticket)) server.advance();
  EXPECT_EQ(answer.version, 0);
  const auto early = static_cast<ptrdiff_t>(program::kSlicesUnderWay * terms.slice_bytes / 4);
  EXPECT_THAT(std::vector(got.begin(), got.begin() + early), testing::Each(1.0f));
  for (const ptrdiff_t changed : {ptrdiff_t{0}, early})
    EXPECT_LT(contents_[0][static_cast<size_t>(changed)], 1.0f) << changed;
  EXPECT_TRUE(std::equal(got.begin() + early, got.end(), contents_[0].begin() + early));

  // It hangs again, now with the slices of the next range, and is given up: the other makes its step, too.
  server.advance();
  server.lost(0);
  turns();
  EXPECT_EQ(other.steps(), kSteps);
  EXPECT_TRUE(server.is_over());
  EXPECT_TRUE(server.has_lost_transfers());
  EXPECT_EQ(server.totals().updates, kSteps);
}

/// Places of slices are used again and again, from one answer and one session to the next.
TEST_F(ServerOfTwo, AnswersEachStepOfEachSessionWithWhatItHolds) {
  constexpr int64_t kSteps = 5;
  program::SessionTerms terms = run_.session_terms();
  terms.slice_bytes = 20;
  int64_t slices = 0;
  for (const int64_t size_bytes : ranges_) slices += (size_bytes + terms.slice_bytes - 1) / terms.slice_bytes;
  ASSERT_NE(slices % program::kSlicesUnderWay, 0) << "each answer begins in another place";
  float value = 1;
  for (const std::span<float> contents : contents_)
    for (float& one : contents) one = value++;
  auto ports = open_ports(kWorkers + 1);
  run::ServerSession server = make_server({*ports.back().first, *ports.back().second}, terms);
  int64_t answers = 0;
  for (int session = 0; session < 2; ++session) {
    server.begin({.steps = kSteps,
                  .constants =
                      [](int64_t, int64_t) {
                        return run::StepScalars{.kernels = {}, .update = {.learning_rate = 0.5}};
                      },
                  .stop_requested = {},
                  .before_update = {}});
    // One worker makes all steps, so that nothing changes while it is answered.
    EagerWorker idle(ports[0], kWorkers, ranges_, terms), busy(ports[1], kWorkers, ranges_, terms);
    busy.on_answer = [&](const std::vector<std::vector<std::byte>>& ranges) {
      ++answers;
      for (size_t i = 0; i < ranges.size(); ++i)
        EXPECT_TRUE(std::ranges::equal(ranges[i], std::as_bytes(contents_[i])))
            << "session " << session << ", answer " << answers << ", range " << i;
    };
    for (int turn = 0; turn < 20'000 && busy.steps() < kSteps; ++turn) {
      busy.advance();
      server.advance();
    }
    ASSERT_EQ(busy.steps(), kSteps);
    for (int turn = 0; turn < 20'000 && !server.is_over(); ++turn) {
      busy.advance();
      idle.advance();
      server.advance();
    }
    ASSERT_TRUE(server.is_over());
  }
  EXPECT_EQ(answers, 2 * kSteps);
}

}  // namespace
}  // namespace lockstep::train
