// What a failure prints is as small as it can be, and says how to see it again; and what cases there are.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "net/case_generator.h"
#include "net/replay.h"
#include "net/search.h"
#include "net/shrink.h"

namespace lockstep::net {
namespace {

/// As a shell has them.
std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words;
  std::istringstream text(command);
  for (std::string word; text >> word;) {
    std::erase(word, '"');
    words.push_back(word);
  }
  return words;
}

TEST(Replay, IsOfTheSameCase) {
  for (int64_t number = 0; number < 60; ++number) {
    Case test_case = generate_case(seed_of_case(3, number));
    test_case.on_gpu = number % 3 == 0;
    const auto words = words_of(replay_command(test_case, "case.textproto"));
    EXPECT_EQ(words.front() == "net_campaign_emulated", test_case.on_gpu);
    EXPECT_EQ(parse_replay(words), (Replay{.file = "case.textproto",
                                           .layout = layout::to_string(test_case.layout),
                                           .facts = facts_of(test_case)}));
  }
  EXPECT_EQ(parse_replay(words_of("net_campaign --seed 7 --cases 3")), std::nullopt);
}

TEST(Replay, SaysWhenVerifyDoesNotShowIt) {
  const Finding bits{Finding::Kind::bits, ""}, oracle{Finding::Kind::oracle, ""};
  Case test_case = generate_case(seed_of_case(3, 1));
  const auto is_command = [](const std::string& text) { return text.starts_with("lockstep verify case."); };
  EXPECT_FALSE(is_command(verify_command(test_case, bits))) << "its bits are equal";
  EXPECT_FALSE(is_command(verify_command(test_case, oracle)));
  for (const auto& change : std::vector<std::function<void(Case&)>>{
           [](Case& other) { other.training.fast = true; }, [](Case& other) { other.on_gpu = true; },
           [](Case& other) { other.ranks_per_host = 2; }, [](Case& other) { other.lanes_at_once = true; }}) {
    Case changed = test_case;
    change(changed);
    EXPECT_FALSE(is_command(verify_command(changed, bits)));
  }
}

template <class AnyOp>
const AnyOp* first_of(const Case& test_case) {
  for (const Layer& layer : test_case.model.layers)
    if (const auto* op = std::get_if<AnyOp>(&layer.op)) return op;
  return nullptr;
}

struct Kept {
  const char* name;
  std::function<bool(const Case&)> fails;
  std::function<void(const Case&)> look;  ///< at the smallest
};

class Shrink : public testing::TestWithParam<Kept> {};

/// As if a fault showed in any case with one property. What is not that property becomes a default.
TEST_P(Shrink, LeavesNothingButWhatFails) {
  Case smallest;
  int found = 0;
  for (int64_t number = 0; found < 3 && number < 400; ++number) {
    const Case test_case = generate_case(seed_of_case(5, number));
    if (!GetParam().fails(test_case)) continue;
    ++found;
    smallest = shrink(test_case, GetParam().fails);
    SCOPED_TRACE(describe(smallest));
    const Training plain;
    EXPECT_TRUE(GetParam().fails(smallest));
    EXPECT_TRUE(is_possible(smallest));
    EXPECT_EQ(smallest.training.optimizer, plain.optimizer);
    EXPECT_EQ(smallest.training.samples, 5);
    // A batch norm that is the only layer with parameters stays, and wants several values.
    const bool has_norm = first_of<BatchNorm>(smallest) != nullptr;
    EXPECT_LE(smallest.training.global_batch, (has_norm ? 2 : 1) * smallest.training.virtual_replicas);
    EXPECT_EQ(smallest.training.learning_rate, plain.learning_rate);
    EXPECT_EQ(smallest.training.algorithm, plain.algorithm);
    EXPECT_EQ(smallest.training.intra_op_threads, 1);
    EXPECT_FALSE(smallest.training.fused_gelu);
    EXPECT_FALSE(smallest.lanes_at_once);
    EXPECT_FALSE(smallest.shared_memory);
    EXPECT_LE(smallest.model.inputs.front().spec.shape.count(), 9);
    if (const auto* loss = first_of<SoftmaxCrossEntropy>(smallest)) {
      EXPECT_EQ(loss->label_smoothing, 0);
      EXPECT_EQ(smallest.model.layers.back().inputs.size(), 2u);
    }
    EXPECT_EQ(first_of<Gelu>(smallest), nullptr);
    for (const Layer& layer : smallest.model.layers) {
      const auto* linear = std::get_if<Linear>(&layer.op);
      EXPECT_LE(linear == nullptr ? 0 : linear->units, 12) << layer.name;
      EXPECT_LE(has_norm ? smallest.model.layers.size() : 0, 8u) << "a batch norm is not alone";
    }
    GetParam().look(smallest);
  }
  EXPECT_EQ(found, 3) << "the generator makes few of them";
}

INSTANTIATE_TEST_SUITE_P(
    All, Shrink,
    testing::Values(Kept{"Interleaved",
                         [](const Case& c) {
                           return c.layout.pp > 1 &&
                                  c.layout.schedule == layout::PipelineSchedule::interleaved;
                         },
                         [](const Case& c) {
                           EXPECT_EQ(layout::to_string(c.layout), "dp=1,pp=2,schedule=interleaved");
                           EXPECT_FALSE(c.training.fast);
                         }},
                    Kept{"Stale",
                         [](const Case& c) { return c.layout.sync == layout::SyncMethod::parameter_server; },
                         [](const Case& c) { EXPECT_EQ(layout::to_string(c.layout), "dp=1,sync=ps"); }},
                    Kept{"Fast", [](const Case& c) { return c.training.fast; },
                         [](const Case& c) { EXPECT_EQ(layout::to_string(c.layout), "dp=1"); }},
                    Kept{"Convolution", [](const Case& c) { return first_of<Conv2d>(c) != nullptr; },
                         [](const Case& c) {
                           Conv2d smallest = *first_of<Conv2d>(c);
                           smallest.init_std = 0;
                           EXPECT_EQ(smallest, (Conv2d{.channels = 1, .kernel = 1, .bias = false}));
                         }},
                    Kept{"Lstm", [](const Case& c) { return first_of<Lstm>(c) != nullptr; },
                         [](const Case& c) { EXPECT_EQ(*first_of<Lstm>(c), Lstm{.units = 1}); }}),
    [](const auto& info) { return info.param.name; });

/// Of few cases, so that a choice that the generator does not make any more is missed.
TEST(Generator, DrawsWhatHasBeenForgotten) {
  std::map<std::string, int> seen;
  for (int64_t number = 0; number < 250; ++number) {
    const Case c = generate_case(seed_of_case(9, number));
    const layout::Layout& l = c.layout;
    const bool serves = l.sync == layout::SyncMethod::parameter_server,
               colocated = serves && l.placement == layout::ServerPlacement::colocated;
    const auto note = [&seen](const std::string& what, bool is) { seen[what] += is ? 1 : 0; };
    note("threads", c.training.intra_op_threads > 1 || kMostThreads == 1);
    note("fused_gelu", c.training.fused_gelu);
    note("error feedback", c.training.error_feedback && !c.training.fast);
    note("error feedback of FAST sums", c.training.error_feedback && c.training.fast && l.world_size() > 1);
    note("memory_limit", c.training.memory_limit > 0);
    note("algorithm", c.training.algorithm != "AUTOMATIC");
    note("4 stages of two replicas", l.pp == 4 && l.dp > 1);
    note("3 or 4 stages that serve", colocated && l.pp > 2);
    note("several servers of a stage", colocated && l.servers > l.pp);
    for (const std::string& kind : kinds_of(l)) {
      note(kind, true);
      if (l.pp > 1 && l.dp > 1)
        for (const std::string& schedule : kinds_of(l))
          if (schedule != kind) note(kind + " and " + schedule + " with replicas", true);
    }
  }
  for (const auto& [what, count] : seen) EXPECT_GE(count, 1) << what;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"}) {
    EXPECT_GE(seen[schedule], 10) << schedule;
    EXPECT_GE(seen[fmt::format("shard and {} with replicas", schedule)], 1) << schedule;
  }
}

}  // namespace
}  // namespace lockstep::net
