#include "run/deliveries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "device/emulated/emulated_device.h"

namespace lockstep::run {
namespace {

using testing::ElementsAre;

class DeliveriesTest : public ::testing::Test {
 protected:
  /// An instruction whose part on the device is over once `may_end_` has its number.
  void issue(int place, int instruction, device::EmulatedStream& stream) {
    stream.launch_polled([this, instruction] { return instruction <= may_end_; });
    auto& done = *events_.emplace_back(device_.create_event());
    stream.record(done);
    deliveries_.add(place, instruction, stream, done);
  }
  std::vector<int> advance() {
    std::vector<int> delivered;
    deliveries_.advance([&](int, int instruction) { delivered.push_back(instruction); });
    return delivered;
  }

  device::EmulatedDevice device_{device::EmulatedOptions{}};
  std::unique_ptr<device::Stream> a_ = device_.create_stream("a"), b_ = device_.create_stream("b");
  device::EmulatedStream &first_ = dynamic_cast<device::EmulatedStream&>(*a_),
                         &second_ = dynamic_cast<device::EmulatedStream&>(*b_);
  std::vector<std::unique_ptr<device::Event>> events_;
  Deliveries deliveries_;
  int may_end_ = -1;
};

TEST_F(DeliveriesTest, WaitForTheDevice) {
  issue(0, 1, first_);
  EXPECT_THAT(advance(), ElementsAre());
  EXPECT_TRUE(deliveries_.any(0));
  EXPECT_TRUE(deliveries_.has(1));
  may_end_ = 1;
  EXPECT_THAT(advance(), ElementsAre(1));
  EXPECT_FALSE(deliveries_.any(0));
  EXPECT_FALSE(deliveries_.has(1));
  EXPECT_THAT(advance(), ElementsAre()) << "once";
  first_.synchronize();
}

TEST_F(DeliveriesTest, KeepTheOrderOfIssueAcrossStreams) {
  issue(0, 3, first_);
  issue(0, 1, second_);
  issue(1, 2, second_);
  may_end_ = 2;
  second_.synchronize();
  EXPECT_THAT(advance(), ElementsAre()) << "what is done waits for what comes before it";
  may_end_ = 3;
  EXPECT_THAT(advance(), ElementsAre(3, 1, 2));
}

TEST_F(DeliveriesTest, KnowTheIterationThatTheyAreOf) {
  issue(0, 1, first_);
  issue(1, 2, first_);
  may_end_ = 1;
  EXPECT_THAT(advance(), ElementsAre(1));
  EXPECT_FALSE(deliveries_.any(0));
  EXPECT_TRUE(deliveries_.any(1));
  deliveries_.forget();
  may_end_ = 2;
  EXPECT_THAT(advance(), ElementsAre());
  first_.synchronize();
}

TEST_F(DeliveriesTest, ThatFailAreNotMadeAgain) {
  may_end_ = 2;
  issue(0, 1, first_);
  issue(0, 2, first_);
  first_.synchronize();
  EXPECT_THROW(deliveries_.advance([](int, int) { throw std::runtime_error("the port is dead"); }),
               std::runtime_error);
  EXPECT_THAT(advance(), ElementsAre(2));
}

TEST_F(DeliveriesTest, LearnOfADeviceThatHasFailed) {
  may_end_ = 1;
  first_.launch([] { throw std::runtime_error("an illegal address"); });
  issue(0, 1, first_);
  EXPECT_THROW(advance(), std::runtime_error);
}

}  // namespace
}  // namespace lockstep::run
