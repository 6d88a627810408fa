#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "run/serve/explore.h"

namespace lockstep::run {
namespace {

constexpr bool kPrompt = true;
constexpr bool kCountedLast = true, kCountedFirst = false;
constexpr bool kCompleteAtLast = true;

std::string describe_exploration(const Scene& scene) {
  const program::SessionTerms& terms = scene.terms;
  std::string text = (terms.bound ? "STALE(" + std::to_string(*terms.bound) + ")" : "ASYNC") + ", " +
                     std::to_string(terms.workers) + " workers, ranges";
  for (int ranges : terms.ranges) text += " " + std::to_string(ranges);
  return text + ", " + std::to_string(terms.steps) + " steps, deaths " + std::to_string(scene.deaths) +
         ", stops " + std::to_string(scene.stops) + (scene.prompt ? ", prompt" : "") +
         (scene.counted_last ? "" : ", counted first") + (scene.complete_at_last ? ", complete at last" : "");
}

/// Explores all of them; returns the number of states.
int64_t explore_all(const std::vector<Scene>& scenes) {
  int64_t states = 0;
  for (const Scene& scene : scenes) {
    const Found found = explore(scene);
    EXPECT_EQ(found.wrong, "") << describe_exploration(scene);
    EXPECT_GT(found.ends, 0) << describe_exploration(scene);
    std::cout << describe_exploration(scene) << ": " << found.states << " states\n";
    states += found.states;
  }
  return states;
}

TEST(Exploration, EveryStateOfSmallStaleSessions) {
  const int64_t states = explore_all({
      {{2, {1}, 1, 3}},
      {{2, {1}, 1, 4}, 1, 1},
      {{2, {1}, 1, 4}, 0, 2},
      {{2, {1}, 2, 4}, 0, 1},
      {{2, {2}, 1, 4}, 0, 1},
      {{2, {2}, 2, 4}},
      {{3, {1}, 1, 3}},
      {{3, {1}, 2, 3}, 0, 0, kPrompt},
      {{2, {1, 1}, 1, 3}, 0, 1},
      {{2, {1, 1}, 2, 4}},
      {{2, {1, 1}, 1, 3}, 1, 0, kPrompt},
      {{2, {1, 1}, 3, 4}, 0, 1, kPrompt},
      {{2, {1, 2}, 1, 4}, 0, 1, kPrompt, kCountedFirst},
      {{2, {1, 1, 1}, 1, 3}, 0, 0, kPrompt},
      {{3, {1, 1}, 1, 2}, 0, 0, kPrompt},
  });
  std::cout << states << " states in all\n";
  EXPECT_GE(states, 700'000);
}

TEST(Exploration, EveryStateOfSmallAsyncSessions) {
  const int64_t states = explore_all({
      {{2, {1}, {}, 4}, 1, 1},
      {{2, {1}, {}, 4}, 2, 0},
      {{2, {2}, {}, 3}, 1, 1},
      {{2, {2}, {}, 4}, 1, 0, !kPrompt, kCountedFirst},
      {{2, {1, 1}, {}, 2}, 1, 1},
      {{2, {1, 1}, {}, 3}, 1, 1, kPrompt, kCountedFirst},
      {{2, {1}, {}, 4}, 0, 2},
      {{3, {1}, {}, 2}, 1, 0},
      {{3, {1}, {}, 3}, 1, 1, kPrompt},
      {{3, {1, 1}, {}, 2}, 1, 0, kPrompt},
      {{2, {2}, {}, 3}, 1, 1, !kPrompt, kCountedLast, kCompleteAtLast},
      {{2, {2}, {}, 3}, 2, 0, !kPrompt, kCountedFirst, kCompleteAtLast},
      {{2, {2, 1}, {}, 2}, 1, 1, kPrompt, kCountedFirst, kCompleteAtLast},
      {{2, {3}, {}, 3}, 1, 0, kPrompt, kCountedLast, kCompleteAtLast},
  });
  std::cout << states << " states in all\n";
  EXPECT_GE(states, 700'000);
}

/// Up to 8 workers, 4 servers of 4 ranges, a bound of 4 and 300 steps.
Scene large_scene(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<uint64_t>(most - least + 1));
  };
  Scene scene;
  scene.terms.workers = draw(2, 8);
  scene.terms.ranges.resize(static_cast<size_t>(draw(1, 4)));
  for (int& ranges : scene.terms.ranges) ranges = draw(1, 4);
  const bool stale = seed % 2 == 0;
  if (stale) scene.terms.bound = draw(1, 4);
  scene.terms.steps = stale ? draw(100, 300) : draw(400, 1200);
  scene.deaths = stale ? 0 : draw(0, scene.terms.workers - 1);
  scene.stops = draw(0, 1);
  scene.counted_last = draw(0, 1) == 0;
  scene.complete_at_last = draw(0, 1) == 0;
  return scene;
}

TEST(Exploration, WalksThroughLargeSessions) {
  int64_t states = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Scene scene = large_scene(seed);
    const Found found = wander(scene, seed);
    EXPECT_EQ(found.wrong, "") << describe_exploration(scene);
    EXPECT_EQ(found.ends, 1) << describe_exploration(scene);
    states += found.states;
  }
  std::cout << states << " states in all\n";
  EXPECT_GE(states, 500'000);
}

}  // namespace
}  // namespace lockstep::run
