// A worker's side of sessions on streams of a device with memory of its own: a program written by hand, and a
// server that the test plays, whenever the executor looks after what goes on beside the program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>

#include "lockstep/error.h"
#include "mentions.h"
#include "program/memory/memory_plan.h"
#include "run/executor.h"
#include "run/serve/worker_session.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Adds what is pulled to what is pushed, which the device keeps.
constexpr const char* kProgram = R"(
program step rank=0 world_size=2 reduction=fast leaves=1 micro_batches_per_leaf=1
group servers 0 1
lane compute compute
lane pull comm
lane push comm
buffer param.0 space=parameters category=parameters size=8
buffer param.1 space=parameters category=parameters size=8
buffer grad.0 space=gradients category=gradients size=8
buffer grad.1 space=gradients category=gradients size=8
buffer verdict space=scalars category=staging size=64
0 pull @pull segment=0 group=servers deadline=communication writes parameters:param.0@1
1 pull @pull segment=1 group=servers deadline=communication writes parameters:param.1@1
2 add @compute updates destination:grad.0 reads source:param.0
3 add @compute updates destination:grad.1 reads source:param.1
4 push @push segment=1 group=servers deadline=communication reads gradients:grad.1@1 verdict:verdict[0+32]
5 push @push segment=0 group=servers deadline=communication reads gradients:grad.0@1 verdict:verdict[0+32]
)";

using Pair = std::array<float, 2>;

/// Does one thing after the other, each as soon as the last is done.
class PlayedServer {
 public:
  PlayedServer(comm::MessagePort& to_servers, comm::MessagePort& to_workers)
      : to_servers_(to_servers), to_workers_(to_workers) {}

  void advance() {
    ++looks_;
    for (; !script_.empty() && script_.front()(); script_.pop_front())
      ;
  }
  bool is_done() const { return script_.empty(); }

  void expect_asked() {
    script_.push_back(transfer(to_servers_, comm::receive_from(0, &heard_, sizeof heard_)));
    script_.push_back([this] {
      EXPECT_EQ(heard_.kind, run::WorkerMessage::Kind::ask);
      return true;
    });
  }
  void answer() { send(to_workers_, &answer_, sizeof answer_); }
  void refuse() {
    script_.push_back([this] {
      answer_.kind = run::ServerMessage::Kind::refuse;
      return true;
    });
    answer();
  }
  void send_range(const Pair& contents) {
    sent_.push_back(contents);
    send(to_workers_, sent_.back().data(), sizeof(Pair));
  }
  void expect_push(int range, const Pair& gradients, double loss_sum) {
    script_.push_back(transfer(to_servers_, comm::receive_from(0, &heard_, sizeof heard_)));
    script_.push_back(transfer(to_servers_, comm::receive_from(0, pushed_.data(), sizeof pushed_)));
    script_.push_back([this, range, gradients, loss_sum] {
      EXPECT_EQ(heard_.kind, run::WorkerMessage::Kind::push);
      EXPECT_EQ(heard_.range, range);
      EXPECT_EQ(pushed_, gradients);
      EXPECT_EQ(heard_.facts.loss_sum, loss_sum);
      return true;
    });
  }
  void expect_left() {
    script_.push_back(transfer(to_servers_, comm::receive_from(0, &heard_, sizeof heard_)));
  }
  /// Until it was looked after so often.
  void let_wait(int looks) {
    script_.push_back([this, looks, from = -1]() mutable {
      if (from < 0) from = looks_;
      return looks_ >= from + looks;
    });
  }
  void hear_no_more() {
    script_.push_back([this] {
      to_servers_.abort("the link is gone");
      return true;
    });
  }
  void say_no_more() {
    script_.push_back([this] {
      to_workers_.abort("the server's disk is on fire");
      return true;
    });
  }
  int looks() const { return looks_; }

 private:
  static std::function<bool()> transfer(comm::MessagePort& port, const comm::Transfer& what) {
    return [&port, what, ticket = std::optional<comm::Ticket>()]() mutable {
      if (!ticket) ticket = port.start(what);
      return port.poll(*ticket);
    };
  }
  void send(comm::MessagePort& port, const void* data, int64_t size_bytes) {
    script_.push_back(transfer(port, comm::send_to(0, data, size_bytes)));
  }

