// main() of GoogleTest programs under mpirun. All ranks run the same tests in the same order. A test that
// fails on one rank ends the whole job, since the others may wait for it; so does one that does not get on.

#include "comm/mpi_main.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

/// From one wait of a check to the next.
constexpr auto kTestLimit = std::chrono::seconds(60);

MpiEnvironment* environment_of_program = nullptr;

void say(const std::string& line) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

/// Ends the job where a test does not get on, and where one fails.
class Guard : public testing::EmptyTestEventListener {
 public:
  explicit Guard(int rank) : rank_(rank), watchdog_([this] { watch(); }) {}
  ~Guard() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    watchdog_.join();
  }

  void OnTestStart(const testing::TestInfo& info) override {
    std::lock_guard lock(mutex_);
    running_ = fmt::format("{}.{}", info.test_suite_name(), info.name());
    deadline_ = Clock::now() + kTestLimit;
    changed_.notify_all();
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::lock_guard lock(mutex_);
    say(fmt::format("[rank {}] {} failed at {}:{}\n{}\n", rank_, running_,
                    result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                    result.message()));
  }

  void OnTestEnd(const testing::TestInfo& info) override {
    std::lock_guard lock(mutex_);
    deadline_ = Deadline::max();
    if (info.result()->Failed()) environment_of_program->abort_job(1);
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    for (int64_t seen = 0; !stopping_;) {
      // On a loaded machine a test of many messages takes long.
      if (const int64_t now = waits_begun; std::exchange(seen, now) != now && deadline_ != Deadline::max())
        deadline_ = Clock::now() + kTestLimit;
      if (Clock::now() >= deadline_) {
        say(fmt::format("[rank {}] {} hangs\n", rank_, running_));
        environment_of_program->abort_job(1);
      }
      changed_.wait_for(lock, std::chrono::milliseconds(500));
    }
  }

  int rank_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::string running_ = "start-up";
  Deadline deadline_ = Deadline::max();
  bool stopping_ = false;
  std::thread watchdog_;
};

}  // namespace

MpiEnvironment& test_environment() { return *environment_of_program; }

}  // namespace lockstep::comm

int main(int argc, char** argv) {
  using namespace lockstep;
  using namespace lockstep::comm;
  testing::InitGoogleTest(&argc, argv);
  const auto environment = make_mpi_environment();
  environment_of_program = environment.get();
  const int rank = environment->world()->rank();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());  // one report is enough
  auto* guard = new Guard(rank);
  listeners.Append(guard);
  const int result = RUN_ALL_TESTS();
  delete listeners.Release(guard);
  if (result != 0) environment->abort_job(result);
  environment->finish();
  return 0;
}
