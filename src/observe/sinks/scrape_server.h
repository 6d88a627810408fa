#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::observe {

/// Serves one page of text by HTTP, at /metrics, to whoever fetches it, from one thread. Clients cannot keep
/// it busy: it holds a few connections, each for a few seconds, reads a few thousand bytes of a request,
/// answers only GET, and accepts no more than 100 connections a second; more wait, and are turned away by the
/// kernel. Thread-safe.
class ScrapeServer {
 public:
  /// Listens. Throws ConfigError if `address` is no IP address, IoError if the port is taken. Port 0: any
  /// free one.
  ScrapeServer(const std::string& address, int port);
  ~ScrapeServer();
  ScrapeServer(const ScrapeServer&) = delete;
  ScrapeServer& operator=(const ScrapeServer&) = delete;

  void set_page(std::string page);
  int port() const { return port_; }

 private:
  struct Connection;
  void serve();
  void accept_connections(std::vector<Connection>& connections);
  /// Whether the connection lives on.
  bool advance(Connection& connection);

  int listener_ = -1, stop_ = -1, port_ = 0;
  int accepted_ = 0;  // in this second
  std::mutex mutex_;
  std::shared_ptr<const std::string> page_;
  std::thread thread_;
};

}  // namespace lockstep::observe
