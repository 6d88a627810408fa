#include "cli/byte_size.h"
#include "mentions.h"
#include "program.h"

// lockstep batch: the largest batch by the memory plan.

namespace lockstep::test {
namespace {

using testing::HasSubstr;

Json batches(const SmallConfig& config, const std::vector<std::string>& more) {
  const Ran ran = lockstep(std::vector<std::string>{"batch", config.path(), "--json"} + more);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return Json::parse(ran.out);
}

/// Whether a training's start accepts it, as `inspect` says.
bool fits(const SmallConfig& config, const Json& row, const Json& batch,
          const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"inspect", config.path(), "--json", "--layout", row["layout"]};
  const auto set = [&](const std::string& assignment) {
    arguments.insert(arguments.end(), {"--set", assignment});
  };
  for (const std::string assignment : row["set"])
    if (assignment.starts_with("trainer.virtual_replicas")) set(assignment);
  for (const char* field : {"micro_batch", "global_batch"})
    set("trainer." + std::string(field) + "=" + batch[field].dump());
  const Ran ran =
      lockstep(arguments + more +
               std::vector<std::string>{"--set", "device.memory_limit=" + row["memory_limit"].dump()});
  EXPECT_EQ(ran.code, 0) << ran.err;
  return Json::parse(ran.out)["fits"];
}

TEST(Batch, OneMoreIsRefused) {
  const SmallConfig config;
  const Json json = batches(config, {"--memory", "3MiB, 600kB", "--layouts",
                                     "dp=1; dp=2; dp=2,shard=optimizer; dp=1,pp=2; dp=2,sync=ps; "
                                     "dp=1,recompute=full"});
  ASSERT_EQ(json["batches"].size(), 12u);
  for (const Json& row : json["batches"]) {
    ASSERT_TRUE(row.contains("largest")) << row;
    ASSERT_TRUE(row["largest"].is_object() && row["next"].is_object()) << row;
    EXPECT_LE(row["largest"]["memory_bytes"], row["memory_limit"]);
    EXPECT_GT(row["next"]["memory_bytes"], row["memory_limit"]);
    EXPECT_TRUE(fits(config, row, row["largest"])) << row;
    EXPECT_FALSE(fits(config, row, row["next"])) << row;
  }
}

TEST(Batch, IsAcceptedAndRefusedByATraining) {
  const SmallConfig config;
  const Json row = batches(config, {"--memory", "200000", "--layout", "dp=1"})["batches"][0];
  const auto train = [&](const Json& batch) {
    return lockstep({"train", config.path(), "--layout", "dp=1", "--set", "trainer.steps=1", "--set",
                     "trainer.micro_batch=" + batch["micro_batch"].dump(), "--set",
                     "trainer.global_batch=" + batch["global_batch"].dump(), "--set",
                     "device.memory_limit=200000", "--set", "data.synthetic.samples=100000"});
  };
  const Ran largest = train(row["largest"]);
  EXPECT_EQ(largest.code, 0) << largest.err;
  const Ran next = train(row["next"]);
  EXPECT_EQ(next.code, 2);
  EXPECT_THAT(next.err, Mentions("device.memory_limit"));
}

/// Their default would be another with the larger batch.
TEST(Batch, StatesVirtualReplicasThatFollowFromTheBatch) {
  const SmallConfig stated;
  const std::vector<std::string> words = {"--memory", "1MB", "--layout", "dp=1"};
  EXPECT_THAT(batches(stated, words)["batches"][0]["set"].dump(),
              testing::Not(HasSubstr("virtual_replicas")));
  const std::string path = stated / "unstated.textproto";
  std::string text = read_text_file(stated.path());
  const std::string replicas = "global_batch: 24 virtual_replicas: 4";
  text.replace(text.find(replicas), replicas.size(), "global_batch: 12");
  write_file(path, text);
  const Ran ran = lockstep(std::vector<std::string>{"batch", path, "--json"} + words);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(Json::parse(ran.out)["batches"][0]["set"].dump(), HasSubstr("trainer.virtual_replicas=4"));
}

TEST(Batch, TellsTheRateByTheRuleAndSamplesPerSecondByAProfile) {
  const SmallConfig config;
  Json json = batches(config, {"--memory", "1MB"});
  EXPECT_EQ(json["rule"], "LINEAR");
  EXPECT_EQ(json["from"], 24);
  EXPECT_GE(json["batches"].size(), 3u) << "with less memory, too";
  for (const Json& row : json["batches"]) {
    const double times = row["largest"]["global_batch"].get<double>() / 24;
    EXPECT_DOUBLE_EQ(row["learning_rate"], 0.05 * times);
    EXPECT_FALSE(row.contains("samples_per_second"));
  }
  json = batches(config, {"--memory", "1MB", "--layout", "dp=1", "--set",
                          "optimizer.scale_with_batch={from: 6 rule: SQUARE_ROOT}"});
  EXPECT_EQ(json["rule"], "SQUARE_ROOT");
  EXPECT_DOUBLE_EQ(json["batches"][0]["learning_rate"],
                   0.05 * std::sqrt(json["batches"][0]["largest"]["global_batch"].get<double>() / 6));

  const std::string profile = config / "profile";
  ASSERT_EQ(lockstep({"profile", config.path(), "--layout", "dp=1", "--steps", "3", "--out", profile}).code,
            0);
  const Json row =
      batches(config, {"--memory", "1MB", "--layout", "dp=1", "--profile", profile})["batches"][0];
  EXPECT_GT(row["samples_per_second"], 0);
  EXPECT_NEAR(row["samples_per_second"].get<double>() * row["step_seconds"].get<double>(),
              row["largest"]["global_batch"].get<double>(),
              1e-6 * row["largest"]["global_batch"].get<double>());
}

TEST(Batch, PrintsATable) {
  const SmallConfig config;
  const Ran ran = lockstep({"batch", config.path(), "--memory", "1MB,1kB", "--layouts", "dp=2; dp=5"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, Mentions("micro-batch ... dp=2 ... dp=5 ... virtual_replicas ... nothing fits ... "
                                "scale_with_batch ... --layout dp=2 --set trainer.micro_batch="));
}

TEST(Batch, RefusesWhatItCannotPlan) {
  const SmallConfig config;
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Ran ran = lockstep(std::vector<std::string>{"batch", config.path()} + more);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_EQ(ran.out, "");
    return ran.err;
  };
  EXPECT_THAT(refusal({}), Mentions("--device cpu ... --memory"));
  EXPECT_THAT(refusal({"--memory", "lots"}), Mentions("--memory lots ... 80GB"));
  EXPECT_THAT(refusal({"--memory", "0"}), Mentions("--memory 0"));
  EXPECT_THAT(refusal({"--device", "H10"}), Mentions("--device H10 ... 'H100' ... cuda"));
  EXPECT_THAT(refusal({"--device", ","}), Mentions("--device"));
  EXPECT_THAT(refusal({"--device", "H100", "--memory", "1GB"}), Mentions("--memory ... H100"));
  EXPECT_THAT(refusal({"--memory", "1GB", "--layout", "dp=1", "--layouts", "dp=2"}),
              Mentions("--layouts and --layout"));
  EXPECT_THAT(refusal({"--memory", "1GB", "--layout", "dp=5"}), Mentions("trainer.virtual_replicas"));
}

TEST(Batch, PlansForGpusByName) {
  const SmallConfig config;
  const Ran ran = lockstep({"batch", config.path(), "--device", "t4,H100", "--layout", "dp=1", "--json"});
  if (ran.code == 69) {  // a build without CUDA
    EXPECT_THAT(ran.err, HasSubstr("-DLOCKSTEP_CUDA=ON"));
    return;
  }
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_LT(json["batches"][0]["largest"]["micro_batch"], json["batches"][1]["largest"]["micro_batch"]);
}

TEST(ByteSizes, HaveUnits) {
  using cli::parse_byte_size;
  EXPECT_EQ(parse_byte_size("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("24 GiB"), int64_t{24} << 30);
  EXPECT_EQ(parse_byte_size("1.5MiB"), 1572864);
  EXPECT_EQ(parse_byte_size("17"), 17);
  for (const char* other : {"", "GB", "-1GB", "0", "1e", "80 gigabytes", "nan", "1e300GB", "2000TiB"})
    EXPECT_FALSE(parse_byte_size(other)) << other;
}

}  // namespace
}  // namespace lockstep::test
