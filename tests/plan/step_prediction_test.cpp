#include "plan/step_prediction.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/error.h"
#include "plan/link_traffic.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

TEST(CommunicationTimes, AreTheLinksWhereItDecides) {
  const MachineFigures figures{
      .within_host = {.latency = 1, .one_way_per_byte = 2, .both_ways_per_byte = 4},
      .between_hosts = {.latency = 5, .one_way_per_byte = 100, .both_ways_per_byte = 104},
      .free_link = {.latency = 5, .one_way_per_byte = 6, .both_ways_per_byte = 8},
      .addition_per_byte = 3};
  const CommunicationTimes times = communication_times(figures);
  EXPECT_EQ(times.latency, 5);
  EXPECT_EQ(times.meeting, 5);
  EXPECT_EQ(times.link_per_byte, 100);
  EXPECT_EQ(times.handling_per_byte, 4) << "half of what the free link takes for a byte each way";
  EXPECT_EQ(times.local_handling_per_byte, 2);
  EXPECT_EQ(times.sum_per_byte, 3);
}

TEST(CommunicationTimes, HandlingIsThatWithinAHostWhereNoFreeLinkIsKnown) {
  const CommunicationTimes times = communication_times(
      {.within_host = {.latency = 1, .one_way_per_byte = 2, .both_ways_per_byte = 4},
       .between_hosts = {.latency = 5, .one_way_per_byte = 100, .both_ways_per_byte = 104}});
  EXPECT_EQ(times.handling_per_byte, 2);
}

TEST(CommunicationTimes, AreTheThreadsWhereTheyDecide) {
  const CommunicationTimes times = communication_times(
      {.between_hosts = {.latency = 5, .one_way_per_byte = 10, .both_ways_per_byte = 18}});
  EXPECT_EQ(times.link_per_byte, 0);
  EXPECT_EQ(times.handling_per_byte, 9);
}

TEST(CommunicationTimes, OfOneHostAreThoseOfItsMemory) {
  const CommunicationTimes times = communication_times(
      {.within_host = {.latency = 1}, .shared_meeting = 6, .shared_sum_per_byte = 7, .shared_ranks = 5});
  EXPECT_EQ(times.latency, 1);
  EXPECT_EQ(times.meeting, 2) << "of three halvings";
  EXPECT_EQ(times.shared_sum_per_byte, 7);
}

/// A job whose every rank has a host of its own, of layers that take a millisecond for each pass of a sample.
struct PredictedJob {
  explicit PredictedJob(const std::string& layout) : PredictedJob(without_verdicts(layout)) {}
  explicit PredictedJob(const compile::CompileOptions& its)
      : options(its), facts(facts_of(options)), run(options, spread(facts)) {
    costs.profile = profile_of(options);
  }
  static compile::CompileOptions without_verdicts(const std::string& layout) {
    compile::CompileOptions options = gpt_options(layout, 2);
    options.skips_nonfinite = options.clips_gradients = options.compares_replicas = false;
    return options;
  }
  static compile::CompileFacts& spread(compile::CompileFacts& facts) {
    facts.hosts.resize(static_cast<size_t>(facts.world_size));
    std::iota(facts.hosts.begin(), facts.hosts.end(), 0);
    return facts;
  }

  double predicted() const { return predict_step(run, facts.hosts, costs); }
  double passes(int samples) const {
    return samples * 3e-3 * (static_cast<double>(run.graph().nodes.size()) + 9);
  }
  double parameters() const { return static_cast<double>(run.graph().parameter_count()); }

  compile::CompileOptions options;
  compile::CompileFacts facts;
  compile::CompiledRun run;
  StepCosts costs;
};

TEST(StepPrediction, OfOneProcessIsItsPassesItsUpdateAndTheRest) {
  PredictedJob job("dp=1");
  job.costs.overhead = 0.5;
  EXPECT_NEAR(job.predicted(), job.passes(16) + 1e-6 * job.parameters() + 0.5, 1e-9);
  job.costs.addition_per_byte = 1e-9;
  EXPECT_GT(job.predicted(), job.passes(16) + 1e-6 * job.parameters() + 0.5 + 1e-6)
      << "micro-batches are loaded, gradients may be looked at";
}

TEST(StepPrediction, OfALinkThatDecidesIsItsTime) {
  for (const auto& [layout, models] :
       {std::pair("dp=2", 1.0), std::pair("dp=4", 1.5), std::pair("dp=2,sync=ps,servers=1", 2.0)}) {
    PredictedJob job(layout);
    const double second_per_model = 100;
    job.costs.communication.link_per_byte = second_per_model / (4 * job.parameters());
    // Nothing is slower than one after the other, but for the first and the last message.
    EXPECT_GT(job.predicted(), 0.95 * models * second_per_model) << layout;
    EXPECT_LT(job.predicted(), 1.25 * models * second_per_model + job.passes(8) + 1e-6 * job.parameters())
        << layout;
  }
}

TEST(StepPrediction, HandlingOfMessagesIsNotHidden) {
  PredictedJob job("dp=2");
  const double without = job.predicted();
  job.costs.communication.handling_per_byte = 1 / (4 * job.parameters());
  // Around a ring of two, half of the gradients and half of their sums leave, and as much comes.
  EXPECT_NEAR(job.predicted(), without + 2, 0.2);
}

