#include "observe/sinks/event_file.h"

#include <gtest/gtest.h>

#include <string_view>

namespace lockstep::observe {
namespace {

using std::literals::operator""sv;

// The bytes are those of TensorBoard's own writer, for the same events.

TEST(EventFile, BeginsWithItsVersion) {
  EXPECT_EQ(version_event(1.5),
            "\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7f\x4b\x22\x09\x00\x00\x00\x00\x00\x00\xf8"
            "\x3f\x1a\x0d"
            "brain.Event:2\x2a\x28\x64\x6c"sv);
}

TEST(EventFile, TellsFromWhichStepOnASessionCounts) {
  EXPECT_EQ(session_start_event({1.5, 61}),
            "\x0f\x00\x00\x00\x00\x00\x00\x00\x6d\x53\x2b\x09\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\x3d\x3a"
            "\x02\x08\x01\xd9\x09\xf7\xc6"sv);
}

TEST(EventFile, HoldsScalars) {
  EXPECT_EQ(scalars_event({1.5, 300}, {{"train/loss", 0.25}}),
            "\x21\x00\x00\x00\x00\x00\x00\x00\x01\x7b\xec\xf6\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\xac\x02"
            "\x2a\x13\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x80\x3e\x65\x57\x98\x1f"sv);
}

TEST(EventFile, HoldsTexts) {
  EXPECT_EQ(
      text_event({1.5, 0}, "t", "x"),
      "\x25\x00\x00\x00\x00\x00\x00\x00\xea\xbc\x36\xf3\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x2a\x1a\x0a"
      "\x18\x0a\x01t\x42\x07\x08\x07\x12\x00\x42\x01x\x4a\x0a\x0a\x06\x0a\x04text\x20\x02\x7e\xf8\x29\x5b"sv);
}

TEST(EventFile, NumbersOfSevenBitsHaveOneByte) {
  EXPECT_EQ(WireMessage().number(1, 127).bytes(), "\x08\x7f"sv);
  EXPECT_EQ(WireMessage().number(1, 128).bytes(), "\x08\x80\x01"sv);
  EXPECT_EQ(WireMessage().number(1, ~uint64_t{0}).bytes(), "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"sv);
  EXPECT_EQ(WireMessage().text(16, "").bytes(), "\x82\x01\x00"sv);
}

}  // namespace
}  // namespace lockstep::observe
