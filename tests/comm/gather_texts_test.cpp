#include "comm/gather_texts.h"

#include <gmock/gmock.h>

#include <thread>

#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

using ::testing::ElementsAre;

TEST(GatherTexts, BringsEverybodysTextWhateverItsLength) {
  auto worlds = make_local_communicators(3);
  std::vector<std::thread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&] {
      const int rank = world->rank();
      const std::string own = std::string(static_cast<size_t>(rank) * 1000, 'x') + '\0';
      const auto timeout = std::chrono::seconds(30);
      EXPECT_THAT(gather_texts(*world, rank == 0 ? "" : own, timeout),
                  ElementsAre("", std::string(1000, 'x') + '\0', std::string(2000, 'x') + '\0'));
      EXPECT_THAT(gather_texts(*world, "", timeout), ElementsAre("", "", ""));
    });
  for (auto& thread : threads) thread.join();
}

TEST(CollectTexts, BringsAllTextsToTheFirstRankAlone) {
  auto worlds = make_local_communicators(3);
  std::vector<std::thread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&] {
      const int rank = world->rank();
      const std::string own(static_cast<size_t>(2 - rank) * 1000, static_cast<char>('a' + rank));
      std::vector<std::string> texts;
      collect_texts(*world, own, std::chrono::seconds(30),
                    [&](std::string text) { texts.push_back(std::move(text)); });
      if (rank == 0)
        EXPECT_THAT(texts, ElementsAre(std::string(2000, 'a'), std::string(1000, 'b'), ""));
      else
        EXPECT_THAT(texts, ElementsAre());
    });
  for (auto& thread : threads) thread.join();
}

TEST(GatherTexts, OfOneRankAloneIsItsOwn) {
  EXPECT_THAT(gather_texts(*make_solo_communicator(), "own", std::chrono::seconds(1)), ElementsAre("own"));
}

}  // namespace
}  // namespace lockstep::comm