  comm::MessagePort &to_servers_, &to_workers_;
  std::deque<std::function<bool()>> script_;
  std::deque<Pair> sent_;
  run::WorkerMessage heard_;
  run::ServerMessage answer_;
  Pair pushed_{};
  int looks_ = 0;
};

class StreamSession : public ::testing::Test {
 protected:
  StreamSession() {
    program_.name = "step";
    program::derive_dependencies(program_);
    const program::MemoryPlan plan = program::plan_memory(program_);
    memory_ = std::make_unique<run::ProgramMemory>(*device_, std::span(&plan, 1));
    context_ =
        std::make_unique<run::ExecutionContext>(run::ExecutionContext{.graph = run_.graph(),
                                                                      .code = run_.training_code(),
                                                                      .memory = *memory_,
                                                                      .device = *device_,
                                                                      .optimizer = {},
                                                                      .communicators = {worlds_[0].get()},
                                                                      .session = &session_});
    program::Verdict verdict;
    verdict.loss_sum = 7;
    device_->copy_now(at(4), &verdict, sizeof verdict);
  }

  std::byte* at(int buffer) { return memory_->at(program_, program_.whole(buffer)); }
  Pair read(int buffer) {
    Pair pair{};
    device_->copy_now(pair.data(), at(buffer), sizeof pair);
    return pair;
  }
  void make_executor(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    run::ExecutorOptions options{.communication_timeout = timeout};
    options.alongside = [this] {
      session_.progress();
      server_.advance();
      return false;
    };
    executor_ = run::make_stream_executor(program_, *context_, options, *device_);
    session_.begin(100);
  }
  bool next_step() {
    return session_.next_step([this] { server_.advance(); }).has_value();
  }
  std::string error_of_step() {
    try {
      executor_->run({});
      executor_->finish();
    } catch (const Error& error) {
      code_ = error.code();
      return error.what();
    }
    return "none";
  }

  const config::RunConfig config_ = config::parse_run_config(R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 8 }
optimizer { learning_rate: 0.1 sgd {} })",
                                                             "test", {});
  const compile::CompiledRun run_ = compile_run(config_, {.device = device::DeviceKind::cuda});
  std::unique_ptr<device::Device> device_ = device::make_cuda_device(0);
  program::Program program_ = program::program_from_text(kProgram);
  std::vector<std::unique_ptr<comm::Communicator>> worlds_ = comm::make_local_communicators(2);
  struct Ports {
    std::unique_ptr<comm::MessagePort> to_servers, to_workers;
  };
  static Ports open(comm::Communicator& world) { return {world.open_port(), world.open_port()}; }
  std::future<Ports> opening_ = std::async(std::launch::async, [this] { return open(*worlds_[1]); });
  Ports worker_ports_ = open(*worlds_[0]), server_ports_ = opening_.get();
  PlayedServer server_{*server_ports_.to_servers, *server_ports_.to_workers};
  run::WorkerSession session_{{*worker_ports_.to_servers, *worker_ports_.to_workers},
                              {1},
                              {.workers = 1, .ranges = {2}, .bound = {}}};
  std::unique_ptr<run::ProgramMemory> memory_;
  std::unique_ptr<run::ExecutionContext> context_;
  std::unique_ptr<run::Executor> executor_;
  ExitCode code_ = ExitCode::done;
};

TEST_F(StreamSession, CopiesWhatHasArrivedAndSendsWhatIsCopied) {
  make_executor();
  Pair sums[2] = {};
  for (int step = 0; step < 20; ++step) {
    const auto base = static_cast<float>(10 * step);
    const Pair ranges[2] = {{base + 1, base + 2}, {base + 3, base + 4}};
    for (int range = 0; range < 2; ++range)
      for (size_t i = 0; i < 2; ++i) sums[range][i] += ranges[range][i];
    server_.expect_asked();
    server_.answer();
    server_.let_wait(5 * (step % 3));
    server_.send_range(ranges[0]);
    server_.let_wait(5 * (step % 2));
    server_.send_range(ranges[1]);
    server_.expect_push(1, sums[1], 7);
    server_.let_wait(5 * (step % 3));
    server_.expect_push(0, sums[0], 7);
    ASSERT_TRUE(next_step());
    executor_->run({});
    executor_->finish();
    EXPECT_EQ(read(0), ranges[0]);
    EXPECT_EQ(read(3), sums[1]);
  }
  server_.expect_asked();
  server_.refuse();
  server_.expect_left();
  EXPECT_FALSE(next_step());
  server_.advance();
  EXPECT_TRUE(server_.is_done());
}

