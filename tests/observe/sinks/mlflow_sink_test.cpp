#include "observe/sinks/mlflow_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using Json = nlohmann::json;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Notes what is sent, and answers by the path's end.
class ScriptedHttp : public HttpClient {
 public:
  struct Script {
    std::map<std::string, HttpReply> replies;  // by path; others get {}
    std::vector<HttpRequest> sent;
    int failures = 0;
    std::optional<size_t> away_at;  // the request, counted from 0, that is not answered

    std::vector<Json> bodies(const std::string& path) const {
      std::vector<Json> found;
      for (const auto& request : sent)
        if (request.url.ends_with(path)) found.push_back(Json::parse(request.body));
      return found;
    }
  };
  explicit ScriptedHttp(Script& script) : script_(script) {}
  HttpReply send(const HttpRequest& request) override {
    if (script_.failures > 0) {
      --script_.failures;
      throw IoError("Connection refused");
    }
    if (script_.away_at == script_.sent.size()) {
      script_.away_at.reset();
      throw IoError("Connection refused");
    }
    script_.sent.push_back(request);
    for (const auto& [path, reply] : script_.replies)
      if (request.url.find(path) != std::string::npos) return reply;
    return {200, "{}"};
  }

 private:
  Script& script_;
};

const std::string kRun =
    R"({"info": {"run_id": "r1", "experiment_id": "3", "artifact_uri": "mlflow-artifacts:/3/r1/artifacts"},)";

class Mlflow : public ::testing::Test {
 protected:
  Mlflow() {
    script_.replies["experiments/get-by-name"] = {200, R"({"experiment": {"experiment_id": "3"}})"};
    script_.replies["runs/create"] = {200, R"({"run": )" + kRun + R"("data": {}}})"};
  }
  std::unique_ptr<MlflowSink> make(std::optional<int64_t> resume_step = {}) {
    RunFacts facts{.directory = folder_.path(), .run_id = "ours", .resume_step = resume_step};
    facts.fields = {{"trainer.seed", "7"}, {"model.layer[0].name", "\"a\""}};
    facts.tags = {{"math_hash", "m"}, {"version", "0.1.0, commit abc"}};
    return std::make_unique<MlflowSink>(MlflowOptions{"http://host:5000/", "nets", ""}, facts,
                                        std::make_unique<ScriptedHttp>(script_));
  }
  static RecordPtr record(int64_t step, std::vector<NamedMetric> metrics) {
    return std::make_shared<MetricsRecord>(
        MetricsRecord{.step = step, .metrics = std::move(metrics), .unix_seconds = 2.5});
  }
  std::vector<Json> metrics() const {
    std::vector<Json> all;
    for (const auto& body : script_.bodies("runs/log-batch"))
      for (const auto& metric : body.value("metrics", Json::array())) all.push_back(metric);
    return all;
  }

  template <class Action>
  static std::string refusal_of(const Action& action) {
    try {
      action();
    } catch (const IoError& error) {
      return std::string("would be tried again: ") + error.what();
    } catch (const Error& error) {
      return error.what();
    }
    return "no refusal";
  }

  test::TemporaryDirectory folder_;
  ScriptedHttp::Script script_;
};

TEST_F(Mlflow, KeysAreMadeOfWhatItTakes) {
  EXPECT_EQ(mlflow_key("model.layer[12].name"), "model.layer.12.name");
  EXPECT_EQ(mlflow_key("a/b-c_d e"), "a/b-c_d e");
  EXPECT_EQ(mlflow_key("a:b\n"), "a_b_");
  EXPECT_EQ(mlflow_key(std::string(300, 'x')).size(), 250u);
}

TEST_F(Mlflow, ARunIsMadeWithTagsParamsAndConfig) {
  make()->open();
  EXPECT_EQ(script_.sent.front().url,
            "http://host:5000/api/2.0/mlflow/experiments/get-by-name?experiment_name=nets");
  const auto created = script_.bodies("runs/create");
  ASSERT_EQ(created.size(), 1u);
  EXPECT_EQ(created[0]["experiment_id"], "3");
  EXPECT_THAT(created[0]["tags"].dump(), AllOf(HasSubstr(R"("lockstep.math_hash","value":"m")"),
                                               HasSubstr(R"("mlflow.source.git.commit","value":"abc")")));
  const auto batches = script_.bodies("runs/log-batch");
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[1]["params"].dump(),
            R"([{"key":"trainer.seed","value":"7"},{"key":"model.layer.0.name","value":"\"a\""}])");
  EXPECT_EQ(script_.sent.back().url,
            "http://host:5000/api/2.0/mlflow-artifacts/artifacts/3/r1/artifacts/config.effective.textproto");
  EXPECT_THAT(read_text_file(folder_ / kMlflowFile), HasSubstr(R"("mlflow_run":"r1")"));
}

