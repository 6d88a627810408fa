#include "observe/sinks/prometheus_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RecordPtr prometheus_record(int64_t step, std::vector<NamedMetric> metrics) {
  return std::make_shared<MetricsRecord>(
      MetricsRecord{.step = step, .metrics = std::move(metrics), .unix_seconds = 1700000000.5});
}

TEST(Prometheus, ThePageHasTheLastNumbersInBaseUnits) {
  PrometheusSink sink({.run_id = "a", .total_steps = 40, .tags = {{"layout", "dp=2"}, {"host", "a\"\\\nb"}}},
                      "127.0.0.1", 0);
  sink.open();
  EXPECT_EQ(sink.page(),
            "# HELP lockstep_run_info What runs; always 1.\n"
            "# TYPE lockstep_run_info gauge\n"
            "lockstep_run_info{layout=\"dp=2\",host=\"a\\\"\\\\\\nb\"} 1\n"
            "# HELP lockstep_steps_total Optimizer steps complete, when last logged.\n"
            "# TYPE lockstep_steps_total counter\n"
            "lockstep_steps_total 0\n"
            "# HELP lockstep_planned_steps Optimizer steps of the whole run.\n"
            "# TYPE lockstep_planned_steps gauge\n"
            "lockstep_planned_steps 40\n");
  const std::vector<RecordPtr> records{
      prometheus_record(1, {{"loss", 2.5}, {"skipped", 1}}),
      prometheus_record(
          2, {{"loss", std::nan("")}, {"step_ms", 250.0}, {"grad_norm", HUGE_VAL}, {"layout", "x"}}),
      prometheus_record(2, {{"eval_loss", 0.5}, {"eval_ms", 10.0}})};
  EXPECT_EQ(sink.write(records), 3u);
  EXPECT_THAT(sink.page(),
              AllOf(HasSubstr("\nlockstep_steps_total 2\n"),
                    HasSubstr("\nlockstep_last_record_timestamp_seconds 1700000000.5\n"),
                    HasSubstr("# TYPE lockstep_train_loss gauge\nlockstep_train_loss NaN\n"),
                    HasSubstr("\nlockstep_step_seconds 0.25\n"), HasSubstr("\nlockstep_gradient_norm +Inf\n"),
                    HasSubstr("\nlockstep_eval_loss 0.5\n"), HasSubstr("\nlockstep_eval_seconds 0.01\n"),
                    Not(HasSubstr("skipped"))));
}

TEST(Prometheus, AResumedRunBeginsWithItsSteps) {
  PrometheusSink sink({.resume_step = 7}, "::1", 0);
  try {
    sink.open();
  } catch (const IoError&) {
    GTEST_SKIP() << "no IPv6 here";
  }
  EXPECT_THAT(sink.page(), HasSubstr("\nlockstep_steps_total 7\n"));
  EXPECT_GT(sink.port(), 0);
}

TEST(Prometheus, APortThatIsTakenIsNamed) {
  const ScrapeServer first("127.0.0.1", 0);
  PrometheusSink second({}, "127.0.0.1", first.port());
  EXPECT_THAT(message_of<IoError>([&] { second.open(); }),
              HasSubstr("cannot listen at port " + std::to_string(first.port()) + " of 127.0.0.1"));
  EXPECT_THAT(message_of<ConfigError>([&] { ScrapeServer("localhost", 0); }), HasSubstr("an IP address"));
}

}  // namespace
}  // namespace lockstep::observe
