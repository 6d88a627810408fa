#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mentions.h"
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
                Mentions("all ranges ... one version"))
        << bound;
  }
}

TEST(BrokenProtocol, CopiesThatNobodyLooksAt) {
  EXPECT_THAT(wrong(stale(2), {.memory = {.answers_are_current = true}}),
              Mentions("all ranges ... one version"));
}

TEST(BrokenProtocol, ALandingSlotTooFew) {
  for (int bound : {1, 2, 3}) {
    EXPECT_THAT(wrong(stale(bound, {1}), {.memory = {.slots_missing = 1}}), Mentions("slot is free ... push"))
        << bound;
  }
}

TEST(BrokenProtocol, ALargerBoundThanWasMeant) {
  EXPECT_THAT(wrong(stale(1), {.bound_exceeded = 1}), Mentions("step ... within the bound"));
}

TEST(BrokenProtocol, ServersWithALargerBoundThanWorkers) {
  EXPECT_THAT(wrong(stale(1, {1}), {.hasty_servers = 1}), Mentions("version ... within the bound"));
}

TEST(BrokenProtocol, ServersWithASmallerBoundThanTheCoordinator) {
  EXPECT_THAT(wrong(stale(2), {.forgetful_servers = 1}), Mentions("version ... within the bound"));
}

TEST(BrokenProtocol, MessagesThatOvertakeEachOther) {
  for (const Scene& scene : {stale(1), async()}) {
    EXPECT_THAT(wrong(scene, {.messages_overtake = true}), Mentions("asks ... pushed every range"));
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
              Mentions("arrived ... applied ... dead workers"));
}

TEST(BrokenProtocol, PushesThatAreAppliedBeforeTheyAreComplete) {
  Scene scene{{1, {2}, {}, 3}};
  scene.deaths = 1;
  scene.complete_at_last = true;
  EXPECT_THAT(wrong(scene, {.pushes_complete_early = true}),
              Mentions("arrived ... applied ... dead workers"));
}

TEST(BrokenProtocol, NobodyIsLeftToMakeALostStep) {
  Scene scene = async();
  scene.deaths = 1;
  EXPECT_THAT(wrong(scene, {.refusals_are_hasty = true}), Mentions("steps ... done in all"));
}

TEST(BrokenProtocol, AStepTooMany) {
  EXPECT_THAT(wrong(async(), {.steps_exceeded = 1}), Mentions("steps ... done in all"));
  EXPECT_THAT(wrong(stale(1), {.steps_exceeded = 1}), Mentions("workers end ... same step"));
}

}  // namespace
}  // namespace lockstep::run
