#include "observe/sinks/sink_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "observe/sinks/sinks.h"

namespace lockstep::observe {
namespace {

using std::chrono::milliseconds;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What a test sees of its sink, and says about it; outlives a thread that is left behind.
class Desk {
 public:
  void hold() { set(held_, true); }
  void release() { set(held_, false); }
  void fail(int times) { set(failures_, times); }
  void break_for_good() { set(broken_, true); }
  void set_most(size_t most) { set(most_, most); }

  void enter(const std::string& call) {
    std::unique_lock lock(mutex_);
    ++calls_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    if (broken_) throw ConfigError("of another run");
    if (failures_ > 0) {
      --failures_;
      throw IoError("cannot " + call);
    }
  }
  size_t write(std::span<const RecordPtr> records) {
    enter("write");
    const std::lock_guard lock(mutex_);
    const size_t count = std::min(most_, records.size());
    for (const auto& record : records.first(count)) steps_.push_back(record->step);
    return count;
  }
  void close(RunEnd end, const std::string& report) {
    enter("close");
    const std::lock_guard lock(mutex_);
    end_ = end;
    report_ = report;
  }
  /// Waits until the sink has been called so many times.
  void await_calls(int calls) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_ >= calls; });
  }
  int calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::vector<int64_t> steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }
  std::optional<RunEnd> end() {
    const std::lock_guard lock(mutex_);
    return end_;
  }

 private:
  template <class Value>
  void set(Value& value, Value to) {
    const std::lock_guard lock(mutex_);
    value = to;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, broken_ = false;
  int failures_ = 0, calls_ = 0;
  size_t most_ = 1000;
  std::vector<int64_t> steps_;
  std::optional<RunEnd> end_;
  std::string report_;
};

class DeskSink : public Sink {
 public:
  explicit DeskSink(std::shared_ptr<Desk> desk) : desk_(std::move(desk)) {}
  void open() override { desk_->enter("open"); }
  size_t write(std::span<const RecordPtr> records) override { return desk_->write(records); }
  void sync() override { desk_->enter("sync"); }
  void close(RunEnd end, const std::string& report) override { desk_->close(end, report); }

 private:
  std::shared_ptr<Desk> desk_;
};

class SinkThreads : public ::testing::Test {
 protected:
  std::unique_ptr<SinkThread> make(SinkPolicy policy) {
    policy.name = "the sink";
    return std::make_unique<SinkThread>(std::make_unique<DeskSink>(desk_), policy);
  }
  static RecordPtr record(int64_t step) {
    return std::make_shared<MetricsRecord>(MetricsRecord{.step = step, .metrics = {{"loss", 1.0}}});
  }
  static std::string texts(SinkThread& thread) {
    std::string all;
    for (const auto& message : thread.take_messages()) all += message.text + "\n";
    return all;
  }
  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
};

TEST_F(SinkThreads, PushingNeverWaitsForASinkThatHangs) {
  const auto thread = make({});
  thread->open();
  desk_->hold();
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 3000; ++step) {
    thread->push(record(step));
    steps.push_back(step);
  }
  EXPECT_THAT(desk_->steps(), IsEmpty());
  desk_->release();
  thread->sync();
  EXPECT_EQ(desk_->steps(), steps);
  thread->close(RunEnd::finished, "{}");
  EXPECT_EQ(desk_->end(), RunEnd::finished);
  EXPECT_EQ(texts(*thread), "");
}

