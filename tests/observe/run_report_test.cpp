#include "observe/run_report.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace lockstep::observe {
namespace {

RunReport full_report() {
  return {.steps = 500,
          .epochs = 2.5,
          .skipped_steps = 3,
          .loss_scale = 32768,
          .train_loss = 0.1,
          .eval_loss = 0.30000000000000004,
          .eval_accuracy = 0.9875,
          .samples_per_second = 4290.5,
          .tokens_per_second = 1e6,
          .step_ms = StepMilliseconds{2, 1.75, 4.5},
          .exposed_comm_ms = 0.25,
          .data_wait_ms = 0.125,
          .startup_ms = 321,
          .first_step = StartupMilliseconds{{100, 2, 50, 20, 8, 30, 10, 5, 0.25, 90, 64, 0.75}},
          .peak_memory_bytes = 1572864,
          .host_memory_bytes = 2048,
          .process_memory_bytes = 104857600,
          .process_memory_growth_bytes = 3 << 20,
          .params_hash = 0x0123456789abcdef,
          .state_hash = 0xf,
          .math_hash = 0xa0,
          .config_hash = 0xffffffffffffffff,
          .world_size = 4,
          .layout = "dp=2,pp=2",
          .ranks = {{.rank = 0,
                     .role = "worker",
                     .host = "node1",
                     .waited_ms = 0.25,
                     .data_wait_ms = 0.125,
                     .busy_share = 0.5,
                     .sent_bytes = 1024,
                     .received_bytes = 512,
                     .sent_bytes_theory = 1040,
                     .received_bytes_theory = 520,
                     .peak_memory_bytes = 1572864,
                     .interfaces = {{"eth0", {.sent = 1100, .received = 600}}}},
                    {.rank = 1,
                     .role = "server",
                     .waited_ms = 0.5,
                     .busy_share = 0.75,
                     .sent_bytes = 2048,
                     .received_bytes = 4096,
                     .sent_bytes_theory = 2050,
                     .received_bytes_theory = 4100,
                     .peak_memory_bytes = 4096}}};
}

TEST(RunReport, IsOneLineOfJson) {
  EXPECT_EQ(
      to_json(full_report()),
      R"({"steps":500,"epochs":2.5,"skipped_steps":3,"loss_scale":32768,"train_loss":0.1,"eval_loss":0.30000000000000004,"eval_accuracy":0.9875,)"
      R"("samples_per_second":4290.5,"tokens_per_second":1000000,"step_ms":{"mean":2,"p50":1.75,"p99":4.5},)"
      R"("exposed_comm_ms":0.25,"data_wait_ms":0.125,"startup_ms":321,"first_step_ms":380,"startup_parts_ms":{"launch":100,"config":2,"device":50,"programs":20,"data":8,"kernels":30,"memory":10,"agreement":5,)"
      R"("communicators":0.25,"parameters":90,"first_step":64,"other":0.75},"peak_memory_bytes":1572864,)"
      R"("host_memory_bytes":2048,"process_memory_bytes":104857600,"process_memory_growth_bytes":3145728,"params_hash":"0123456789abcdef","state_hash":"000000000000000f",)"
      R"("math_hash":"00000000000000a0","config_hash":"ffffffffffffffff","world_size":4,"layout":"dp=2,pp=2",)"
      R"("ranks":[{"rank":0,"role":"worker","host":"node1","exposed_comm_ms":0.25,"data_wait_ms":0.125,"compute_share":0.5,"wire_bytes":{"sent":1024,"received":512},"wire_bytes_theory":{"sent":1040,"received":520},"peak_memory_bytes":1572864,"interface_bytes":{"eth0":{"sent":1100,"received":600}}},)"
      R"({"rank":1,"role":"server","server_wait_ms":0.5,"server_busy":0.75,"wire_bytes":{"sent":2048,"received":4096},"wire_bytes_theory":{"sent":2050,"received":4100},"peak_memory_bytes":4096}]})");
}

TEST(RunReport, LeavesOutWhatThereIsNot) {
  const auto json = nlohmann::json::parse(to_json(RunReport{}));
  for (const char* name : {"loss_scale", "train_loss", "eval_loss", "eval_accuracy", "samples_per_second",
                           "tokens_per_second", "step_ms", "first_step_ms", "startup_parts_ms"}) {
    EXPECT_FALSE(json.contains(name)) << name;
  }
  EXPECT_EQ(json.size(), 17u);
}

TEST(RunReport, WhatIsNotFiniteIsAText) {
  RunReport report;
  report.train_loss = std::numeric_limits<double>::infinity();
  EXPECT_EQ(nlohmann::json::parse(to_json(report)).at("train_loss"), "inf");
}

TEST(RunReport, DescribesItselfAsATable) {
  const std::string begin =
      "evaluation loss  0.3\n"
      "accuracy         98.75 %\n"
      "training loss    0.1 (last step)\n"
      "steps            500 (2.50 epochs)\n"
      "skipped steps    3, not finite\n"
      "loss scale       32768\n"
      "samples/s        4290.5\n"
      "tokens/s         1000000.0\n"
      "step             2.000 ms (p50 1.750, p99 4.500)\n"
      "waits per step   0.250 ms for communication, 0.125 ms for data\n"
      "servers          busy 75 % of a step, get up to 4.00 KiB and send 2.00 KiB in it\n";
  const std::string end =
      "processes        4 (dp=2,pp=2)\n"
      "params hash      0123456789abcdef\n";
  EXPECT_EQ(describe(full_report(), false), begin + end);
  EXPECT_EQ(
      describe(full_report(), true),
      begin +
          "first step done  380 ms after the start: launch 100, config 2, device 50, programs 20, data 8, "
          "kernels 30, memory 10, "
          "agreement 5, parameters 90, first_step 64, other 1\n"
          "planned memory   1.50 MiB (1572864 bytes)\n"
          "host memory      2.00 KiB (2048 bytes)\n"
          "process memory   100.00 MiB (104857600 bytes), of which 3.00 MiB since the plan was allocated\n" +
          end + "state hash       000000000000000f\n");
}

TEST(RunReport, TheTableOfARunWithoutStepsIsShort) {
  EXPECT_EQ(describe({.layout = "dp=1"}, false),
            "steps           0 (0.00 epochs)\n"
            "waits per step  0.000 ms for communication, 0.000 ms for data\n"
            "processes       1 (dp=1)\n"
            "params hash     0000000000000000\n");
  EXPECT_EQ(describe({.layout = "dp=1"}, true),
            "steps           0 (0.00 epochs)\n"
            "waits per step  0.000 ms for communication, 0.000 ms for data\n"
            "start-up        0 ms\n"
            "planned memory  0 B\n"
            "host memory     0 B\n"
            "process memory  0 B, of which 0 B since the plan was allocated\n"
            "processes       1 (dp=1)\n"
            "params hash     0000000000000000\n"
            "state hash      0000000000000000\n");
}

}  // namespace
}  // namespace lockstep::observe
