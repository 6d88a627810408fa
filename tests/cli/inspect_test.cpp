#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

void expect_refusal(const std::vector<std::string>& arguments, const std::string& message) {
  const Ran ran = lockstep(arguments);
  EXPECT_EQ(ran.code, 2) << message;
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, StartsWith("lockstep: error: "));
  EXPECT_THAT(ran.err, HasSubstr(message));
  EXPECT_EQ(occurrences(ran.err, "\n"), 1u) << ran.err;
}

TEST(Inspect, ShowsModelBatchMemoryAndProvenPrograms) {
  const SmallConfig config;
  const Ran text = lockstep({"inspect", config.path(), "--world", "3"});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part : {"fc1", "softmax_cross_entropy", "global batch 24", "optimizer_state", "proven: "})
    EXPECT_THAT(text.out, HasSubstr(part));

  const Ran ran = lockstep({"inspect", config.path(), "--world", "3", "--json"});
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["parameters"], 16 * 8 + 8 + 8 * 3 + 3);
  EXPECT_EQ(json["division"]["leaves"], 4);
  EXPECT_EQ(json["division"]["leaf_samples"], 6);
  EXPECT_EQ(json["layout"], "dp=3");
  EXPECT_EQ(json["proven"], true);
  int64_t sum = 0;
  for (const auto& [category, bytes] : json["memory_bytes"].items())
    if (category != "total") sum += bytes.get<int64_t>();
  EXPECT_EQ(json["memory_bytes"]["total"], sum);
}

TEST(Inspect, ShowsWhoHoldsUpdatesSavesAndSendsWhat) {
  const SmallConfig config;
  constexpr int64_t kParameters = 4 * (16 * 8 + 8 + 8 * 3 + 3);
  const auto ranks_of = [&](const std::string& layout, const std::string& wire = "FLOAT32",
                            const std::string& feedback = "false") {
    return Json::parse(
        lockstep({"inspect", config.path(), "--json", "--several-hosts", "--layout", layout, "--set",
                  "parallel.wire=" + wire, "--set", "parallel.error_feedback=" + feedback})
            .out)["ranks"];
  };
  const auto sum = [](const Json& ranks, const char* what) {
    int64_t bytes = 0;
    for (const auto& rank : ranks) bytes += rank[what].get<int64_t>();
    return bytes;
  };
  const Json whole = ranks_of("dp=2"), cut = ranks_of("dp=2,shard=optimizer");
  ASSERT_EQ(whole.size(), 2u);
  ASSERT_EQ(cut.size(), 2u);
  for (const Json& rank : whole) {
    EXPECT_EQ(rank["role"], "worker");
    EXPECT_EQ(rank["updated_bytes"], kParameters);
    EXPECT_EQ(rank["optimizer_state_bytes"], rank["parameter_bytes"]) << "momentum";
  }
  EXPECT_EQ(sum(cut, "updated_bytes"), kParameters) << "each byte by one rank";
  EXPECT_EQ(2 * sum(cut, "optimizer_state_bytes"), sum(whole, "optimizer_state_bytes"));
  EXPECT_EQ(sum(cut, "saved_bytes"), 2 * kParameters) << "with momentum, each byte by one rank";
  EXPECT_EQ(sum(whole, "saved_bytes"), 2 * kParameters);
  EXPECT_GT(whole[0]["wire_bytes_theory"], kParameters)
      << "half of the gradients, half of the sums, and an agreement";
  EXPECT_EQ(ranks_of("dp=1")[0]["wire_bytes_theory"], 0);

  // Of one leaf each: bytes of a gradient in float32 and, with a narrower wire, two more of what travels.
  const Json wide = ranks_of("dp=4"), narrow = ranks_of("dp=4", "BFLOAT16");
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(wide[rank]["gradient_bytes"], 0);
    EXPECT_EQ(2 * narrow[rank]["gradient_bytes"].get<int64_t>(),
              3 * wide[rank]["gradient_bytes"].get<int64_t>());
    EXPECT_LT(narrow[rank]["wire_bytes_theory"], wide[rank]["wire_bytes_theory"]);
  }
  // A residual of each element that is rounded, which its worker saves.
  const Json fed = ranks_of("dp=4", "BFLOAT16", "true");
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(fed[rank]["optimizer_state_bytes"].get<int64_t>() -
                  narrow[rank]["optimizer_state_bytes"].get<int64_t>(),
              wide[rank]["gradient_bytes"].get<int64_t>());
    EXPECT_EQ(fed[rank]["wire_bytes_theory"], narrow[rank]["wire_bytes_theory"]);
    EXPECT_EQ(fed[rank]["saved_bytes"].get<int64_t>() - narrow[rank]["saved_bytes"].get<int64_t>(),
              kParameters);
  }

  const std::string text = lockstep({"inspect", config.path(), "--layout", "dp=4,shard=optimizer"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("bytes that each rank holds, updates, saves and sends"),
                          HasSubstr("\n  3     worker")));
  const std::string many =
      lockstep({"inspect", config.path(), "--set", "trainer.virtual_replicas=12", "--layout", "dp=12"}).out;
  EXPECT_THAT(many,
              AllOf(HasSubstr("\n  least "), HasSubstr("\n  most "), Not(HasSubstr("\n  3     worker"))));
}