TEST_F(Mlflow, RecordsAreSentInBatchesThatItTakes) {
  const auto sink = make();
  sink->open();
  std::vector<RecordPtr> records;
  for (int64_t step = 1; step <= 700; ++step)
    records.push_back(record(step, {{"loss", 0.5}, {"step_ms", std::nan("")}, {"layout", "dp=1"}}));
  EXPECT_EQ(sink->write(records), 499u) << "of three fields each, since texts count too";
  const auto all = metrics();
  ASSERT_EQ(all.size(), 998u);
  EXPECT_EQ(all[0].dump(), R"({"key":"train/loss","step":1,"timestamp":2500,"value":0.5})");
  EXPECT_EQ(all[1].dump(), R"({"key":"time/step_ms","step":1,"timestamp":2500,"value":"NaN"})");
}

TEST_F(Mlflow, AServerThatIsAwayIsAskedAgainAndNoRunIsMadeTwice) {
  const auto sink = make();
  script_.replies["runs/create"] = {503, "busy"};
  EXPECT_THAT(message_of<IoError>([&] { sink->open(); }),
              HasSubstr("metrics.mlflow: http://host:5000: runs/create"));
  // It was made all the same.
  script_.replies["runs/search"] = {200, R"({"runs": [)" + kRun + R"("data": {}}]})"};
  script_.replies.erase("runs/create");
  script_.sent.clear();
  sink->open();
  EXPECT_TRUE(script_.bodies("runs/create").empty());
  script_.failures = 1;
  EXPECT_THAT(message_of<IoError>([&] {
                sink->write(std::vector<RecordPtr>{record(1, {{"loss", 1.0}})});
              }),
              HasSubstr("Connection refused"));
}

TEST_F(Mlflow, AServerThatHasForgottenTheRunTurnsItOff) {
  const auto sink = make();
  sink->open();
  const HttpReply missing{404,
                          R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "Run 'r1' not found"})"};
  script_.replies["runs/log-batch"] = missing;
  EXPECT_EQ(refusal_of([&] {
              sink->write(std::vector<RecordPtr>{record(1, {{"loss", 1.0}})});
            }),
            "metrics.mlflow: http://host:5000: runs/log-batch: status 404, RESOURCE_DOES_NOT_EXIST (Run 'r1' "
            "not found)");
  script_.replies["runs/update"] = missing;
  EXPECT_THAT(refusal_of([&] { sink->close(RunEnd::finished, ""); }), HasSubstr("runs/update: status 404"));
}

TEST_F(Mlflow, AnExperimentThatIsNotThereIsMade) {
  script_.replies["experiments/get-by-name"] = {404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST"})"};
  script_.replies["experiments/create"] = {200, R"({"experiment_id": "4"})"};
  make()->open();
  EXPECT_EQ(script_.bodies("runs/create").at(0)["experiment_id"], "4");
}

TEST_F(Mlflow, AnswersOfOtherServersAreNamed) {
  for (const char* body :
       {"{}", "[]", R"({"experiment": null})", R"({"experiment": {"experiment_id": 3}})"}) {
    script_.replies["experiments/get-by-name"] = {200, body};
    EXPECT_EQ(refusal_of([&] { make()->open(); }),
              "metrics.mlflow: http://host:5000: answers, but not as a tracking server of MLflow does")
        << body;
  }
  script_.replies["experiments/get-by-name"] = {400, R"({"error_code": null, "message": null})"};
  EXPECT_THAT(refusal_of([&] { make()->open(); }), HasSubstr("status 400"));
  for (const char* body : {"[1]", R"({"error_code": null, "message": 1})"}) {
    script_.replies["experiments/get-by-name"] = {503, body};
    EXPECT_THAT(message_of<IoError>([&] { make()->open(); }), HasSubstr("status 503")) << body;
  }
}

TEST_F(Mlflow, ARunGoesOnWithoutArtifactsThatFail) {
  script_.replies["mlflow-artifacts/"] = {500, ""};
  const auto sink = make();
  sink->open();
  EXPECT_EQ(
      sink->take_message(),
      "metrics.mlflow: http://host:5000: status 500 for the artifact config.effective.textproto; the run "
      "goes on without them");
  sink->write(std::vector<RecordPtr>{record(1, {{"loss", 1.0}})});
  EXPECT_EQ(metrics().size(), 1u);
  sink->close(RunEnd::finished, "{}");
  EXPECT_EQ(script_.bodies("runs/update").back()["status"], "FINISHED");
  EXPECT_EQ(sink->take_message(), "") << "people know";
}

TEST_F(Mlflow, AFullDiskDelaysTheNoteOfTheRun) {
  std::filesystem::create_directory(folder_ / "mlflow.json.tmp");
  const auto sink = make();
  EXPECT_THAT(message_of<IoError>([&] { sink->open(); }), HasSubstr("mlflow.json.tmp"));
  std::filesystem::remove(folder_ / "mlflow.json.tmp");
  sink->open();
  EXPECT_THAT(read_text_file(folder_ / kMlflowFile), HasSubstr(R"("mlflow_run":"r1")"));
  EXPECT_EQ(script_.bodies("runs/create").size(), 1u);
}

