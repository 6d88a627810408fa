#include "train/faults/straggler.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

TEST(Straggler, IsAWorkerAndAFactor) {
  EXPECT_EQ(parse_straggler("1:2.5"), (Straggler{1, 2.5}));
  EXPECT_EQ(parse_straggler("0:1"), (Straggler{0, 1}));
  EXPECT_EQ(to_text(parse_straggler("3:2")), "3:2");
  for (const char* wrong :
       {"", "1", ":2", "1:", "1:0.5", "-1:2", "1:2x", "1:nan", "1:inf", "1:1001", "1.5:2", "1 :2"})
    EXPECT_THROW(parse_straggler(wrong), ConfigError) << wrong;
}

}  // namespace
}  // namespace lockstep::train
