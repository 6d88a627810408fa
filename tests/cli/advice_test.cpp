// Rules of advice, each in a run that has the fault, and in one that has not.

#include <algorithm>
#include <optional>
#include <thread>

#include "base/text.h"
#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

/// A model, and batches of so many samples, of which each step computes for long enough that a busy machine
/// does not look like a fault of the run.
class Faults {
 public:
  explicit Faults(const std::string& hidden = "512, 512", int batch = 512, int pixels = 16) {
    const std::string side = std::to_string(pixels);
    write_file(path(), "model { mlp { image: [" + side + ", " + side + ", 1] hidden: [" + hidden +
                           "] classes: 3 } }\n"
                           "data { synthetic { samples: 1024 eval_samples: 256 classes: 3 } }\n"
                           "trainer { global_batch: " +
                           std::to_string(batch) +
                           " steps: 24 seed: 1 }\n"
                           "optimizer { learning_rate: 0.01 sgd { momentum: 0.9 } }\n"
                           "parallel { reduction: FAST }\n"
                           "metrics { machine_every_seconds: 0.1 progress: false }\n");
  }
  std::string path() const { return folder_ / "config.textproto"; }
  std::string operator/(const std::string& name) const { return folder_ / name; }

  Json advice(int ranks, const std::vector<std::string>& more = {}) const {
    const auto arguments = std::vector<std::string>{"train", path(), "--json", "--device", "cpu"} + more;
    const Json report = only_json(ranks == 1 ? lockstep(arguments) : mpirun(ranks, arguments));
    return report["explanation"]["advice"];
  }

 private:
  TemporaryDirectory folder_;
};

/// The advice of a rule, or null.
Json of_rule(const Json& advice, const std::string& rule) {
  const auto found = std::ranges::find_if(advice, [&](const Json& one) { return one["rule"] == rule; });
  return found == advice.end() ? Json() : *found;
}

TEST(Advice, IsSilentInAHealthyRun) {
  const Json advice = Faults().advice(1, {"--set", "trainer.steps=100"});
  for (const char* rule :
       {"data_loading", "communication", "slow_rank", "few_micro_batches", "uneven_stages", "launches",
        "evaluation", "checkpoints", "few_cores", "hot_gpu", "small_batch", "precision"})
    EXPECT_TRUE(of_rule(advice, rule).is_null()) << of_rule(advice, rule);
}

