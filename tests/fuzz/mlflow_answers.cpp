#include <charconv>

#include "fuzz/fuzz.h"
#include "lockstep/error.h"
#include "observe/sinks/mlflow_client.h"

namespace lockstep::fuzz {
namespace {

constexpr char kEnd = '\x1e';  // of an answer

/// Answers with what the input has, one after the other: a status of three digits, and a body.
class Answers : public observe::HttpClient {
 public:
  explicit Answers(std::string_view bytes) : rest_(bytes) {}
  observe::HttpReply send(const observe::HttpRequest&) override {
    const size_t end = std::min(rest_.find(kEnd), rest_.size());
    const std::string_view answer = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    observe::HttpReply reply;
    const std::string_view status = answer.substr(0, 3);
    if (std::from_chars(status.data(), status.data() + status.size(), reply.status).ec != std::errc{})
      throw IoError("no answer");
    reply.body = answer.substr(status.size());
    return reply;
  }

 private:
  std::string_view rest_;
};

/// What is refused leaves the rest to be read.
template <class Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string run =
      R"({"info":{"run_id":"r","experiment_id":"7","artifact_uri":"mlflow-artifacts:/7/r/artifacts","lifecycle_stage":)"
      R"("active"},"data":{"params":[{"key":"a","value":"1"}],"tags":[{"key":"t","value":null}],)"
      R"("metrics":[{"key":"loss","value":"NaN","step":"12"},{"key":"rate","value":1,"step":3}]}})";
  const std::string end(1, kEnd);
  return {R"(200{"experiment":{"experiment_id":"7","lifecycle_stage":"active"}})" + end +
              "200{\"run\":" + run + "}" + end + "200{\"run\":" + run + "}" + end + "200{\"runs\":[" + run +
              "]}" + end + "200{}" + end + "200{}" + end + "200",
          R"(404{"error_code":"RESOURCE_DOES_NOT_EXIST","message":"no"})" + end +
              R"(200{"experiment_id":"8"})" + end +
              R"(500{"error_code":"INTERNAL_ERROR","message":"later"})" + end + "404{}" + end +
              "200{\"runs\":[]}" + end + "429",
          "200<html>"};
}

void parse(std::string_view bytes) {
  observe::MlflowClient client(std::make_unique<Answers>(bytes), "http://server/");
  observe::MlflowRun run;
  attempt([&] { client.experiment_id("name"); });
  attempt([&] { run = client.create_run("7", "name", 1, {{"tag", "value"}}); });
  attempt([&] {
    if (auto found = client.find_run("r")) run = std::move(*found);
  });
  attempt([&] {
    if (auto found = client.find_run("7", "tag", "value")) run = std::move(*found);
  });
  attempt([&] { client.log_params("r", {{"a", "1"}}); });
  attempt([&] { client.set_status("r", "FINISHED", 5); });
  attempt([&] { client.put_artifact(run, "a.json", "{}"); });
}

}  // namespace lockstep::fuzz
