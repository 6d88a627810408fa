#include "run/serve/async_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "run/serve/said.h"

namespace lockstep::run {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

program::SessionTerms async_terms(int workers, std::vector<int> ranges, int64_t steps) {
  return {workers, std::move(ranges), {}, steps};
}

TEST(AsyncServer, PushesAreAppliedInTheOrderOfArrival) {
  AsyncServer server(async_terms(2, {2}, 10), 0);
  server.asked(1, 0);
  server.asked(0, 0);
  EXPECT_THAT(said(server),
              ElementsAre("answer worker 1 range 0 version 0", "answer worker 1 range 1 version 0",
                          "answer worker 0 range 0 version 0", "answer worker 0 range 1 version 0"));
  server.pushed(1, 1, 0, true, false);
  server.pushed(0, 0, 0, true, false);
  server.pushed(0, 1, 0, true, false);
  server.asked(0, 1);
  EXPECT_THAT(
      said(server),
      ElementsAre("apply worker 1 range 1 clock 0, missed 0", "apply worker 0 range 0 clock 0, missed 0",
                  "apply worker 0 range 1 clock 0, missed 1", "answer worker 0 range 0 version 1",
                  "answer worker 0 range 1 version 2"));
  server.pushed(1, 0, 0, true, false);
  EXPECT_THAT(said(server), ElementsAre("apply worker 1 range 0 clock 0, missed 1"));
}

TEST(AsyncServer, StalenessCountsUpdatesByOthersSinceThePull) {
  AsyncServer server(async_terms(2, {1}, 10), 0);
  server.asked(1, 0);
  said(server);
  for (int64_t step = 0; step < 3; ++step) {
    server.asked(0, step);
    said(server);
    server.pushed(0, 0, step, true, false);
  }
  server.pushed(1, 0, 0, true, false);
  EXPECT_THAT(said(server), ElementsAre("apply worker 0 range 0 clock 2, missed 0",
                                        "apply worker 1 range 0 clock 0, missed 3"));
  EXPECT_EQ(server.staleness().count, 4);
  EXPECT_EQ(server.staleness().sum, 3);
  EXPECT_EQ(server.staleness().max, 3);
  EXPECT_EQ(server.staleness().pushes[0], 3);
  EXPECT_EQ(server.staleness().pushes[3], 1);
}

TEST(AsyncServer, TheHistogramEndsWithOrMore) {
  Staleness staleness;
  for (int64_t missed : {0, 30, 31, 1000}) staleness.add(missed);
  EXPECT_EQ(staleness.pushes[0], 1);
  EXPECT_EQ(staleness.pushes[30], 1);
  EXPECT_EQ(staleness.pushes[31], 2);
  EXPECT_EQ(staleness.max, 1000);
  EXPECT_EQ(staleness.sum, 1061);
}

TEST(AsyncServer, StepsAreGrantedUntilThereAreNoMore) {
  AsyncServer server(async_terms(2, {1}, 3), 0);
  for (int64_t step : {0, 1}) {
    server.asked(0, step);
    EXPECT_THAT(said(server), testing::Contains(testing::StartsWith("answer worker 0")));
    server.pushed(0, 0, step, true, false);
  }
  server.asked(1, 0);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 0 range 0 clock 1, missed 0", "answer worker 1 range 0 version 2"));
  server.asked(0, 2);
  EXPECT_THAT(said(server), IsEmpty()) << "worker 1 may be lost, and its step not done";
  server.pushed(1, 0, 0, true, false);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 1 range 0 clock 0, missed 0", "refuse worker 0 step 2"));
  server.left(0);
  server.asked(1, 1);
  EXPECT_THAT(said(server), ElementsAre("refuse worker 1 step 1"));
  server.left(1);
  EXPECT_THAT(said(server), ElementsAre("end"));
  EXPECT_EQ(server.steps_done(), 3);
}

TEST(AsyncServer, ALostWorkersStepIsMadeByAnother) {
  AsyncServer server(async_terms(2, {2}, 2), 0);
  for (int worker : {0, 1}) server.asked(worker, 0);
  said(server);
  for (int range : {1, 0}) server.pushed(0, range, 0, true, false);
  server.asked(0, 1);
  EXPECT_THAT(said(server), ElementsAre("apply worker 0 range 1 clock 0, missed 0",
                                        "apply worker 0 range 0 clock 0, missed 0"));
  server.pushed(1, 1, 0, true, false);
  server.lost(1);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 1 range 1 clock 0, missed 1", "answer worker 0 range 0 version 1",
                          "answer worker 0 range 1 version 2"))
      << "what has landed is applied; its range 0 has not, so the step is not done";
  EXPECT_EQ(server.steps_lost(), 1);
  for (int range : {1, 0}) server.pushed(0, range, 1, true, false);
  server.asked(0, 2);
  EXPECT_THAT(said(server), testing::Contains("refuse worker 0 step 2"));
  server.left(0);
  EXPECT_THAT(said(server), ElementsAre("end"));
  EXPECT_EQ(server.steps_done(), 2);
}

