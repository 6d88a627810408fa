#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "data/test_files.h"
#include "train/checkpoints/saving_ranks.h"

namespace lockstep::train {
namespace {

using test::latest_of_all_complete;
using test::loaded;
using test::SavingRanks;
using test::SmallState;
using test::TemporaryDirectory;
using ::testing::ElementsAre;

/// The real file system of a process that kills itself (SIGKILL) at its n-th operation, whichever thread
/// performs it: before it, or, where that can be, in the middle of it.
class DeadlyFileSystem : public FileSystem {
 public:
  explicit DeadlyFileSystem(int at_operation) : at_operation_(at_operation) {}

  void make_directory(const std::string& path) override {
    die_if_due();
    real_.make_directory(path);
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    die_if_due();
    return std::make_unique<File>(*this, real_.create(path));
  }
  void sync_directory(const std::string& path) override {
    die_if_due();
    real_.sync_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    die_if_due();
    real_.rename(from, to);
  }
  void remove_all(const std::string& path) override {
    die_if_due();
    real_.remove_all(path);
  }
  int64_t free_bytes(const std::string& path) override {
    die_if_due();
    return real_.free_bytes(path);
  }

 private:
  class File : public WritableFile {
   public:
    File(DeadlyFileSystem& owner, std::unique_ptr<WritableFile> real)
        : owner_(owner), real_(std::move(real)) {}
    void write(const void* data, size_t size_bytes) override {
      const size_t half = size_bytes / 2;
      real_->write(data, half);
      owner_.die_if_due();
      real_->write(static_cast<const std::byte*>(data) + half, size_bytes - half);
    }
    void sync() override {
      owner_.die_if_due();
      real_->sync();
    }
    void close() override {
      owner_.die_if_due();
      real_->close();
    }

   private:
    DeadlyFileSystem& owner_;
    std::unique_ptr<WritableFile> real_;
  };

  void die_if_due() {
    if (++operations_ == at_operation_) ::kill(::getpid(), SIGKILL);
  }

  FileSystem& real_ = posix_file_system();
  int at_operation_;
  std::atomic<int> operations_ = 0;
};

/// Saves `step` in a process of its own. How it ended: the signal, or 0 where the save was reported as
/// written.
int save_in_a_process(const std::string& directory, int64_t step, const SmallState& state, int keep,
                      int deadly_operation) {
  const pid_t child = ::fork();
  if (child == 0) {
    DeadlyFileSystem files(deadly_operation);
    const auto outcomes = SavingRanks(directory, {&files, &files, &files}, keep).save(step, state);
    ::_exit(outcomes[0].path.empty() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return 0;
}

class KilledProcess : public ::testing::TestWithParam<std::tuple<int64_t, int>> {};
INSTANTIATE_TEST_SUITE_P(StepAndKeep, KilledProcess,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(0, 1)));

TEST_P(KilledProcess, LeavesTheNewestCompleteCheckpointAtEveryOperation) {
  const auto [step, keep] = GetParam();
  const SmallState one(1), two(2), three(3);
  for (int at = 1;; ++at) {
    SCOPED_TRACE("killed at operation " + std::to_string(at));
    const TemporaryDirectory folder;
    const std::string directory = folder / "checkpoints";
    test::save(directory, 1, one);
    const int signal = save_in_a_process(directory, step, two, keep, at);
    ASSERT_TRUE(signal == 0 || signal == SIGKILL) << signal;
    {
      const auto checkpoint = latest_of_all_complete(directory);
      ASSERT_TRUE(checkpoint);
      const auto state = loaded(*checkpoint);
      ASSERT_TRUE(state == two || (signal != 0 && state == one));
    }
    const std::vector<FileSystem*> healthy(SavingRanks::kRanks, &posix_file_system());
    for (const auto& outcome : SavingRanks(directory, healthy, 1).save(3, three))
      ASSERT_EQ(outcome.error, "");
    ASSERT_EQ(loaded(*latest_of_all_complete(directory)), three);
    ASSERT_THAT(list_directory(directory), ElementsAre("step-00000003"));
    if (signal == 0) {
      EXPECT_GT(at, 30) << "it was killed throughout the protocol";
      return;
    }
  }
}

}  // namespace
}  // namespace lockstep::train