/// Sums within each host first: under REPRODUCIBLE, hosts of so many workers add up as the tree of all does.
TEST(Inspect, PlansSeveralProcessesOnEachOfSeveralHosts) {
  const SmallConfig config;
  const auto inspected = [&](const std::vector<std::string>& more) {
    return lockstep(
        std::vector<std::string>{"inspect", config.path(), "--json", "--set", "trainer.virtual_replicas=4"} +
        more);
  };
  const auto sums = [&](const std::string& layout, const std::string& hosts) {
    const Ran ran = inspected({"--layout", layout, "--hosts", hosts});
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::pair<int64_t, int64_t> bytes;
    const Json answer = Json::parse(ran.out);
    for (const Json& rank : answer["ranks"]) {
      bytes.first += rank["shared_memory_bytes"].get<int64_t>();
      bytes.second += rank["wire_bytes_theory"].get<int64_t>();
    }
    return bytes;
  };
  const auto flat = sums("dp=4", "2"), within = sums("dp=4,aggregate=host", "2"),
             one = sums("dp=4,aggregate=host", "1"), each = sums("dp=4,aggregate=host", "4");
  EXPECT_EQ(flat.first, 0) << "without aggregate=host everything is sent";
  EXPECT_GT(within.first, 0);
  EXPECT_GT(within.second, one.second) << "between hosts";
  EXPECT_LT(within.second, flat.second);
  EXPECT_EQ(each.first, 0) << "nobody shares a host";
  expect_refusal({"inspect", config.path(), "--layout", "dp=2", "--hosts", "3"}, "--hosts 3");
  expect_refusal({"inspect", config.path(), "--layout", "dp=2", "--hosts", "2", "--several-hosts"},
                 "--several-hosts");
}

