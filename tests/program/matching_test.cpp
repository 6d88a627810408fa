#include "program/matching.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MessageEnds, MatchInTheOrderInWhichTheyCome) {
  MessageEnds<int> ends;
  EXPECT_EQ(ends.match(/*sends=*/true, 1), std::nullopt);
  EXPECT_EQ(ends.match(true, 2), std::nullopt);
  EXPECT_THAT(ends.waiting(), ElementsAre(1, 2));
  EXPECT_EQ(ends.match(false, 3), 1);
  EXPECT_EQ(ends.match(false, 4), 2);
  EXPECT_EQ(ends.match(false, 5), std::nullopt) << "now a receiver waits";
  EXPECT_THAT(ends.waiting(), ElementsAre(5));
  EXPECT_EQ(ends.match(true, 6), 5);
  EXPECT_THAT(ends.waiting(), IsEmpty());
}

TEST(Meeting, EndsWhenAllHaveComeAndBeginsAnew) {
  Meeting<char> meeting;
  EXPECT_THAT(meeting.come('b', 2), IsEmpty());
  EXPECT_THAT(meeting.present(), ElementsAre('b'));
  EXPECT_THAT(meeting.come('a', 2), ElementsAre('b', 'a'));
  EXPECT_THAT(meeting.present(), IsEmpty());
  EXPECT_THAT(meeting.come('a', 2), IsEmpty());
  EXPECT_THAT(meeting.come('b', 2), ElementsAre('a', 'b'));
  EXPECT_THAT(meeting.come('c', 1), ElementsAre('c')) << "of a member alone";
}

}  // namespace
}  // namespace lockstep::program
