#include "observe/latest_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace lockstep::observe {
namespace {

/// Empty if all is well; otherwise why not.
std::string replace_text(const std::string& path, const std::string& text) {
  const std::string next = path + ".next";
  std::ofstream file(next, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file && std::rename(next.c_str(), path.c_str()) == 0 ? "" : std::strerror(errno);
}

}  // namespace

LatestFile::LatestFile(std::string path, std::chrono::milliseconds interval)
    : interval_(interval), next_(Clock::now()), shared_(std::make_shared<Shared>()) {
  shared_->path = std::move(path);
  thread_ = start_thread_without_signals("latest file", [shared = shared_] { run(shared); });
}

LatestFile::~LatestFile() {
  std::unique_lock lock(shared_->mutex);
  shared_->ends = true;
  shared_->changed.notify_all();
  const bool is_over = shared_->changed.wait_for(lock, kPatience, [this] { return shared_->is_over; });
  lock.unlock();
  if (is_over) {
    thread_.join();
  } else {
    log_warning(fmt::format("{}: is not written, because the disk does not answer", shared_->path));
    thread_.detach();
  }
}

void LatestFile::replace(std::string text) {
  next_ = Clock::now() + interval_;
  std::lock_guard lock(shared_->mutex);
  shared_->text = std::move(text);
  shared_->changed.notify_all();
}

void LatestFile::run(const std::shared_ptr<Shared>& shared) {
  bool warned = false;
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->text || shared->ends; });
    if (!shared->text) break;
    const std::string text = *std::exchange(shared->text, std::nullopt);
    lock.unlock();
    const std::string problem = replace_text(shared->path, text);
    if (!problem.empty() && !std::exchange(warned, true))
      log_warning(fmt::format("cannot write {}: {}", shared->path, problem));
    lock.lock();
  }
  shared->is_over = true;
  shared->changed.notify_all();
}

}  // namespace lockstep::observe
