#pragma once

#include <map>
#include <memory>
#include <string>

#include "observe/sinks/scrape_server.h"
#include "observe/sinks/sink.h"

namespace lockstep::observe {

/// The latest numbers, for Prometheus to fetch. Nothing is kept: what was not fetched in time is not missed.
class PrometheusSink : public Sink {
 public:
  PrometheusSink(RunFacts facts, std::string address, int port)
      : facts_(std::move(facts)), address_(std::move(address)), port_(port) {}

  void open() override;
  size_t write(std::span<const RecordPtr> records) override;

  /// In the text format of Prometheus.
  std::string page() const;
  int port() const { return server_->port(); }

 private:
  /// Numbers of the last record of a kind, by field.
  using Numbers = std::map<std::string, double, std::less<>>;

  void add_machines(std::string& page) const;
  /// Nothing of those that are gone.
  bool is_current(const MetricsRecord& record) const;

  RunFacts facts_;
  std::string address_;
  int port_;
  std::unique_ptr<ScrapeServer> server_;
  Numbers step_, evaluation_;
  int64_t steps_ = 0;
  double unix_seconds_ = 0;                    // of the last record
  double machine_unix_seconds_ = 0;            // likewise, of machines
  std::map<std::string, RecordPtr> machines_;  // the last record of each, by host and group
};

}  // namespace lockstep::observe