TEST_F(SinkThreads, WhatTheSinkDoesNotTakeAtOnceIsOfferedAgain) {
  const auto thread = make({});
  desk_->set_most(2);
  for (int64_t step = 1; step <= 5; ++step) thread->push(record(step));
  thread->sync();
  EXPECT_THAT(desk_->steps(), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(SinkThreads, WhatFailsIsTriedAgainInOrderAndSaidOnce) {
  const auto thread = make({.retry = milliseconds(1)});
  thread->open();
  desk_->fail(3);
  for (int64_t step = 1; step <= 4; ++step) thread->push(record(step));
  desk_->await_calls(1 + 3 + 1);
  thread->sync();
  EXPECT_THAT(desk_->steps(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(texts(*thread),
            "cannot write; what is missing is written once it can be\n"
            "the sink: works again, and has everything\n");
}

TEST_F(SinkThreads, BeyondItsMemoryRecordsAreCountedAndSaid) {
  const auto thread = make({.farewell = milliseconds(20), .most_waiting_bytes = 1000});
  thread->open();
  desk_->hold();
  for (int64_t step = 1; step <= 100; ++step) thread->push(record(step));
  const int64_t dropped = thread->dropped();
  EXPECT_GT(dropped, 80);
  EXPECT_LT(dropped, 100);
  EXPECT_THAT(texts(*thread), Mentions("too much ... step"));
  desk_->release();
  thread->sync();
  thread->push(record(101));
  thread->sync();
  EXPECT_EQ(desk_->steps().size(), static_cast<size_t>(100 - dropped + 1));
  EXPECT_EQ(desk_->steps().back(), 101);
  thread->close(RunEnd::finished, "");
  EXPECT_THAT(texts(*thread), HasSubstr(std::to_string(dropped) + " records are lost, of steps"));
}

TEST_F(SinkThreads, AFailureIsThrownToWhoeverPushesIfItEndsTheRun) {
  const auto thread = make({.ends_run = true});
  thread->open();
  desk_->fail(1000000);
  thread->push(record(1));
  EXPECT_EQ(message_of<IoError>([&] { thread->sync(); }), "cannot write");
  EXPECT_EQ(message_of<IoError>([&] { thread->push(record(2)); }), "cannot write");
  EXPECT_EQ(message_of<IoError>([&] { thread->finish(); }), "cannot write");
}

TEST_F(SinkThreads, AnErrorThatStaysTurnsTheSinkOff) {
  const auto thread = make({});
  desk_->break_for_good();
  thread->open();
  thread->push(record(1));
  thread->push(record(2));
  thread->sync();
  EXPECT_THAT(texts(*thread), Mentions("another run ... continues"));
  thread->close(RunEnd::finished, "");
  EXPECT_EQ(thread->dropped(), 2);

  const auto strict = make({.ends_run = true});
  EXPECT_EQ(message_of<ConfigError>([&] { strict->open(); }), "of another run");
}

TEST_F(SinkThreads, AnEssentialSinkMustOpenAndFinish) {
  const auto thread = make({.essential = true});
  desk_->fail(1000000);
  EXPECT_EQ(message_of<IoError>([&] { thread->open(); }), "cannot open");
  desk_->fail(0);
  thread->open();
  desk_->fail(1000000);
  thread->push(record(1));
  thread->sync();  // waits for the attempt, and goes on
  EXPECT_EQ(message_of<IoError>([&] { thread->finish(); }), "cannot write");
  desk_->fail(0);
  thread->finish();
  EXPECT_THAT(desk_->steps(), ElementsAre(1));
  EXPECT_TRUE(desk_->end());
}

TEST_F(SinkThreads, AnEssentialSinkThatClosesBeforeItIsAskedHasFinished) {
  // The thread may be writing by itself when finish() asks, and then closes.
  for (int round = 0; round < 2000; ++round) {
    desk_ = std::make_shared<Desk>();
    const auto thread = make({.essential = true});
    thread->open();
    for (int64_t step = 1; step <= 3; ++step) thread->push(record(step));
    thread->finish();
    EXPECT_THAT(desk_->steps(), ElementsAre(1, 2, 3));
    thread->sync();  // and nobody waits for a thread that has ended
    thread->close(RunEnd::finished, "");
  }
}

TEST_F(SinkThreads, NobodyWaitsForeverForASinkThatHangs) {
  auto thread = make({.farewell = milliseconds(10)});
  thread->open();
  texts(*thread);
  desk_->hold();
  thread->push(record(1));
  thread->push(record(2));
  desk_->await_calls(2);
  thread->close(RunEnd::finished, "");
  EXPECT_THAT(texts(*thread), Mentions("2 records ... steps 1 to 2"));
  thread.reset();
  desk_->release();  // the thread that was left behind ends by itself

  desk_ = std::make_shared<Desk>();
  desk_->hold();
  const auto strict = make({.ends_run = true, .patience = milliseconds(10)});
  EXPECT_THAT(message_of<IoError>([&] { strict->open(); }), Mentions("the sink: ... 0.01 s"));
  desk_->release();
}

TEST_F(SinkThreads, ASinkThatWasNeverTriedIsNotOpenedToBeClosed) {
  auto thread = make({});
  thread->close(RunEnd::failed, "");
  EXPECT_EQ(texts(*thread), "");
  thread.reset();
  EXPECT_EQ(desk_->calls(), 0);
}

TEST_F(SinkThreads, ASinkThatDoesNotOpenIsOpenedLater) {
  const auto thread = make({.retry = milliseconds(1)});
  desk_->fail(2);
  thread->open();
  thread->push(record(1));
  desk_->await_calls(4);
  thread->sync();
  EXPECT_THAT(desk_->steps(), ElementsAre(1));
}

TEST(Sinks, OneThatFailsLeavesTheOthersAlone) {
  const auto good = std::make_shared<Desk>(), bad = std::make_shared<Desk>();
  std::vector<std::unique_ptr<SinkThread>> threads;
  for (const auto& desk : {bad, good})
    threads.push_back(std::make_unique<SinkThread>(
        std::make_unique<DeskSink>(desk),
        SinkPolicy{.name = "sink", .patience = milliseconds(20), .farewell = milliseconds(20)}));
  Sinks sinks(std::move(threads));
  bad->fail(1000000);
  sinks.open();
  for (int64_t step = 1; step <= 3; ++step) sinks.write({.step = step, .metrics = {}});
  sinks.finish();
  sinks.close(RunEnd::killed, "");
  EXPECT_THAT(good->steps(), ElementsAre(1, 2, 3));
  EXPECT_EQ(good->end(), RunEnd::killed);
  EXPECT_THAT(bad->steps(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::observe
