#include "device/cuda/cuda_device.h"

#include <cuda.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/text.h"
#include "device/cuda/check.h"
#include "lockstep/error.h"

namespace lockstep::device {
namespace {

/// The driver's own functions, found at run time: a program that is linked to the driver does not start
/// without it.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  if (function == nullptr || found != cudaDriverEntryPointSuccess)
    throw DeviceError(fmt::format("the CUDA driver has no {}; install a newer one", name));
  return reinterpret_cast<Function>(function);
}

GpuFacts facts_of(int ordinal) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, ordinal));
  std::string uuid = "GPU-";
  for (const char byte : properties.uuid.bytes)
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return {.ordinal = ordinal,
          .name = properties.name,
          .uuid = uuid,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .compute_capability = 10 * properties.major + properties.minor};
}

bool is_done(cudaError_t query) {
  if (query == cudaErrorNotReady) {
    cudaGetLastError();  // libraries would take it for a failed launch of theirs
    return false;
  }
  check(query);
  return true;
}

/// Whether streams can store words by themselves; not everywhere within virtual machines.
bool can_write_words(int ordinal) {
  static const auto attribute =
      driver_function<CUresult (*)(int*, CUdevice_attribute, CUdevice)>("cuDeviceGetAttribute");
  int can = 0;
  return attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, ordinal) == CUDA_SUCCESS &&
         can != 0;
}

class CudaEvent : public Event {
 public:
  explicit CudaEvent(bool timed) {
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~CudaEvent() override {
    cudaEventDestroy(event_);
  }  // its status tells of earlier work, which has been looked at elsewhere
  CudaEvent(const CudaEvent&) = delete;

  bool ready() const override { return is_done(cudaEventQuery(event_)); }
  void synchronize() override { check(cudaEventSynchronize(event_)); }
  double milliseconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, dynamic_cast<const CudaEvent&>(earlier).event_, event_));
    return milliseconds;
  }
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream : public Stream {
 public:
  /// Lower numbers are more urgent; 0 is any stream's.
  CudaStream(std::string name, int priority) : name_(std::move(name)) {
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;

  const std::string& name() const override { return name_; }
  void launch(std::function<void()> work) override { work(); }
  void record(Event& event) override {
    check(cudaEventRecord(dynamic_cast<CudaEvent&>(event).native(), stream_));
  }
  void wait(const Event& event) override {
    check(cudaStreamWaitEvent(stream_, dynamic_cast<const CudaEvent&>(event).native(), 0));
  }
  void copy(void* to, const void* from, int64_t size_bytes) override {
    if (size_bytes > 0)
      check(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDefault, stream_));
  }
  void write_word(std::atomic<uint64_t>& word, uint64_t value) override {
    static_assert(sizeof word == sizeof value && std::atomic<uint64_t>::is_always_lock_free);
    static const auto write =
        driver_function<CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned)>("cuStreamWriteValue64");
    // The other flag, without a barrier before the word, exists no more in this version of the function.
    const CUresult status = write(stream_, device_address(&word), value, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status != CUDA_SUCCESS)
      throw DeviceError(
          fmt::format("the GPU cannot write the progress of stream {}: the driver reports error {}", name_,
                      static_cast<int>(status)));
  }
  void wait_word(const std::atomic<uint64_t>& word, uint64_t value) override {
    static const auto wait =
        driver_function<CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned)>("cuStreamWaitValue64");
    const CUresult status = wait(stream_, device_address(const_cast<std::atomic<uint64_t>*>(&word)), value,
                                 CU_STREAM_WAIT_VALUE_GEQ);
    if (status != CUDA_SUCCESS)
      throw DeviceError(
          fmt::format("the GPU cannot wait for the host in stream {}: the driver reports error {}; use "
                      "parallel.server_device: GPU, or servers that are workers (placement=colocated)",
                      name_, static_cast<int>(status)));
  }
  void synchronize() override { check(cudaStreamSynchronize(stream_)); }
  bool idle() override { return is_done(cudaStreamQuery(stream_)); }
  void* native() const override { return stream_; }

 private:
  static CUdeviceptr device_address(void* host) {
    void* address = nullptr;
    check(cudaHostGetDevicePointer(&address, host, 0));
    return reinterpret_cast<CUdeviceptr>(address);
  }

  std::string name_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

CudaDevice::CudaDevice(int ordinal) : facts_(facts_of(ordinal)) {
  make_current();
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal));
}

CudaDevice::~CudaDevice() {
  for (void* memory : shared_) cudaHostUnregister(memory);
  if (cublas_lt_ != nullptr) cublasLtDestroy(cublas_lt_);
}

