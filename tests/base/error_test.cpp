#include "lockstep/error.h"

#include <gmock/gmock.h>

#include "base/ensure.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Errors, CarryTheExitCodeOfTheirKind) {
  EXPECT_EQ(static_cast<int>(ConfigError("").code()), 2);
  EXPECT_EQ(static_cast<int>(DataError("").code()), 65);
  EXPECT_EQ(static_cast<int>(CheckpointError("").code()), 65);
  EXPECT_EQ(static_cast<int>(DeviceError("").code()), 69);
  EXPECT_EQ(static_cast<int>(InternalError("").code()), 70);
  EXPECT_EQ(static_cast<int>(IoError("").code()), 74);
  EXPECT_EQ(static_cast<int>(CommError("").code()), 200);
  EXPECT_EQ(static_cast<int>(CommError("", ExitCode::hang).code()), 201);
}

TEST(Require, ThrowsWhereFalse) {
  EXPECT_NO_THROW(require(true, "fine"));
  try {
    require(false, "micro_batch must be positive");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "micro_batch must be positive");
  }
}

TEST(Ensure, NamesThePlace) {
  EXPECT_NO_THROW(ensure(true, "fine"));
  try {
    ensure(false, "the queue is empty");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the queue is empty"));
    EXPECT_THAT(error.what(), HasSubstr("error_test.cpp:"));
  }
}

}  // namespace
}  // namespace lockstep
