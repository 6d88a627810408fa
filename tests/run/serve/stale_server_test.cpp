#include "run/serve/stale_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "run/serve/said.h"

namespace lockstep::run {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

program::SessionTerms stale_terms(int workers, std::vector<int> ranges, int bound, int64_t steps = 100) {
  return {workers, std::move(ranges), bound, steps};
}

TEST(StaleServer, AFastWorkerIsBoundSoManyStepsAhead) {
  StaleServer server(stale_terms(2, {1}, 1), 0);
  server.asked(0, 0, {});
  EXPECT_THAT(said(server), ElementsAre("answer worker 0 range 0 version 0"));
  server.pushed(0, 0, 0, false);
  server.asked(0, 1, {});
  EXPECT_THAT(said(server), ElementsAre("answer worker 0 range 0 version 0"));
  server.pushed(0, 0, 1, false);
  server.asked(0, 2, {});
  EXPECT_THAT(said(server), IsEmpty()) << "step 2 may lack one clock, not two";
  server.asked(1, 0, {});
  EXPECT_THAT(said(server), ElementsAre("answer worker 1 range 0 version 0"));
  server.pushed(1, 0, 0, false);
  EXPECT_THAT(said(server), ElementsAre("apply clock 0 from slot 0", "answer worker 0 range 0 version 1"));
  EXPECT_EQ(server.version(), 1);
}

TEST(StaleServer, AClockIsAppliedOnceWithTheLastOfItsPushes) {
  StaleServer server(stale_terms(2, {2}, 1), 0);
  for (int worker : {1, 0}) server.asked(worker, 0, {});
  EXPECT_THAT(said(server),
              ElementsAre("answer worker 0 range 0 version 0", "answer worker 0 range 1 version 0",
                          "answer worker 1 range 0 version 0", "answer worker 1 range 1 version 0"));
  server.pushed(1, 1, 0, false);
  server.pushed(0, 1, 0, false);
  server.pushed(1, 0, 0, false);
  EXPECT_THAT(said(server), IsEmpty());
  server.pushed(0, 0, 0, false);
  EXPECT_THAT(said(server), ElementsAre("apply clock 0 from slot 0"));
}

TEST(StaleServer, OthersAnswerWithTheVersionAskedForAndWaitForIt) {
  StaleServer server(stale_terms(2, {3, 1}, 2), 1);
  for (int64_t step : {0, 1}) {
    for (int worker : {0, 1}) {
      server.asked(worker, step, step);
      said(server);
    }
    for (int worker : {0, 1}) server.pushed(worker, 0, step, false);
    EXPECT_THAT(said(server), ElementsAre(step == 0 ? "apply clock 0 from slot 0, keep copy 0"
                                                    : "apply clock 1 from slot 1, keep copy 1"));
  }
  server.asked(0, 2, 0);
  EXPECT_THAT(said(server), ElementsAre("answer worker 0 range 0 version 0 of copy 0"));
  server.asked(1, 2, 1);
  EXPECT_THAT(said(server), ElementsAre("answer worker 1 range 0 version 1 of copy 1"));
  server.pushed(0, 0, 2, false);
  server.asked(0, 3, 3);
  EXPECT_THAT(said(server), IsEmpty()) << "the coordinator is ahead";
  server.pushed(1, 0, 2, false);
  EXPECT_THAT(said(server),
              ElementsAre("apply clock 2 from slot 2, keep copy 0", "answer worker 0 range 0 version 3"));
}

TEST(StaleServer, NothingIsAppliedWithinAnAnswer) {
  StaleServer server(stale_terms(2, {2}, 1), 0);
  for (int worker : {0, 1}) server.asked(worker, 0, {});
  said(server);
  for (int range : {0, 1}) server.pushed(0, range, 0, false);
  server.asked(0, 1, {});
  EXPECT_EQ(server.decide(), Decision(AnswerPull{0, 0, 0, kNoCopy}));
  for (int range : {0, 1}) server.pushed(1, range, 0, false);
  EXPECT_THAT(said(server), ElementsAre("answer worker 0 range 1 version 0", "apply clock 0 from slot 0"));
}

TEST(StaleServer, StalenessIsTheVersionAppliedToLessTheVersionRead) {
  StaleServer server(stale_terms(2, {3}, 1), 0);
  const auto step = [&](int worker, int64_t number) {
    server.asked(worker, number, {});
    said(server);
    for (int range = 0; range < 3; ++range) server.pushed(worker, range, number, false);
    said(server);
  };
  step(0, 0);
  step(0, 1);  // reads version 0
  step(1, 0);
  step(1, 1);  // reads version 1
  EXPECT_EQ(server.version(), 2);
  EXPECT_EQ(server.staleness().count, 12);
  EXPECT_EQ(server.staleness().sum, 3);
  EXPECT_EQ(server.staleness().max, 1);
  EXPECT_EQ(server.staleness().pushes[0], 9);
  EXPECT_EQ(server.staleness().pushes[1], 3);
}

TEST(StaleServer, AStopEndsEveryWorkerAtTheSameStep) {
  StaleServer server(stale_terms(2, {1}, 1), 0);
  for (int worker : {0, 1}) server.asked(worker, 0, {});
  said(server);
  server.pushed(0, 0, 0, false);
  server.asked(0, 1, {});
  EXPECT_THAT(said(server), ElementsAre("answer worker 0 range 0 version 0"));
  server.pushed(1, 0, 0, true);  // step 1 has begun, and is worker 1's, too
  server.pushed(0, 0, 1, false);
  server.asked(0, 2, {});
  EXPECT_THAT(said(server), ElementsAre("apply clock 0 from slot 0", "refuse worker 0 step 2"));
  server.left(0);
  server.asked(1, 1, {});
  EXPECT_THAT(said(server), ElementsAre("answer worker 1 range 0 version 1"));
  server.pushed(1, 0, 1, false);
  server.asked(1, 2, {});
  EXPECT_THAT(said(server), ElementsAre("apply clock 1 from slot 1", "refuse worker 1 step 2"));
  server.left(1);
  EXPECT_THAT(said(server), ElementsAre("end"));
}

TEST(StaleServer, StepsEndAsAgreed) {
  StaleServer server(stale_terms(2, {1}, 1, 1), 0);
  for (int worker : {0, 1}) server.asked(worker, 0, {});
  said(server);
  server.pushed(0, 0, 0, false);
  server.asked(0, 1, {});
  EXPECT_THAT(said(server), ElementsAre("refuse worker 0 step 1")) << "nobody needs to wait for that";
  server.left(0);
  server.pushed(1, 0, 0, false);
  server.left(1);  // it may know by itself
  EXPECT_THAT(said(server), ElementsAre("apply clock 0 from slot 0", "end"));
}

TEST(StaleServer, ALostWorkerIsReportedUnlessItHadLeft) {
  StaleServer server(stale_terms(2, {1, 1}, 1), 1);
  server.left(0);
  server.lost(0);
  EXPECT_THAT(said(server), IsEmpty());
  server.lost(1);
  EXPECT_THAT(said(server), ElementsAre("lost worker 1"));
  EXPECT_THAT(said(server), IsEmpty());
}

TEST(StaleServer, WhatBreaksTheProtocolIsABug) {
  const program::SessionTerms two = stale_terms(2, {1, 1}, 1);
  EXPECT_THROW(StaleServer(two, 0).asked(0, 1, {}), InternalError) << "steps come in order";
  EXPECT_THROW(StaleServer(two, 0).asked(0, 0, 0), InternalError) << "the coordinator chooses the version";
  EXPECT_THROW(StaleServer(two, 1).asked(0, 0, {}), InternalError) << "the others do not";
  EXPECT_THROW(StaleServer(two, 1).asked(0, 0, 1), InternalError) << "nobody can have seen version 1";
  EXPECT_THROW(StaleServer(two, 0).pushed(0, 0, 0, false), InternalError) << "no step has begun";
  EXPECT_THROW(StaleServer(two, 0).left(2), InternalError) << "there is no such worker";
  StaleServer server(two, 0);
  server.left(0);
  EXPECT_THROW(server.asked(0, 0, {}), InternalError) << "it has left";
  server.asked(1, 0, {});
  said(server);
  EXPECT_THROW(server.left(1), InternalError) << "it has not pushed";
  server.pushed(1, 0, 0, false);
  EXPECT_THROW(server.pushed(1, 0, 0, false), InternalError) << "twice";
  EXPECT_THROW(server.left(1), InternalError) << "others have left a step before";
}

}  // namespace
}  // namespace lockstep::run