TEST_F(Mlflow, WhatTheServerHasTakenIsNotSentByTheNextAttempt) {
  make()->open();
  std::string lines;
  for (int step = 1; step <= 1200; ++step) lines += "{\"step\":" + std::to_string(step) + ",\"loss\":1.0}\n";
  test::write_file(folder_ / "metrics.jsonl", lines);
  script_.sent.clear();
  script_.replies["runs/get"] = {200, R"({"run": )" + kRun + R"("data": {}}})"};
  const auto sink = make(1200);
  script_.away_at = 5;  // the second batch, after the run, its status, tags, params and the first batch
  EXPECT_THROW(sink->open(), IoError);
  EXPECT_EQ(metrics().size(), 1000u);
  sink->open();
  EXPECT_EQ(metrics().size(), 1200u);
}

TEST_F(Mlflow, AResumedRunSendsWhatTheServerLacks) {
  make()->open();
  test::write_file(
      folder_ / "metrics.jsonl",
      std::string("{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":2.0}\n{\"step\":3,\"loss\":3.0}\n"));
  script_.sent.clear();
  script_.replies["runs/get"] = {
      200, R"({"run": )" + kRun +
               R"("data": {"metrics": [{"key": "train/loss", "step": "1"}, {"key": "eval/loss", "step": 9}],
                  "params": [{"key": "trainer.seed", "value": "7"}], "tags": [{"key": "lockstep.math_hash", "value": "m"}]}}})"};
  const auto sink = make(3);
  sink->open();
  EXPECT_TRUE(script_.bodies("runs/create").empty());
  sink->write(std::vector<RecordPtr>{record(4, {{"loss", 4.0}, {"eval_loss", 4.0}}),
                                     record(10, {{"eval_loss", 10.0}})});
  std::vector<double> values;
  for (const auto& metric : metrics()) values.push_back(metric["value"]);
  EXPECT_THAT(values, ElementsAre(2.0, 3.0, 4.0, 10.0)) << "the server has an evaluation until step 9";
  for (const auto& body : script_.bodies("runs/log-batch"))
    if (body.contains("params")) {
      EXPECT_EQ(body["params"].size(), 1u) << "params never change";
    }
}

TEST_F(Mlflow, OtherMathematicsSendsTheStepsThatItRepeats) {
  make()->open();
  test::write_file(folder_ / "metrics.jsonl", std::string("{\"step\":3,\"loss\":3.0}\n"));
  script_.sent.clear();
  script_.replies["runs/get"] = {
      200,
      R"({"run": )" + kRun +
          R"("data": {"metrics": [{"key": "train/loss", "step": 9}], "tags": [{"key": "lockstep.math_hash", "value": "other"}]}}})"};
  const auto sink = make(3);
  sink->open();
  EXPECT_TRUE(metrics().empty()) << "what it resumes from is there";
  sink->write(std::vector<RecordPtr>{record(4, {{"loss", 4.0}})});
  EXPECT_EQ(metrics().size(), 1u);

  // Stopped at step 4, before it has repeated them all.
  script_.sent.clear();
  const auto resume = [&](int64_t at_server) {
    script_.replies["runs/get"] = {
        200, R"({"run": )" + kRun + R"("data": {"metrics": [{"key": "train/loss", "step": )" +
                 std::to_string(at_server) +
                 R"(}], "tags": [{"key": "lockstep.math_hash", "value": "m"}]}}})"};
    script_.sent.clear();
    const auto next = make(4);
    next->open();
    next->write(std::vector<RecordPtr>{record(5, {{"loss", 5.0}}), record(11, {{"loss", 11.0}})});
    return metrics().size();
  };
  EXPECT_EQ(resume(9), 2u);
  EXPECT_EQ(resume(9), 2u) << "that is kept, too";
  EXPECT_EQ(resume(10), 1u) << "the server has numbers of this mathematics";
}

TEST_F(Mlflow, TheEndIsTold) {
  for (const auto& [end, status] :
       {std::pair(RunEnd::finished, "FINISHED"), std::pair(RunEnd::failed, "FAILED"),
        std::pair(RunEnd::killed, "KILLED")}) {
    const auto sink = make();
    sink->open();
    sink->close(end, "{}");
    const auto updates = script_.bodies("runs/update");
    EXPECT_EQ(updates.back()["status"], status);
    EXPECT_GT(updates.back()["end_time"], 0);
  }
}

TEST_F(Mlflow, ARefusalTurnsItOff) {
  script_.replies["experiments/get-by-name"] = {
      400, R"({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"})"};
  try {
    make()->open();
    FAIL();
  } catch (const IoError&) {
    FAIL() << "it would be tried again";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("status 400, INVALID_PARAMETER_VALUE (no)"));
    EXPECT_EQ(error.code(), ExitCode::usage);
  }
}

TEST(Url, EscapesWhatHasAMeaning) { EXPECT_EQ(url_escaped("a b/c?d=é"), "a%20b/c%3Fd%3D%C3%A9"); }

}  // namespace
}  // namespace lockstep::observe