void CudaDevice::make_current() const { check(cudaSetDevice(facts_.ordinal)); }

std::unique_ptr<Stream> CudaDevice::create_stream(const std::string& name) {
  return std::make_unique<CudaStream>(name, 0);
}

std::unique_ptr<Stream> CudaDevice::create_urgent_stream(const std::string& name) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return std::make_unique<CudaStream>(name, greatest);
}

std::unique_ptr<Event> CudaDevice::create_event(bool timed) { return std::make_unique<CudaEvent>(timed); }

std::string CudaDevice::share_host_memory(void* memory, int64_t size_bytes) {
  try {
    if (!can_write_words(facts_.ordinal)) return "its driver has no 64-bit writes by streams";
    check(cudaHostRegister(memory, static_cast<size_t>(size_bytes),
                           cudaHostRegisterMapped | cudaHostRegisterPortable));
    shared_.push_back(memory);
    // Drivers that offer it may refuse it: within virtual machines, for some memory.
    auto& word = *static_cast<std::atomic<uint64_t>*>(memory);
    CudaStream trial("trial", 0);
    trial.write_word(word, word.load());
    trial.synchronize();
    return {};
  } catch (const DeviceError& error) {
    cudaGetLastError();  // it would be reported again
    return error.what();
  }
}

void CudaDevice::copy_now(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes == 0) return;
  check(cudaMemcpy(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDefault));
  // From memory that is not pinned, and within the device, it returns before the last byte has arrived.
  check(cudaStreamSynchronize(cudaStreamLegacy));
}

cublasLtHandle_t CudaDevice::cublas_lt() {
  std::lock_guard lock(mutex_);
  if (cublas_lt_ == nullptr) check(cublasLtCreate(&cublas_lt_));
  return cublas_lt_;
}

void* CudaDevice::allocate_bytes(int64_t size_bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(size_bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it would be reported again
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    throw DeviceError(
        fmt::format("GPU {} ({}) cannot allocate {} of memory: {} of {} are free; use a smaller "
                    "trainer.micro_batch, or more workers",
                    facts_.ordinal, facts_.name, human_bytes(size_bytes),
                    human_bytes(static_cast<int64_t>(free)), human_bytes(static_cast<int64_t>(total))));
  }
  check(status);
  check(cudaMemset(data, 0, static_cast<size_t>(size_bytes)));
  check(cudaDeviceSynchronize());  // the memset is ordered before no other stream's work
  return data;
}

void CudaDevice::free_bytes(void* data, int64_t) noexcept { cudaFree(data); }

void* CudaDevice::allocate_host_bytes(int64_t size_bytes) {
  void* data = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&data, static_cast<size_t>(size_bytes), cudaHostAllocMapped | cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw DeviceError(
        fmt::format("the host cannot allocate {} of pinned memory for GPU {}; use a smaller model or fewer "
                    "workers on this host",
                    human_bytes(size_bytes), facts_.ordinal));
  }
  check(status);
  std::fill_n(static_cast<std::byte*>(data), size_bytes, std::byte{0});
  return data;
}

void CudaDevice::free_host_bytes(void* data) noexcept { cudaFreeHost(data); }

GpuProbe probe_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice)
    return {
        {},
        status == cudaErrorNoDevice
            ? "the CUDA driver shows no GPU to this process; look at nvidia-smi and at CUDA_VISIBLE_DEVICES"
            : "there is no CUDA driver, or one that is too old for this build; install one, and look at "
              "nvidia-smi"};
  if (status != cudaSuccess)
    return {{}, fmt::format("CUDA reports {} ({})", cudaGetErrorName(status), cudaGetErrorString(status))};
  GpuProbe probe;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    try {
      probe.devices.push_back(facts_of(ordinal));
    } catch (const DeviceError& error) {
      probe.problem = error.what();
    }
  }
  return probe;
}

void set_gpu_environment(bool waits_for_others) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (waits_for_others) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

std::string gpu_libraries() {
  int cuda = 0;
  check(cudaRuntimeGetVersion(&cuda));
  return fmt::format("cuda={}.{} cublaslt={}", cuda / 1000, cuda % 1000 / 10, cublasLtGetVersion());
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  const GpuProbe probe = probe_gpus();
  if (probe.devices.empty()) throw DeviceError(probe.problem);
  if (ordinal < 0 || ordinal >= static_cast<int>(probe.devices.size()))
    throw DeviceError(fmt::format("there is no GPU {}: this process sees {}; look at CUDA_VISIBLE_DEVICES",
                                  ordinal, probe.devices.size()));
  return std::make_unique<CudaDevice>(ordinal);
}

}  // namespace lockstep::device