TEST_F(StreamSession, LooksAfterWhatGoesOnBesideWhileItWaitsAndAfterEachInstruction) {
  make_executor();
  server_.expect_asked();
  server_.answer();
  ASSERT_TRUE(next_step());
  const int before = server_.looks();
  server_.let_wait(50);
  server_.send_range({1, 2});
  server_.send_range({3, 4});
  server_.expect_push(1, {3, 4}, 7);
  server_.expect_push(0, {1, 2}, 7);
  executor_->run({});
  executor_->finish();
  EXPECT_GE(server_.looks(), before + 50 + static_cast<int>(program_.instructions.size()));
  EXPECT_GT(executor_->last_times().exposed_communication_ms.value(), 0) << "compute waited, too";
}

TEST_F(StreamSession, OfASilentServerEndsNamingThePull) {
  make_executor(std::chrono::milliseconds(100));
  server_.expect_asked();
  server_.answer();
  ASSERT_TRUE(next_step());
  server_.send_range({1, 2});
  EXPECT_THAT(error_of_step(), AllOf(Mentions("rank 0 ... 0.1"),
                                     HasSubstr("(rank 0, step instruction 1 (pull, lane pull, segment 1")));
  EXPECT_EQ(code_, ExitCode::hang);
}

TEST_F(StreamSession, OfALostServerEndsNamingThePull) {
  make_executor();
  server_.expect_asked();
  server_.answer();
  ASSERT_TRUE(next_step());
  server_.let_wait(10);
  server_.say_no_more();
  EXPECT_THAT(error_of_step(), AllOf(HasSubstr("the server's disk is on fire"),
                                     HasSubstr("(rank 0, step instruction 0 (pull, lane pull, segment 0")));
}

TEST_F(StreamSession, WhosePushCannotBeSentEndsNamingIt) {
  make_executor();
  server_.expect_asked();
  server_.answer();
  ASSERT_TRUE(next_step());
  server_.send_range({1, 2});
  server_.send_range({3, 4});
  server_.hear_no_more();
  EXPECT_THAT(error_of_step(), AllOf(HasSubstr("the link is gone"),
                                     HasSubstr("(rank 0, step instruction 4 (push, lane push, segment 1")));
}

TEST_F(StreamSession, KeepsWhatIsNotSentYet) {
  // A second step that nobody has granted: it must not write over what the first one pushes.
  make_executor();
  server_.expect_asked();
  server_.answer();
  server_.send_range({1, 2});
  server_.send_range({3, 4});
  server_.let_wait(200);
  server_.expect_push(1, {3, 4}, 7);
  server_.let_wait(200);
  server_.expect_push(0, {1, 2}, 7);
  ASSERT_TRUE(next_step());
  executor_->run({});
  EXPECT_FALSE(server_.is_done());
  EXPECT_THAT(error_of_step(), HasSubstr("pushes come in their order"));
  for (int look = 0; look < 500; ++look) server_.advance();
  EXPECT_TRUE(server_.is_done());
}

TEST_F(StreamSession, AsksForTheNextStepWhenNothingIsReadAnyMore) {
  auto event = device_->create_event();
  const auto stream = device_->create_stream("copies");
  Pair contents{};
  auto* const memory = reinterpret_cast<std::byte*>(contents.data());
  for (const int segment : {0, 1}) session_.add_pull(1, segment, memory, sizeof contents, event.get());
  for (const int segment : {0, 1}) session_.add_push(1, segment, memory, sizeof contents);
  session_.begin(1);
  stream->launch([] {});
  stream->record(*event);
  server_.expect_asked();
  server_.answer();
  EXPECT_THROW(next_step(), InternalError) << "a copy is not done";
  stream->synchronize();
}

}  // namespace
}  // namespace lockstep::train
