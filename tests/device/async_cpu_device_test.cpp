#include <gmock/gmock.h>
#include <omp.h>

#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep::device {
namespace {

/// Holds a stream until opened: orders what tests see without any sleeping.
class Gate {
 public:
  void open() { promise_.set_value(); }
  std::function<void()> passage() {
    return [future = future_] { future.wait(); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

std::unique_ptr<Device> jittery_device(uint64_t seed) {
  return make_async_cpu_device({.jitter_seed = seed, .max_jitter_us = 50});
}

TEST(AsyncCpuStream, RunsWorkInOrderOnAThreadOfItsOwn) {
  const auto device = jittery_device(1);
  const auto stream = device->create_stream("compute");
  std::vector<int> order;
  std::thread::id worker;
  for (int i = 0; i < 100; ++i) stream->launch([&, i] { order.push_back(i); });
  stream->launch([&] { worker = std::this_thread::get_id(); });
  stream->synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(AsyncCpuStream, LaunchDoesNotWaitForTheWork) {
  const auto device = make_async_cpu_device({});
  const auto stream = device->create_stream("compute");
  Gate gate;
  bool done = false;
  stream->launch(gate.passage());
  stream->launch([&] { done = true; });
  gate.open();  // reached only because launch came back
  stream->synchronize();
  EXPECT_TRUE(done);
}

TEST(AsyncCpuStream, SetsItsOwnOpenMpThreadCount) {
  const auto device = make_async_cpu_device({.intra_op_threads = 3});
  const auto stream = device->create_stream("compute");
  int threads = 0;
  stream->launch([&] { threads = omp_get_max_threads(); });
  stream->synchronize();
  EXPECT_EQ(threads, 3);
}

TEST(AsyncCpuEvent, IsReadyBeforeItsFirstRecord) {
  const auto device = make_async_cpu_device({});
  const auto event = device->create_event();
  EXPECT_TRUE(event->ready());
  event->synchronize();
  const auto stream = device->create_stream("compute");
  stream->wait(*event);
  stream->synchronize();
}

TEST(AsyncCpuEvent, IsReadyOnceTheWorkBeforeItIsDone) {
  const auto device = make_async_cpu_device({});
  const auto stream = device->create_stream("compute");
  const auto event = device->create_event();
  Gate gate;
  int value = 0;
  stream->launch(gate.passage());
  stream->launch([&] { value = 1; });
  stream->record(*event);
  EXPECT_FALSE(event->ready());
  gate.open();
  event->synchronize();
  EXPECT_TRUE(event->ready());
  EXPECT_EQ(value, 1);
}

/// A pipeline of three streams with nothing between them but events: under ThreadSanitizer the plain ints
/// prove that the events order memory, too.
TEST(AsyncCpuEvent, OrdersStreamsUnderJitter) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto device = jittery_device(seed);
    const auto load = device->create_stream("load"), compute = device->create_stream("compute"),
               reduce = device->create_stream("reduce");
    const auto loaded = device->create_event(), computed = device->create_event(),
               reduced = device->create_event();
    int input = 0, output = 0;
    std::vector<int> results;
    for (int step = 1; step <= 40; ++step) {
      load->wait(*computed);  // the input may be overwritten only after its last reader
      load->launch([&, step] { input = step; });
      load->record(*loaded);
      compute->wait(*loaded);
      compute->wait(*reduced);
      compute->launch([&] { output = input * input; });
      compute->record(*computed);
      reduce->wait(*computed);
      reduce->launch([&] { results.push_back(output); });
      reduce->record(*reduced);
    }
    reduced->synchronize();
    ASSERT_EQ(results.size(), 40u);
    for (int step = 1; step <= 40; ++step) EXPECT_EQ(results[static_cast<size_t>(step - 1)], step * step);
  }
}

TEST(AsyncCpuEvent, AWaitIsForTheRecordBeforeIt) {
  const auto device = make_async_cpu_device({});
  const auto first = device->create_stream("first"), second = device->create_stream("second");
  const auto event = device->create_event();
  Gate later;
  int value = 0;
  first->launch([&] { value = 1; });
  first->record(*event);
  second->wait(*event);
  first->launch(later.passage());
  first->record(*event);  // the wait above is not for this one
  second->synchronize();
  EXPECT_EQ(value, 1);
  EXPECT_FALSE(event->ready());
  later.open();
  event->synchronize();
}

TEST(AsyncCpuEvent, ARecordOnAnotherStreamDoesNotFinishAnEarlierOne) {
  const auto device = make_async_cpu_device({});
  const auto slow = device->create_stream("slow"), fast = device->create_stream("fast"),
             waiting = device->create_stream("waiting");
  const auto event = device->create_event();
  Gate gate;
  bool slow_done = false, seen = false;
  slow->launch(gate.passage());
  slow->launch([&] { slow_done = true; });
  slow->record(*event);
  waiting->wait(*event);
  waiting->launch([&] { seen = slow_done; });
  fast->record(*event);  // moves the event, but not the wait
  fast->synchronize();
  EXPECT_TRUE(event->ready());
  gate.open();
  waiting->synchronize();
  EXPECT_TRUE(seen);
}

TEST(AsyncCpuEvent, MayGoWhileWorkStillRefersToIt) {
  const auto device = make_async_cpu_device({});
  const auto first = device->create_stream("first"), second = device->create_stream("second");
  Gate gate;
  int value = 0;
  {
    const auto event = device->create_event();
    first->launch(gate.passage());
    first->launch([&] { value = 5; });
    first->record(*event);
    second->wait(*event);
  }
  int seen = 0;
  second->launch([&] { seen = value; });
  gate.open();
  second->synchronize();
  EXPECT_EQ(seen, 5);
}

template <class Action>
std::string data_error_of(Action action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(AsyncCpuErrors, ReachSynchronizeOfStreamAndEvent) {
  const auto device = make_async_cpu_device({});
  const auto stream = device->create_stream("compute");
  const auto event = device->create_event();
  bool ran = false;
  stream->launch([] { throw DataError("bad sample 7"); });
  stream->launch([&] { ran = true; });
  stream->launch([] { throw DataError("a later one"); });
  stream->record(*event);
  EXPECT_EQ(data_error_of([&] { event->synchronize(); }), "bad sample 7");
  EXPECT_EQ(data_error_of([&] { stream->synchronize(); }), "bad sample 7");
  EXPECT_FALSE(ran) << "work after the error was not dropped";
  EXPECT_TRUE(event->ready());
}

TEST(AsyncCpuErrors, PassThroughEventsToOtherStreams) {
  const auto device = jittery_device(3);
  const auto first = device->create_stream("first"), second = device->create_stream("second"),
             third = device->create_stream("third");
  const auto event = device->create_event(), next = device->create_event();
  bool ran = false;
  first->launch([] { throw DataError("bad sample 7"); });
  first->record(*event);
  second->wait(*event);
  second->launch([&] { ran = true; });
  second->record(*next);
  third->wait(*next);
  EXPECT_EQ(data_error_of([&] { third->synchronize(); }), "bad sample 7");
  EXPECT_FALSE(ran);
}

TEST(AsyncCpuErrors, StayWithTheRecordTheyBelongTo) {
  const auto device = make_async_cpu_device({});
  const auto failed = device->create_stream("failed"), healthy = device->create_stream("healthy");
  const auto event = device->create_event();
  failed->launch([] { throw DataError("bad sample 7"); });
  failed->record(*event);
  EXPECT_EQ(data_error_of([&] { event->synchronize(); }), "bad sample 7");
  healthy->record(*event);
  EXPECT_NO_THROW(event->synchronize());
}

TEST(AsyncCpuDevice, FinishesPendingWorkWhenAStreamGoes) {
  int count = 0;
  {
    const auto device = jittery_device(4);
    const auto stream = device->create_stream("compute");
    for (int i = 0; i < 50; ++i) stream->launch([&] { ++count; });
  }
  EXPECT_EQ(count, 50);
}

TEST(AsyncCpuDevice, StreamsThatWaitForEachOtherMayGoInAnyOrder) {
  for (const bool reverse : {false, true}) {
    const auto device = jittery_device(5);
    const auto event = device->create_event();
    auto first = device->create_stream("first"), second = device->create_stream("second");
    int value = 0, seen = 0;
    first->launch([&] { value = 9; });
    first->record(*event);
    second->wait(*event);
    second->launch([&] { seen = value; });
    (reverse ? second : first).reset();
    (reverse ? first : second).reset();
    EXPECT_EQ(seen, 9);
  }
}

TEST(AsyncCpuDevice, FreesWhatWorkHoldsBeforeSynchronizeReturns) {
  const auto device = make_async_cpu_device({});
  const auto stream = device->create_stream("compute");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  stream->launch([held = std::move(held)] {});
  stream->synchronize();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace lockstep::device