TEST(Advice, ALoaderThatIsTooSlow) {
  const TemporaryDirectory folder;
  const Ran ran = run_command({LOCKSTEP_API_PROGRAM, "starved", "out=" + folder / "run"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json found =
      of_rule(only_json(lockstep({"explain", folder / "run", "--json"}))["advice"], "data_loading");
  ASSERT_FALSE(found.is_null());
  EXPECT_GT(found["cost"], 0.3);
  EXPECT_THAT(found["saw"].get<std::string>(), Mentions("rank 0"));
  EXPECT_THAT(found["act"].get<std::string>(), Mentions("--set data.prefetch_threads=2"));
}

/// The gradients of a large model, of few samples, by messages.
TEST(Advice, ALinkThatIsTooSlow) {
  const Faults large("1024, 1024", 2);
  const Json found = of_rule(large.advice(2, {"--set", "parallel.algorithm=RING"}), "communication");
  ASSERT_FALSE(found.is_null());
  EXPECT_GT(found["cost"], 0.1);
  const std::string act = found["act"];
  EXPECT_THAT(act, Mentions("lockstep compare ... --workers 2 --layouts"));
  EXPECT_NE(act.find(large.path()), std::string::npos) << act;
  EXPECT_NE(act.find("--set=parallel.algorithm=RING"), std::string::npos) << act;
  EXPECT_NE(act.find("'pp=1; pp=2; sync=ps,servers=2,placement=colocated'"), std::string::npos) << act;
}

TEST(Advice, APipelineWithFewMicroBatches) {
  const Faults faults;
  const Json few = of_rule(faults.advice(2, {"--layout", "pp=2"}), "few_micro_batches");
  ASSERT_FALSE(few.is_null());
  EXPECT_NEAR(few["cost"].get<double>(), 0.5, 0.01) << "one micro-batch passes two stages";
  EXPECT_THAT(few["act"].get<std::string>(), Mentions("--set trainer.micro_batch=256"));
  const Json many = faults.advice(2, {"--layout", "pp=2", "--set", "trainer.micro_batch=32"});
  EXPECT_TRUE(of_rule(many, "few_micro_batches").is_null()) << many;
}

TEST(Advice, AStageThatTakesLongerThanOthers) {
  const Json advice =
      Faults().advice(2, {"--layout", "pp=2", "--set", "trainer.micro_batch=32", "--straggler", "1:8"});
  const Json found = of_rule(advice, "uneven_stages");
  ASSERT_FALSE(found.is_null());
  EXPECT_GT(found["cost"], 0.1);
  EXPECT_THAT(found["act"].get<std::string>(), Mentions("lockstep profile ... parallel.profile"));
}

TEST(Advice, AWorkerThatTakesLongerThanOthers) {
  const Json found = of_rule(Faults().advice(2, {"--straggler", "1:8"}), "slow_rank");
  ASSERT_FALSE(found.is_null());
  EXPECT_GT(found["cost"], 0.05);
  EXPECT_THAT(found["saw"].get<std::string>(), Mentions("rank 0 ... rank 1"));
}

TEST(Advice, LayersThatDoLittleInALaunch) {
  const Json advice =
      Faults("1", 1, 2).advice(1, {"--set", "trainer.steps=150000", "--set", "data.prefetch_threads=0"});
  const Json found = of_rule(advice, "launches");
  ASSERT_FALSE(found.is_null()) << advice;
  EXPECT_GT(found["cost"], 0.15);
  EXPECT_TRUE(of_rule(advice, "communication").is_null()) << "it is alone";
}

TEST(Advice, EvaluationsAfterEveryStep) {
  const Json found = of_rule(Faults().advice(1, {"--set", "trainer.eval_every_steps=1", "--set",
                                                 "data.synthetic.eval_samples=2048"}),
                             "evaluation");
  ASSERT_FALSE(found.is_null());
  EXPECT_THAT(found["act"].get<std::string>(), Mentions("trainer.eval_every_steps"));
}

TEST(Advice, CheckpointsAfterEveryStep) {
  const Faults large("1024, 1024", 2);
  const std::vector<std::string> in_front = {"--set", "checkpoint.background=false"};
  const Json often = large.advice(
      1, in_front + std::vector<std::string>{"--out", large / "often", "--set", "checkpoint.every_steps=1"});
  const Json found = of_rule(often, "checkpoints");
  ASSERT_FALSE(found.is_null()) << often;
  EXPECT_THAT(found["act"].get<std::string>(), Mentions("checkpoint.background=true"));
  // The save at the end of a short run may take as long as its steps, and still is not too often.
  const Json once = large.advice(1, in_front + std::vector<std::string>{"--out", large / "once"});
  EXPECT_TRUE(of_rule(once, "checkpoints").is_null()) << once;
}

TEST(Advice, MoreThreadsThanCores) {
  const int threads = 2 * static_cast<int>(std::thread::hardware_concurrency());
  const Json found = of_rule(Faults().advice(1, {"--set", "trainer.steps=100", "--set",
                                                 "parallel.intra_op_threads=" + std::to_string(threads)}),
                             "few_cores");
  ASSERT_FALSE(found.is_null());
  EXPECT_GE(found["cost"], 0.5);
  EXPECT_THAT(found["act"].get<std::string>(), Mentions("parallel.intra_op_threads"));
}

/// Servers have no steps of their own, and their waiting for workers is no fault.
TEST(Advice, IsNotAboutServers) {
  const Json report = only_json(mpirun(3, {"train", Faults().path(), "--json", "--layout", "dp=2,sync=ps"}));
  EXPECT_EQ(report["explanation"]["ranks"][2]["only_serves"], true);
  EXPECT_EQ(report["explanation"]["ranks"][0].contains("only_serves"), false);
  EXPECT_TRUE(of_rule(report["explanation"]["advice"], "launches").is_null());
}

}  // namespace
}  // namespace lockstep::test
