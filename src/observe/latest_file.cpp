#include "observe/latest_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.h"

namespace lockstep::observe {

LatestFile::LatestFile(std::string path, std::chrono::milliseconds interval)
    : path_(std::move(path)), interval_(interval), next_(Clock::now()), thread_([this] { run(); }) {}

LatestFile::~LatestFile() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void LatestFile::replace(std::string text) {
  next_ = Clock::now() + interval_;
  {
    std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  changed_.notify_one();
}

void LatestFile::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return text_ || ends_; });
    if (!text_) return;
    const std::string text = *std::exchange(text_, std::nullopt);
    lock.unlock();
    write(text);
    lock.lock();
  }
}

void LatestFile::write(const std::string& text) {
  const std::string next = path_ + ".next";
  std::ofstream file(next, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file && std::rename(next.c_str(), path_.c_str()) == 0) return;
  if (!std::exchange(warned_, true))
    log_warning(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

}  // namespace lockstep::observe
