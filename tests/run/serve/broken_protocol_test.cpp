#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run/serve/explore.h"

// The exploration finds what is wrong, or it would prove nothing.

namespace lockstep::run {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

Scene stale(int bound, std::vector<int> ranges = {1, 1}) { return {{2, std::move(ranges), bound, 4}}; }
Scene async(std::vector<int> ranges = {1}) { return {{2, std::move(ranges), {}, 3}}; }

std::string wrong(Scene scene, const Flaws& flaws) {
  scene.prompt = true;
  EXPECT_THAT(explore(scene).wrong, IsEmpty()) << "without the flaw";
  scene.flaws = flaws;
  return explore(scene).wrong;
}

TEST(BrokenProtocol, ACopyTooFew) {
  for (int bound : {1, 2, 3}) {
    EXPECT_THAT(wrong(stale(bound), {.memory = {.copies_missing = 1}}),
                HasSubstr("reads all ranges at one version"))
        << bound;
  }
}

TEST(BrokenProtocol, CopiesThatNobodyLooksAt) {
  EXPECT_THAT(wrong(stale(2), {.memory = {.answers_are_current = true}}),
              HasSubstr("reads all ranges at one version"));
}

TEST(BrokenProtocol, ALandingSlotTooFew) {
  for (int bound : {1, 2, 3}) {
    EXPECT_THAT(wrong(stale(bound, {1}), {.memory = {.slots_missing = 1}}),
                HasSubstr("slot is free when a push is sent"))
        << bound;
  }
}

TEST(BrokenProtocol, ALargerBoundThanWasMeant) {
  EXPECT_THAT(wrong(stale(1), {.bound_exceeded = 1}), HasSubstr("a step reads within the bound"));
}

TEST(BrokenProtocol, ServersWithALargerBoundThanWorkers) {
  EXPECT_THAT(wrong(stale(1, {1}), {.hasty_servers = 1}),
              HasSubstr("a step reads a version within the bound"));
}

TEST(BrokenProtocol, ServersWithASmallerBoundThanTheCoordinator) {
  EXPECT_THAT(wrong(stale(2), {.forgetful_servers = 1}),
              HasSubstr("a step reads a version within the bound"));
}

TEST(BrokenProtocol, MessagesThatOvertakeEachOther) {
  for (const Scene& scene : {stale(1), async()}) {
    EXPECT_THAT(wrong(scene, {.messages_overtake = true}),
                HasSubstr("a worker asks after it has pushed every range"));
  }
}

TEST(BrokenProtocol, PushesThatAreAppliedTwice) {
  EXPECT_THAT(wrong(async(), {.memory = {.pushes_apply_twice = true}}), HasSubstr("applied once"));
}

TEST(BrokenProtocol, ALossThatNobodyNotices) {
  Scene scene = async();
  scene.deaths = 1;
  EXPECT_THAT(wrong(scene, {.deaths_go_unnoticed = true}), HasSubstr("every server's session ends"));
}

TEST(BrokenProtocol, PushesOfDeadWorkersThatAreDropped) {
  Scene scene{{1, {2}, {}, 3}};  // neither steps nor staleness tell of it
  scene.deaths = 1;
  EXPECT_THAT(wrong(scene, {.dead_pushes_are_dropped = true}),
              HasSubstr("all that has arrived is applied, of dead workers too"));
}

TEST(BrokenProtocol, PushesThatAreAppliedBeforeTheyAreComplete) {
  Scene scene{{1, {2}, {}, 3}};
  scene.deaths = 1;
  scene.complete_at_last = true;
  EXPECT_THAT(wrong(scene, {.pushes_complete_early = true}),
              HasSubstr("all that has arrived is applied, of dead workers too"));
}

TEST(BrokenProtocol, NobodyIsLeftToMakeALostStep) {
  Scene scene = async();
  scene.deaths = 1;
  EXPECT_THAT(wrong(scene, {.refusals_are_hasty = true}), HasSubstr("so many steps are done in all"));
}

TEST(BrokenProtocol, AStepTooMany) {
  EXPECT_THAT(wrong(async(), {.steps_exceeded = 1}), HasSubstr("so many steps are done in all"));
  EXPECT_THAT(wrong(stale(1), {.steps_exceeded = 1}), HasSubstr("all workers end at the same step"));
}

}  // namespace
}  // namespace lockstep::run