/// 16 samples on two workers: 8 each in a step of both, in 4 micro-batches.
TEST(StepPrediction, OfWorkersThatAreBoundIsThatOfWhateverIsBusyLongest) {
  PredictedJob job("dp=2,sync=ps,servers=1,mode=stale");
  EXPECT_NEAR(job.predicted(), job.passes(8), 1e-9) << "the server updates meanwhile";
  job.costs.profile.update_seconds = 1e-3;
  EXPECT_NEAR(job.predicted(), 1e-3 * job.parameters(), 1e-6);
  job.costs.profile.update_seconds = 0;
  job.costs.communication.handling_per_byte = 1 / (4 * job.parameters());
  EXPECT_NEAR(job.predicted(), 4, 0.01) << "the server has the model twice from and to each";
  job.costs.communication.link_per_byte = 10 / (4 * job.parameters());
  // A worker has it twice, and passes it twice: computing hides behind that, but for some of the first and
  // last.
  EXPECT_GT(job.predicted(), 2 + 20);
  EXPECT_LT(job.predicted(), 2 + job.passes(8) + 20);
  job.costs.communication.link_burst_bytes = job.parameters();
  EXPECT_NEAR(job.predicted(), 20, 0.1) << "a quarter of it at once: the server's link is busy longest";
}

/// The model takes a tenth of a step's passes to push, and as much to pull: backward hides the one, forward
/// the other.
TEST(StepPrediction, OfWorkersOfSessionsHidesWhatPassesWhileTheyCompute) {
  for (const bool clips : {false, true}) {
    compile::CompileOptions options = PredictedJob::without_verdicts("dp=2,sync=ps,servers=1,mode=stale");
    options.clips_gradients = clips;
    PredictedJob job(options);
    const double transfer = job.passes(8) / 10;
    job.costs.communication.link_per_byte = transfer / (4 * job.parameters());
    EXPECT_GT(job.predicted(), job.passes(8) + 1e-9) << "the first pull and the last push";
    EXPECT_LT(job.predicted(), job.passes(8) + transfer)
        << "of two: one that nothing hides behind would be all of it";
  }
}

TEST(StepPrediction, OfWorkersThatAreFreeIsThatOfTheirTurns) {
  PredictedJob job("dp=2,sync=ps,servers=1,mode=async");
  EXPECT_NEAR(job.predicted(), job.passes(8), 1e-9) << "the server updates meanwhile";
  job.costs.profile.update_seconds = 1e-3;
  EXPECT_NEAR(job.predicted(), 2 * 1e-3 * job.parameters(), 1e-6) << "for each of two pushes";
  job.costs.profile.update_seconds = 0;
  job.costs.communication.link_per_byte = 10 / (4 * job.parameters());
  EXPECT_GE(job.predicted(), 20) << "both share the server's link, by turns";
  EXPECT_LT(job.predicted(), 20 + 0.9 * job.passes(8)) << "some of backward is hidden";
  // A burst that holds a push lets workers through at once, and the link no more in the long run.
  job.costs.communication.link_burst_bytes = 8 * job.parameters();
  EXPECT_NEAR(job.predicted(), std::max(20.0, job.passes(8)), 0.1);
  job.costs.communication.link_burst_bytes = 0;
  // The server beside the second worker, which is not held up by the link that holds up the first.
  job.facts.hosts = {0, 1, 1};
  const compile::CompiledRun beside(job.options, job.facts);
  const double passes = job.passes(8), pushes = 2;
  const auto of_both = [&](double far) { return pushes / (1 / far + 1 / passes); };
  EXPECT_NEAR(predict_step(beside, job.facts.hosts, job.costs), of_both(20),
              of_both(20 + passes) - of_both(20));
  job.costs.communication.link_per_byte = passes / (4 * job.parameters());
  EXPECT_GT(predict_step(beside, job.facts.hosts, job.costs), of_both(2 * passes));
  EXPECT_LT(predict_step(beside, job.facts.hosts, job.costs), of_both(3 * passes)) << "some is hidden";
}

TEST(StepPrediction, HasWhatIsProposedInTheTimeOfUpdates) {
  const auto that_measures = [](const char* layout) {
    compile::CompileOptions options = PredictedJob::without_verdicts(layout);
    options.measures = {.parameters = true, .proposed_slots = 2};
    return PredictedJob(options);
  };
  PredictedJob one = that_measures("dp=1");
  EXPECT_NEAR(one.predicted(), one.passes(16) + 1e-6 * one.parameters(), 1e-9);
  const double without = other_seconds(one.run, {.addition_per_byte = 1});
  EXPECT_LT(without, 3 * 4 * one.parameters()) << "loads, and sums of squares of two lists";
  // For each of two pushes a server updates, and sums squares of gradients and parameters.
  PredictedJob session = that_measures("dp=2,sync=ps,servers=1,mode=async");
  session.costs.profile.update_seconds = 1e-3;
  session.costs.addition_per_byte = 1e-4;
  EXPECT_NEAR(session.predicted(), 2 * session.parameters() * (1e-3 + 4 * 1e-4 * 2 / 3), 1e-6);
}

TEST(StepPrediction, TakesProfilesOfItsOwnModelAlone) {
  PredictedJob job("dp=1");
  job.costs.profile.model = "another";
  EXPECT_THROW(job.predicted(), ConfigError);
}

}  // namespace
}  // namespace lockstep::plan