TEST(Inspect, ShowsTheMemoryOfAWorkerAndOfAServer) {
  const SmallConfig config;
  const auto inspected = [&](const std::string& layout, const std::vector<std::string>& more) {
    const Ran ran = lockstep(std::vector<std::string>{"inspect", config.path(), "--layout", layout} + more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out;
  };
  for (const auto& [rank, first, second] : {std::tuple("0", "memory of rank 0 of 4 (worker), on CPUs\n",
                                                       "memory of rank 2 of 4 (server), on CPUs\n"),
                                            std::tuple("3", "memory of rank 3 of 4 (server), on CPUs\n",
                                                       "memory of rank 0 of 4 (worker), on CPUs\n")}) {
    const std::string text = inspected("dp=2,sync=ps,servers=2", {"--rank", rank, "--memory"});
    EXPECT_THAT(text, testing::StartsWith(first));
    EXPECT_THAT(text, HasSubstr(second));
  }
  const Json json = Json::parse(inspected("dp=2,sync=ps", {"--json"}));
  const Json& server = json["other_role"];
  EXPECT_EQ(server["rank"], 2);
  EXPECT_EQ(server["role"], "server");
  EXPECT_EQ(server["memory_bytes"]["activations"], 0);
  EXPECT_GT(server["memory_bytes"]["optimizer_state"], 0);
  EXPECT_EQ(json["memory_bytes"]["optimizer_state"], 0);
  EXPECT_GT(server["host_memory_bytes"]["total"], 0);
  const std::string both = "dp=2,sync=ps,placement=colocated";
  EXPECT_FALSE(Json::parse(inspected(both, {"--json"})).contains("other_role"));
  EXPECT_THAT(inspected(both, {"--memory"}), testing::StartsWith("memory of rank 0 of 2, on CPUs\n"));
}

TEST(Inspect, TakesAsManyProcessesAsTheLayoutSays) {
  const SmallConfig config;
  const auto layout_of = [&](const std::vector<std::string>& more) {
    return Json::parse(
        lockstep(std::vector<std::string>{"inspect", config.path(), "--json"} + more).out)["layout"];
  };
  EXPECT_EQ(layout_of({}), "dp=1");
  EXPECT_EQ(layout_of({"--layout", "dp=3"}), "dp=3");
  EXPECT_EQ(layout_of({"--set", "parallel.dp=2"}), "dp=2");
  EXPECT_EQ(layout_of({"--layout", "pp=1", "--world", "4"}), "dp=4");
  EXPECT_THAT(lockstep({"inspect", config.path(), "--layout", "dp=3"}).out,
              HasSubstr("layout dp=3: global batch 24"));
  expect_refusal({"inspect", config.path(), "--layout", "dp=3", "--world", "2"},
                 "takes 3 processes, but there are 2");
  EXPECT_EQ(layout_of({"--layout", "pp=2"}), "dp=1,pp=2");
  expect_refusal({"inspect", config.path(), "--layout", "dp=2,pp=2,sync=ps,mode=async", "--set",
                  "parallel.reduction=FAST"},
                 "the nearest that works is 'dp=2,pp=2,sync=ps'");
  expect_refusal({"inspect", config.path(), "--layout", "pp=9"}, "use at most 4");
}

TEST(Inspect, PlansForGpusWithoutOne) {
  const SmallConfig config;
  const Ran ran = lockstep({"inspect", config.path(), "--world", "2", "--device", "cuda"});
  if (ran.code == 69) {  // a build without CUDA
    EXPECT_THAT(ran.err, HasSubstr("-DLOCKSTEP_CUDA=ON"));
    return;
  }
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, Mentions("rank 0 ... 2"));
  EXPECT_THAT(ran.out, HasSubstr("checkpoint copy"));
  EXPECT_THAT(ran.out, HasSubstr("proven: "));
  const auto total = [&](const char* device) {
    const Ran json = lockstep({"inspect", config.path(), "--world", "2", "--device", device, "--json"});
    return Json::parse(json.out)["memory_bytes"]["total"].get<int64_t>();
  };
  EXPECT_GT(total("cuda"), total("cpu")) << "products on GPUs have a workspace";
}

TEST(Inspect, PrintsTheProgramOfARank) {
  const SmallConfig config;
  const auto program = [&](const char* rank) {
    return lockstep({"inspect", config.path(), "--world", "2", "--rank", rank, "--program", "step"}).out;
  };
  EXPECT_THAT(program("1"), HasSubstr("update"));
  EXPECT_NE(program("0"), program("1"));
  expect_refusal({"inspect", config.path(), "--world", "2", "--rank", "2"}, "0 to 1");
}

TEST(Inspect, DrawsTheScheduleOfAPipelineThatCannotBeCompiledYet) {
  const SmallConfig config;  // 4 leaves of 6 samples
  const auto drawn = [&](const std::string& layout, const std::vector<std::string>& more = {}) {
    return lockstep(std::vector<std::string>{"inspect", config.path(), "--schedule", "--set",
                                             "trainer.micro_batch=3", "--layout", layout} +
                    more);
  };
  const Ran text = drawn("pp=4,schedule=interleaved");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, Mentions("dp=1,pp=4,schedule=interleaved ... 4 ... 8"));
  EXPECT_THAT(text.out, HasSubstr("\nstage 3   ...0123"));
  EXPECT_THAT(text.out, HasSubstr("\n* interleaved, chunks=2        28.5    15.8 %"));

  const Json json = Json::parse(drawn("dp=2,pp=2,schedule=zero_bubble", {"--json"}).out);
  EXPECT_EQ(json["layout"], "dp=2,pp=2,schedule=zero_bubble");
  EXPECT_EQ(json["stages"], 2);
  EXPECT_EQ(json["micro_batches"], 4) << "of two of the four leaves";
  EXPECT_EQ(json["step"], 13);
  EXPECT_DOUBLE_EQ(json["bubble_fraction_theory"].get<double>(), 1.0 / 13);
  EXPECT_EQ(json["activation_peaks"][1]["kept"], 2);

  expect_refusal({"inspect", config.path(), "--schedule", "--layout", "pp=3,schedule=interleaved"},
                 "4 = 1 x 3 stages + 1; set trainer.micro_batch so that there are 3 or 6");
  expect_refusal({"inspect", config.path(), "--schedule", "--memory"}, "--memory excludes --schedule");
}

}  // namespace
}  // namespace lockstep::test
