// Where parameters and their state lie on a server that begins within one of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compile/compiled_run.h"
#include "lockstep/model.h"
#include "model/shared_graph.h"

namespace lockstep::compile {
namespace {

using program::ParameterPlace;
using tensor::Part;

TEST(ServerParts, BeginWithinAParameter) {
  // A weight of two chunks of 65,536 elements, and a bias of 512 elements behind it.
  ModelBuilder b;
  const auto image = b.input("image", {{256}}), label = b.input("label", {{}, DType::int32});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc", Linear{.units = 512}, {image}), label});
  CompileOptions options{
      .graph = model::share_graph(b.build()), .global_batch = 8, .micro_batch = 8, .state_slots = 2};
  options.parallel.layout = layout::parse_layout("dp=1,sync=ps,servers=2");
  options.parallel.bucket_bytes = int64_t{64} << 20;
  const CompiledRun run(options, {.world_size = 3});
  run.check();

  const program::Program first = run.compile(1).step, second = run.compile(2).step;
  ASSERT_EQ(second.parameters.size(), 2u);
  ASSERT_EQ(second.parameters[0].name, "fc.weight");
  const auto offsets_of = [](const ParameterPlace& place) {
    std::vector<int64_t> offsets;
    for (const auto& state : place.states) offsets.push_back(state.offset);
    return offsets;
  };
  const ParameterPlace &front = first.parameters[0], &back = second.parameters[0],
                       &bias = second.parameters[1];
  EXPECT_EQ(front.held, Part::range(0, 65'536));
  EXPECT_EQ(front.owned, front.held);
  EXPECT_EQ(front.offset, 0);
  EXPECT_THAT(offsets_of(front), testing::ElementsAre(0, 262'144));
  EXPECT_TRUE(first.parameters[1].held.empty());
  EXPECT_EQ(first.parameters[1].buffer, -1);

  EXPECT_EQ(back.held, Part::range(65'536, 65'536));
  EXPECT_EQ(back.owned, back.held);
  EXPECT_EQ(back.offset, 0);
  EXPECT_THAT(offsets_of(back), testing::ElementsAre(0, 264'192));
  EXPECT_EQ(bias.held, Part::range(0, 512));
  EXPECT_EQ(bias.buffer, back.buffer);
  EXPECT_EQ(bias.offset, 262'144);
  EXPECT_THAT(offsets_of(bias), testing::ElementsAre(262'144, 526'336));
  EXPECT_THAT(program::to_text(second), testing::HasSubstr(" holds=65536+65536 "));

  // The worker has all of both.
  for (const ParameterPlace& place : run.compile(0).step.parameters) {
    EXPECT_TRUE(place.is_held_whole()) << place.name;
    EXPECT_TRUE(place.owned.empty()) << place.name;
  }
}

}  // namespace
}  // namespace lockstep::compile