TEST(AsyncServer, PushesAreAppliedOnceTheStepIsComplete) {
  AsyncServer server(async_terms(2, {3}, 10), 0);
  for (int worker : {0, 1}) server.asked(worker, 0);
  said(server);
  server.pushed(0, 2, 0, false, false);
  server.pushed(1, 2, 0, false, false);
  server.pushed(0, 1, 0, false, false);
  EXPECT_THAT(said(server), IsEmpty()) << "nobody knows yet what they come to";
  EXPECT_TRUE(server.holds(0, 1));
  EXPECT_FALSE(server.holds(1, 1));
  server.pushed(0, 0, 0, true, false);
  EXPECT_THAT(said(server), ElementsAre("apply worker 0 range 2 clock 0, missed 0",
                                        "apply worker 0 range 1 clock 0, missed 0",
                                        "apply worker 0 range 0 clock 0, missed 0"));
  EXPECT_FALSE(server.holds(0, 1));
  EXPECT_TRUE(server.holds(1, 2));
}

TEST(AsyncServer, ALostWorkersIncompleteStepIsForgotten) {
  AsyncServer server(async_terms(2, {2}, 1), 0);
  server.asked(1, 0);
  server.asked(0, 0);
  said(server);
  server.pushed(1, 0, 0, false, false);
  server.lost(1);
  EXPECT_FALSE(server.holds(1, 0));
  EXPECT_THAT(said(server),
              ElementsAre("answer worker 0 range 0 version 0", "answer worker 0 range 1 version 0"))
      << "it makes the step, though range 0 had landed";
  EXPECT_EQ(server.steps_lost(), 1);
  server.pushed(0, 0, 0, false, false);
  server.pushed(0, 1, 0, true, false);
  server.asked(0, 1);
  EXPECT_THAT(said(server), testing::Contains("refuse worker 0 step 1"));
  EXPECT_EQ(server.steps_done(), 1);
}

TEST(AsyncServer, AStepThatHasLandedIsNotLost) {
  AsyncServer server(async_terms(2, {1}, 1), 0);
  server.asked(1, 0);
  said(server);
  server.asked(0, 0);
  server.pushed(1, 0, 0, true, false);
  server.lost(1);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 1 range 0 clock 0, missed 0", "refuse worker 0 step 0"));
  EXPECT_EQ(server.steps_lost(), 0);
}

TEST(AsyncServer, NobodyIsAnsweredOnceLost) {
  AsyncServer server(async_terms(2, {2}, 2), 0);
  server.asked(0, 0);
  server.asked(1, 0);
  EXPECT_EQ(server.decide(), Decision(AnswerPull{0, 0, 0, kNoCopy}));
  server.lost(0);
  server.lost(1);
  EXPECT_THAT(said(server), ElementsAre("end"));
  EXPECT_EQ(server.steps_done(), 0);
  EXPECT_EQ(server.steps_lost(), 1) << "worker 1 had asked only";
}

TEST(AsyncServer, AStopLeavesWholeRoundsOfWhatIsGranted) {
  AsyncServer server(async_terms(3, {1}, 100), 0);
  for (int worker : {0, 1}) server.asked(worker, 0);
  said(server);
  server.pushed(0, 0, 0, true, true);
  server.asked(0, 1);
  server.asked(2, 0);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 0 range 0 clock 0, missed 0", "answer worker 0 range 0 version 1"))
      << "the third of three";
  server.pushed(1, 0, 0, true, false);
  EXPECT_THAT(said(server), ElementsAre("apply worker 1 range 0 clock 0, missed 1"));
  server.pushed(0, 0, 1, true, false);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 0 range 0 clock 1, missed 1", "refuse worker 2 step 0"));
  EXPECT_EQ(server.steps_done(), 3);
}

TEST(AsyncServer, OtherServersGrantNothingAndRefuseNothing) {
  AsyncServer server(async_terms(1, {1, 1}, 0), 1);
  server.asked(0, 0);
  EXPECT_THAT(said(server), ElementsAre("answer worker 0 range 0 version 0"));
  server.pushed(0, 0, 0, true, true);
  server.asked(0, 1);
  EXPECT_THAT(said(server),
              ElementsAre("apply worker 0 range 0 clock 0, missed 0", "answer worker 0 range 0 version 1"));
}

TEST(AsyncServer, WhatBreaksTheProtocolIsABug) {
  const program::SessionTerms two = async_terms(2, {2}, 10);
  EXPECT_THROW(AsyncServer(two, 0).asked(0, 1), InternalError) << "steps come in order";
  EXPECT_THROW(AsyncServer(two, 0).pushed(0, 0, 0, true, false), InternalError) << "no step was granted";
  AsyncServer server(two, 0);
  server.asked(0, 0);
  EXPECT_THROW(server.asked(0, 0), InternalError) << "twice";
  EXPECT_THROW(server.left(0), InternalError) << "it waits for an answer";
  said(server);
  server.pushed(0, 1, 0, true, false);
  EXPECT_THROW(server.asked(0, 1), InternalError) << "range 0 has been overtaken";
  EXPECT_THROW(server.pushed(0, 0, 0, false, false), InternalError)
      << "nothing would say what the step came to";
  server.lost(0);
  EXPECT_THROW(server.pushed(0, 0, 0, true, false), InternalError) << "it is lost";
}

}  // namespace
}  // namespace lockstep::run
