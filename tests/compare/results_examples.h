#pragma once

#include <string>
#include <vector>

#include "compare/results.h"

namespace lockstep::compare {

/// A row of all-reduce, servers or the like, whose runs took so long.
inline CompareRow row(int workers, const std::string& kind, const std::vector<double>& step_ms,
                      CompareProof proof = CompareProof::identical) {
  CompareRow row{.workers = workers,
                 .layout = layout::parse_layout("dp=" + std::to_string(workers) + "," + kind),
                 .kind = kind,
                 .global_batch = 60,
                 .proof = proof};
  for (const double time : step_ms)
    row.samples.push_back({.round = static_cast<int>(row.samples.size()) + 1,
                           .step_ms = time,
                           .exposed_comm_ms = time / 4,
                           .train_loss = 0.1});
  return row;
}

/// All-reduce on one and on two workers, and servers with two.
inline CompareResults results() {
  return {.command = "lockstep compare",
          .config = "c.textproto",
          .config_hash = "0123",
          .version = "1",
          .host = "here",
          .began = "today",
          .steps = 50,
          .proof_steps = 5,
          .cores = 2,
          .rows = {row(1, "sync=all_reduce", {12, 12, 12}), row(2, "sync=all_reduce", {8, 8, 8.1}),
                   row(2, "sync=ps", {16, 16, 16.1})}};
}

/// The same rows over two links: servers win over the slow one.
inline CompareResults over_links() {
  CompareResults found = results();
  found.rows.erase(found.rows.begin());
  for (CompareRow& row : found.rows) row.link = "none";
  for (CompareRow row : results().rows) {
    if (row.workers == 1) continue;
    row.link = "1gbit";
    row.link_bytes_theory = 1e6;
    for (CompareSample& sample : row.samples) {
      sample.step_ms = row.kind == "sync=ps" ? 20 : 40;
      sample.exposed_comm_ms = 0.75 * sample.step_ms;
      sample.compute_ms = 0.125 * sample.step_ms;
      sample.server_ms = 0.25 * sample.step_ms;
      sample.link_bytes_per_step = 1.05e6;
      sample.hosts = 2;
    }
    found.rows.push_back(row);
  }
  return found;
}

/// Two rows predicted, one of which has more processes than there are cores; one more worker.
inline CompareResults predicted() {
  CompareResults found = over_links();
  found.rows[0].predicted_ms = 6;
  found.rows[1].predicted_ms = 1;
  found.rows[2].predicted_ms = 44;
  found.forecasts.push_back(row(8, "sync=ps", {}));
  found.forecasts[0].link = "1gbit";
  found.forecasts[0].predicted_ms = 30;
  found.ties = {
      {.workers = 2, .kind = "sync=ps", .beside = "sync=all_reduce", .rates = {{2.1e9, plan::kFastestRate}}},
      {.workers = 2,
       .kind = "sync=ps",
       .beside = "sync=all_reduce",
       .rates = {},
       .link = "1gbit",
       .servers = plan::TyingServers{.counts = {{3, 4}}, .tried = 4}}};
  found.measured_links = {{.link = "none",
                           .latency_seconds = 2e-5,
                           .one_way_bits_per_second = 2.3e10,
                           .both_ways_bits_per_second = 3e10,
                           .all_reduce = {{8, 4e-5}}}};
  return found;
}

}  // namespace lockstep::compare
