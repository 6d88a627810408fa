#include "run/serve/session_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "run/serve/said.h"

namespace lockstep::run {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<RangeOfServer> kOrder = {{1, 0}, {0, 1}, {0, 0}};

program::SessionTerms worker_terms(std::optional<int> bound) { return {2, {2, 1}, bound, 10}; }

TEST(SessionWorker, AsksTheCoordinatorThenTheOthersForTheSameVersion) {
  SessionWorker worker(worker_terms(1), kOrder);
  EXPECT_THAT(said(worker), ElementsAre("ask server 0 for step 0"));
  worker.answered(0, 0, 0);
  EXPECT_THAT(said(worker), ElementsAre("ask server 1 for step 0 at version 0")) << "range 1 may come later";
  worker.answered(1, 0, 0);
  EXPECT_THAT(said(worker), IsEmpty());
  worker.answered(0, 1, 0);
  EXPECT_THAT(said(worker),
              ElementsAre("compute step 0 at version 0", "push range 0 to server 1 clock 0 slot 0",
                          "push range 1 to server 0 clock 0 slot 0",
                          "push range 0 to server 0 clock 0 slot 0", "ask server 0 for step 1"));
  EXPECT_EQ(worker.steps(), 1);
}

TEST(SessionWorker, PushesTakeTurnsInTheirSlots) {
  SessionWorker worker({1, {1}, 2, 10}, {{0, 0}});
  for (int64_t step = 0; step < 5; ++step) {
    said(worker);
    worker.answered(0, 0, step);
    EXPECT_THAT(said(worker), testing::Contains("push range 0 to server 0 clock " + std::to_string(step) +
                                                " slot " + std::to_string(step % 3)));
  }
}

TEST(SessionWorker, LeavesAllServersOnceRefused) {
  SessionWorker worker(worker_terms({}), kOrder);
  said(worker);
  worker.refused();
  EXPECT_FALSE(worker.has_left());
  EXPECT_THAT(said(worker), ElementsAre("leave server 0", "leave server 1"));
  EXPECT_TRUE(worker.has_left());
  EXPECT_EQ(worker.steps(), 0);
}

TEST(SessionWorker, WithoutABoundRangesHaveVersionsOfTheirOwn) {
  SessionWorker worker(worker_terms({}), kOrder);
  said(worker);
  worker.answered(0, 0, 7);
  EXPECT_THAT(said(worker), ElementsAre("ask server 1 for step 0"));
  worker.answered(0, 1, 9);
  worker.answered(1, 0, 2);
  EXPECT_EQ(worker.next(), WorkerMove(ComputeStep{0, 7}));
}

TEST(SessionWorker, AStopGoesToTheCoordinatorWithEveryPushFromThenOn) {
  SessionWorker worker(worker_terms(1), kOrder);
  said(worker);
  worker.answered(0, 0, 0);
  said(worker);
  worker.answered(0, 1, 0);
  worker.answered(1, 0, 0);
  worker.stop();
  EXPECT_THAT(said(worker),
              ElementsAre("compute step 0 at version 0", "push range 0 to server 1 clock 0 slot 0",
                          "push range 1 to server 0 clock 0 slot 0 stop",
                          "push range 0 to server 0 clock 0 slot 0 stop", "ask server 0 for step 1"));
}

TEST(SessionWorker, WhatBreaksTheProtocolIsABug) {
  EXPECT_THROW(SessionWorker(worker_terms(1), {{0, 0}, {0, 1}}), InternalError) << "a range is never pushed";
  EXPECT_THROW(SessionWorker(worker_terms(1), {{0, 0}, {0, 1}, {1, 0}, {1, 1}}), InternalError)
      << "no such range";
  SessionWorker worker(worker_terms(1), kOrder);
  EXPECT_THROW(worker.answered(0, 0, 0), InternalError) << "nobody was asked";
  said(worker);
  EXPECT_THROW(worker.answered(0, 0, 1), InternalError) << "version 1 has seen this worker's step 0";
  EXPECT_THROW(worker.answered(0, 1, 0), InternalError) << "range 0 comes first";
  worker.answered(0, 0, 0);
  EXPECT_THROW(worker.refused(), InternalError) << "the step has begun";
  EXPECT_THROW(worker.answered(1, 0, 0), InternalError) << "server 1 was not asked yet";
}

TEST(SessionWorker, NoVersionBeyondTheBoundIsRead) {
  SessionWorker worker({1, {1}, 1, 10}, {{0, 0}});
  for (int step = 0; step < 2; ++step) {
    said(worker);
    worker.answered(0, 0, 0);
  }
  said(worker);
  EXPECT_THROW(worker.answered(0, 0, 0), InternalError);
}

}  // namespace
}  // namespace lockstep::run
