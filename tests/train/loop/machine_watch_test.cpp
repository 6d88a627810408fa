#include "train/loop/machine_watch.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "control/mailbox.h"

namespace lockstep::train {
namespace {

using SubjectKind = observe::MachineSubject::Kind;

/// What rank 0 has written, by group.
class Written {
 public:
  std::function<void(observe::MetricsRecord)> take() {
    return [this](observe::MetricsRecord record) {
      const std::lock_guard lock(mutex_);
      const std::string group = observe::group_of(*record.machine, false);
      records_[group] = std::move(record);
      changed_.notify_all();
    };
  }
  observe::MetricsRecord await(const std::string& group, int64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return records_.contains(group) && records_.at(group).step == step; });
    return records_.at(group);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, observe::MetricsRecord> records_;
};

MachineWatchOptions watch_options(control::Mailbox& mailbox, bool is_told) {
  return {.every_seconds = 0.01, .gpu_uuid = {}, .is_told = is_told, .mailbox = &mailbox, .write = {}};
}

TEST(MachineWatching, RankZeroWritesTheFiguresOfAllRanksWithTheirSteps) {
  const auto mailboxes = control::make_local_mailboxes(3);
  Written written;
  MachineWatchOptions root = watch_options(*mailboxes[0], true);
  root.write = written.take();
  MachineWatch first(root, {.host = "a", .rank = 0, .samples_host = true});
  MachineWatch second(watch_options(*mailboxes[1], true), {.host = "a", .rank = 1});
  MachineWatch third(watch_options(*mailboxes[2], true), {.host = "b", .rank = 2, .samples_host = true});
  first.set_step(7);
  second.set_step(6);
  third.set_step(5);
  EXPECT_EQ(written.await("machine", 7).machine->kind, SubjectKind::host);
  EXPECT_EQ(written.await("rank0", 7).machine->host, "a");
  EXPECT_EQ(written.await("rank1", 6).machine->host, "a");
  EXPECT_EQ(written.await("rank2", 5).machine->host, "b");
  // The last rank is lost. The job continues without it.
  third.abandon();
  second.follow({.host = "a", .rank = 5});
  first.set_step(8);
  EXPECT_EQ(written.await("rank5", 6).machine->rank, 5);
  second.stop();
  first.stop();
  EXPECT_EQ(first.reports().size(), 2u);
}

TEST(MachineWatching, WhatNobodyReadsIsNotSent) {
  const auto mailboxes = control::make_local_mailboxes(2);
  MachineWatch watch(watch_options(*mailboxes[1], false), {.host = "a", .rank = 1});
  while (watch.reports().empty()) {
  }
  watch.stop();
  EXPECT_FALSE(mailboxes[0]->receive("machine", Clock::now()));
}

TEST(MachineWatching, AMessageThatCannotBeReadEndsTheWritingAndNothingElse) {
  const auto mailboxes = control::make_local_mailboxes(2);
  mailboxes[1]->send(0, "machine", "no JSON\n");
  Written written;
  MachineWatchOptions root = watch_options(*mailboxes[0], true);
  root.write = written.take();
  MachineWatch watch(root, {.host = "a", .rank = 0});
  written.await("rank0", 0);
  while (watch.reports().empty() || watch.reports().at(0).samples < 3) {
  }
  watch.stop();
}

}  // namespace
}  // namespace lockstep::train
