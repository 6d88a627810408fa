#include "comm/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local_ranks.h"
#include "mentions.h"

namespace lockstep::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::seconds kSoon{20};

/// What every rank throws, which must be the same.
std::pair<std::string, ExitCode> collective_error(int ranks,
                                                  const std::function<void(int, Communicator&)>& body) {
  std::vector<std::string> messages(static_cast<size_t>(ranks), "nothing was thrown");
  std::vector<ExitCode> codes(static_cast<size_t>(ranks), ExitCode::done);
  run_ranks(ranks, [&](int rank, Communicator& world) {
    try {
      body(rank, world);
    } catch (const CollectiveError& error) {
      messages[static_cast<size_t>(rank)] = error.what();
      codes[static_cast<size_t>(rank)] = error.code();
    }
  });
  for (const auto& message : messages) EXPECT_EQ(message, messages[0]);
  for (const auto& code : codes) EXPECT_EQ(code, codes[0]);
  return {messages[0], codes[0]};
}

TEST(Agreement, EqualFieldsPass) {
  const auto [message, code] = collective_error(4, [](int, Communicator& world) {
    agree_on_fields(world, {{"trainer.seed", "7"}, {"data", "abc", ExitCode::data}}, kSoon);
  });
  EXPECT_EQ(message, "nothing was thrown");
}

TEST(Agreement, NamesTheRankThatDiffersFromTheMajority) {
  const auto [message, code] = collective_error(4, [](int rank, Communicator& world) {
    agree_on_fields(world, {{"trainer.seed", rank == 0 ? "8" : "7"}, {"data", "abc", ExitCode::data}}, kSoon);
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("trainer.seed: rank 0 has 8, ranks 1, 2, 3 have 7"), Not(HasSubstr("abc"))));
  EXPECT_EQ(code, ExitCode::usage);
}

TEST(Agreement, WithTwoRanksTheFirstCountsAsRight) {
  const auto [message, code] = collective_error(2, [](int rank, Communicator& world) {
    agree_on_fields(world, {{"data", rank == 0 ? "abc" : "abd", ExitCode::data}}, kSoon);
  });
  EXPECT_THAT(message, Mentions("rank 1 ... rank 0"));
  EXPECT_EQ(code, ExitCode::data);
}

TEST(Agreement, AFieldThatOneRankLacksIsADifference) {
  const auto [message, code] = collective_error(3, [](int rank, Communicator& world) {
    std::vector<AgreementField> fields{{"a", "1"}};
    if (rank != 1) fields.push_back({"b", ""});
    agree_on_fields(world, fields, kSoon);
  });
  EXPECT_THAT(message, HasSubstr("b: rank 1 has (absent)"));
}

TEST(Agreement, ValuesMayContainAnything) {
  const std::string odd = "3 4 x\n 7 y";
  const auto [message, code] = collective_error(2, [&](int rank, Communicator& world) {
    agree_on_fields(world, {{odd, odd + std::to_string(rank)}, {"after", "same"}}, kSoon);
  });
  EXPECT_THAT(message, AllOf(HasSubstr(odd + ": rank 1 has " + odd + "1"), Not(HasSubstr("after"))));
}

TEST(Agreement, OneRanksFailureReachesAll) {
  const auto [message, code] = collective_error(3, [](int rank, Communicator& world) {
    std::exception_ptr outcome;
    if (rank == 2) outcome = std::make_exception_ptr(DataError("images.gz is cut short"));
    agree_on_outcome(world, outcome, kSoon);
  });
  EXPECT_EQ(message, "rank 2: images.gz is cut short");
  EXPECT_EQ(code, ExitCode::data);
}

TEST(Agreement, WhatAllRanksSayIsSaidOnce) {
  const auto [message, code] = collective_error(3, [](int, Communicator& world) {
    agree_on_outcome(world, std::make_exception_ptr(ConfigError("trainer.steps must be positive")), kSoon);
  });
  EXPECT_EQ(message, "trainer.steps must be positive");
  EXPECT_EQ(code, ExitCode::usage);
}

}  // namespace
}  // namespace lockstep::comm
