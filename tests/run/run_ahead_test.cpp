#include "run/run_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "device/emulated/emulated_device.h"

namespace lockstep::run {
namespace {

class RunAheadTest : public ::testing::Test {
 protected:
  /// Gives the stream `pieces`, of a number each, and returns how many it had done in the end.
  int give(RunAhead& ahead, int pieces, const RunAhead::Wait& wait) {
    done_ = 0;
    ahead.begin();
    for (int i = 0; i < pieces; ++i) {
      stream_->launch([this] { ++done_; });
      given_ = i + 1;
      ahead.given(wait);
    }
    return done_;
  }

  device::EmulatedDevice device_{device::EmulatedOptions{}};
  std::unique_ptr<device::Stream> stream_ = device_.create_stream("compute");
  int done_ = 0, given_ = 0;
};

TEST_F(RunAheadTest, NoMoreThanTheBoundIsEverUnfinished) {
  RunAhead ahead(device_, *stream_, 16);
  int waits = 0, most = 0;
  for (int iteration = 0; iteration < 3; ++iteration) {
    const int done = give(ahead, 1000, [&](device::Stream& stream, const device::Event& event) {
      ++waits;
      EXPECT_EQ(&stream, stream_.get());
      most = std::max(most, given_ - done_);
      while (!event.ready()) stream.idle();
    });
    EXPECT_GE(done, 1000 - 16);
    stream_->synchronize();
  }
  EXPECT_GT(waits, 3 * 200);
  EXPECT_LE(most, 16);
  EXPECT_GE(most, 12) << "the device would run dry";
  EXPECT_LE(device_.most_queued(), 16u + RunAhead::kParts);
}

TEST_F(RunAheadTest, WhatTheBoundHoldsNeedsNoWaiting) {
  RunAhead ahead(device_, *stream_, 16);
  for (int iteration = 0; iteration < 3; ++iteration) {
    give(ahead, 15, [](device::Stream&, const device::Event&) { ADD_FAILURE() << "there was room"; });
    stream_->synchronize();
  }
}

TEST_F(RunAheadTest, WhatIsFoundOutMeanwhileEndsTheIssuing) {
  RunAhead ahead(device_, *stream_, 16);
  EXPECT_THROW(
      give(ahead, 1000,
           [](device::Stream&, const device::Event&) { throw std::runtime_error("a peer is lost"); }),
      std::runtime_error);
  EXPECT_LE(given_, 16);
}

}  // namespace
}  // namespace lockstep::run
