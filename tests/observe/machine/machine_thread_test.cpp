#include "observe/machine/machine_thread.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

namespace lockstep::observe {
namespace {

using Kind = MachineSubject::Kind;

/// Waits for what a thread publishes.
class Published {
 public:
  MachineThread::Publish take() {
    return [this](const std::vector<MachineSample>& samples) {
      const std::lock_guard lock(mutex_);
      batches_.push_back(samples);
      changed_.notify_all();
    };
  }
  std::vector<MachineSample> await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() >= count; });
    return batches_[count - 1];
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return batches_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<MachineSample>> batches_;
};

TEST(MachineThread, SamplesTheHostOnOneProcessAndEveryProcess) {
  Published first, second;
  MachineThread host({.every_seconds = 0.01, .gpu_uuid = {}}, {.host = "a", .rank = 0, .samples_host = true},
                     first.take());
  MachineThread other({.every_seconds = 0.01, .gpu_uuid = {}}, {.host = "a", .rank = 1}, second.take());
  const auto of_host = first.await(1);
  ASSERT_EQ(of_host.size(), 2u);
  EXPECT_EQ(of_host[0].subject.kind, Kind::host);
  EXPECT_EQ(of_host[1].subject.kind, Kind::process);
  EXPECT_GT(of_host[0].seconds, 0);
  const auto of_other = second.await(1);
  ASSERT_EQ(of_other.size(), 1u);
  EXPECT_EQ(of_other[0].subject.rank, 1);
  // The host's first process is lost.
  other.follow({.host = "a", .rank = 0, .samples_host = true});
  while (second.await(second.count() + 1).size() < 2) {
  }
  host.stop();
  other.stop();
  EXPECT_EQ(host.reports().size(), 2u);
}

TEST(MachineThread, ReportsAreOfTheRankThatTheProcessIsNow) {
  Published published;
  MachineThread thread({.every_seconds = 0.01, .gpu_uuid = {}}, {.host = "a", .rank = 3}, published.take());
  published.await(1);
  thread.stop();
  thread.follow({.host = "a", .rank = 2});  // too late for a sample
  ASSERT_EQ(thread.reports().size(), 1u);
  EXPECT_EQ(thread.reports()[0].subject.rank, 2);
}

TEST(MachineThread, NothingIsPublishedAfterItsEnd) {
  Published published;
  auto thread = std::make_unique<MachineThread>(MachineThreadOptions{.every_seconds = 1e-3, .gpu_uuid = {}},
                                                MachineIdentity{.host = "a"}, published.take());
  published.await(2);
  thread->abandon();
  const size_t count = published.count();
  EXPECT_EQ(published.count(), count);
  thread->stop();  // no harm
  thread.reset();
  EXPECT_EQ(published.count(), count);
}

TEST(MachineThread, ItsEndDoesNotWaitForTheNextSample) {
  Published published;
  {
    MachineThread thread({.every_seconds = 86400, .gpu_uuid = "GPU-none"}, {.host = "a"}, published.take());
    thread.stop();
  }
  EXPECT_LE(published.count(), 1u);  // the last one, if it is not too soon
}

}  // namespace
}  // namespace lockstep::observe
