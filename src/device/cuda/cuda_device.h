#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"

namespace lockstep::device {

/// One GPU of this process. Memory is plain cudaMalloc, allocated once. Streams do not wait for the default
/// stream, which is not used. Every thread that makes or uses its parts calls make_current() first, except
/// the thread that made the device, for create_... and launches.
class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return facts_.name; }
  bool shares_host_memory() const override { return false; }
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  std::unique_ptr<Stream> create_urgent_stream(const std::string& name) override;
  std::unique_ptr<Event> create_event(bool timed = false) override;
  std::string share_host_memory(void* memory, int64_t size_bytes) override;
  void copy_now(void* to, const void* from, int64_t size_bytes) override;

  const GpuFacts& facts() const { return facts_; }
  int multiprocessors() const { return multiprocessors_; }
  void make_current() const;
  /// Made when it is first asked for: it takes a tenth of a second and memory of its own.
  cublasLtHandle_t cublas_lt();

 protected:
  void* allocate_bytes(int64_t size_bytes) override;
  void free_bytes(void* data, int64_t size_bytes) noexcept override;
  void* allocate_host_bytes(int64_t size_bytes) override;
  void free_host_bytes(void* data) noexcept override;

 private:
  GpuFacts facts_;
  int multiprocessors_ = 0;
  std::mutex mutex_;  // guards the handle
  cublasLtHandle_t cublas_lt_ = nullptr;
  std::vector<void*> shared_;  // host memory that was registered
};

}  // namespace lockstep::device
