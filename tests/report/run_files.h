#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::testing {

/// Folders of runs, removed at the end.
class RunFiles {
 public:
  RunFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-report-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw std::filesystem::filesystem_error("mkdtemp", std::error_code());
    root_ = name;
  }
  ~RunFiles() { std::filesystem::remove_all(root_); }
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  std::string path(const std::string& run) const { return (root_ / run).string(); }
  void write(const std::string& run, const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(root_ / run);
    std::ofstream(root_ / run / file) << text;
  }

 private:
  std::filesystem::path root_;
};

inline constexpr const char* kMetricsText =
    "{\"step\":1,\"loss\":2.5,\"learning_rate\":0.1,\"grad_norm\":1,\"step_ms\":2,\"samples_per_second\":500,"
    "\"layout\":"
    "\"dp=2\"}\n"
    "{\"step\":1,\"kind\":\"machine\",\"host\":\"a\",\"processor_share\":0.5,\"memory_used_bytes\":"
    "1073741824}\n"
    "{\"step\":2,\"loss\":\"nan\",\"learning_rate\":0.1,\"grad_norm\":2,\"step_ms\":2,\"samples_per_second\":"
    "500,"
    "\"layout\":\"dp=2\"}\n"
    "{\"step\":2,\"eval_loss\":1.5,\"eval_accuracy\":0.75,\"eval_ms\":1,\"layout\":\"dp=2\"}\n"
    "{\"step\":2,\"kind\":\"machine\",\"host\":\"a\",\"rank\":1,\"gpu\":0,\"uuid\":\"GPU-1\",\"model\":\"X\","
    "\"power_watts\":300}\n";

inline constexpr const char* kReportText =
    R"({"steps":2,"epochs":0.5,"train_loss":2.25,"eval_loss":1.5,"eval_accuracy":0.75,"samples_per_second":500,)"
    R"("step_ms":{"mean":2,"p50":2,"p99":2},"exposed_comm_ms":0.5,"data_wait_ms":0,"peak_memory_bytes":1048576,)"
    R"("params_hash":"0123456789abcdef","world_size":3,"layout":"dp=2,sync=ps","ranks":[)"
    R"({"rank":0,"role":"worker","host":"a","exposed_comm_ms":0.5,"data_wait_ms":0.1},)"
    R"({"rank":1,"role":"worker","host":"b","exposed_comm_ms":1,"data_wait_ms":0},)"
    R"({"rank":2,"role":"server","host":"b","server_busy":0.25}],)"
    R"("machine":{"hosts":[{"host":"a","processor_share":{"mean":0.5,"max":0.75,"p95":0.7}}],"processes":[],"gpus":[]},)"
    R"("explanation":{"step":2,"notes":["half <b>blind</b>"],"mean":{"wall_ms":100,"parts_ms":{"compute":60,"start":30,)"
    R"("end":10},"computing_ms":{"linear":50},"speed_of_light":0.4},"ranks":[{"rank":0,"wall_ms":100,"parts_ms":)"
    R"({"compute":60,"start":30,"end":10}}]}})";

}  // namespace lockstep::testing
