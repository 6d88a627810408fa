#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <string>

#include "base/clock.h"
#include "cuda_kernels.h"
#include "device/cuda/check.h"
#include "lockstep/error.h"
#include "prices.h"

namespace lockstep::ops {
namespace {

constexpr double kPatienceMs = 1000;  // of a gate
constexpr int kQueued = 4096;         // launches behind a gate; about a thousand are expected to fit

cudaStream_t native(device::Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

/// A kernel that waits for a word of the host's.
class CudaGate : public Gate {
 public:
  explicit CudaGate(device::Device& device)
      : memory_(device.allocate_host(64)), word_(*new (memory_.data()) std::atomic<uint64_t>(0)) {
    device::check(cudaHostGetDevicePointer(&device_word_, memory_.data(), 0));
  }
  ~CudaGate() override { word_ = 1; }

  void close(device::Stream& stream) override {
    word_ = 0;
    closed_ = Clock::now();
    launch_waiting_kernel(static_cast<const uint64_t*>(device_word_),
                          static_cast<uint64_t>(kPatienceMs * 1e6), native(stream));
  }
  bool open() override {
    word_ = 1;
    return milliseconds_between(closed_, Clock::now()) < kPatienceMs;
  }

 private:
  device::Buffer memory_;
  std::atomic<uint64_t>& word_;
  void* device_word_ = nullptr;
  Clock::time_point closed_{};
};

/// Work of a stream, captured. Throws if it cannot be.
class Graph {
 public:
  Graph(device::Stream& stream, const std::function<void()>& work) : stream_(native(stream)) {
    device::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {
      end_capture();  // says only that it was invalidated
      cudaGetLastError();
      destroy();
      throw;
    }
    try {
      device::check(end_capture());
      device::check(cudaGraphInstantiate(&executable_, graph_, 0));
      device::check(cudaGraphUpload(executable_, stream_));
    } catch (...) {
      cudaGetLastError();
      destroy();
      throw;
    }
  }
  ~Graph() { destroy(); }
  Graph(const Graph&) = delete;

  void launch() { device::check(cudaGraphLaunch(executable_, stream_)); }
  int64_t nodes() const {
    size_t count = 0;
    device::check(cudaGraphGetNodes(graph_, nullptr, &count));
    return static_cast<int64_t>(count);
  }

 private:
  cudaError_t end_capture() { return cudaStreamEndCapture(stream_, &graph_); }
  void destroy() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Whether a stream write can be captured, does its work in a graph, and what it costs there. That it cannot
/// is no failure.
void probe_captured_writes(Bench& bench, Prices& prices, Line& line) {
  device::Stream& stream = bench.stream();
  const int writes = bench.tiny() ? 2 : 100;
  const device::Buffer memory = bench.device().allocate_host(64);
  auto& word = *new (memory.data()) std::atomic<uint64_t>(0);
  line["works"] = false;
  try {
    Graph graph(stream, [&] {
      for (int i = 1; i <= writes; ++i) stream.write_word(word, static_cast<uint64_t>(i));
    });
    line["nodes"] = graph.nodes();
    prices.measure(line, 1, [&] { graph.launch(); });
    line["works"] = word.load() == static_cast<uint64_t>(writes);
  } catch (const DeviceError& error) {
    line["why"] = error.what();
  }
}

void probe_graph(Bench& bench, Prices& prices, int kernels, Line& line) {
  Graph graph(bench.stream(), [&] {
    for (int i = 0; i < kernels; ++i) launch_empty_kernel(native(bench.stream()));
  });
  line["kernels"] = kernels;
  prices.measure(line, kernels > 100 ? 2 : 16, [&] { graph.launch(); });
}

/// How many calls a queue takes before one makes the host wait.
void probe_queue(Bench& bench, Line& line, const std::function<void()>& call) {
  constexpr double kIsWaitingMs = 100;
  call();
  bench.stream().synchronize();
  CudaGate gate(bench.device());
  gate.close(bench.stream());
  int fitted = 0;
  const auto began = Clock::now();
  double waited_ms = 0;
  for (; fitted < kQueued; ++fitted) {
    const auto called = Clock::now();
    call();
    waited_ms = milliseconds_between(called, Clock::now());
    if (waited_ms > kIsWaitingMs) break;
  }
  line["all_fit"] = fitted == kQueued;
  line["fit"] = fitted;
  line["ms"] = milliseconds_between(began, Clock::now());
  gate.open();
  bench.stream().synchronize();
}

/// What cudaHostRegister takes for memory that has been touched, as Device::share_host_memory() calls it.
/// That it fails is no failure: some containers forbid it.
void probe_pinning(int64_t size_bytes, Line& line) {
  const auto size = static_cast<size_t>(size_bytes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw DeviceError("the host has no memory left");
  std::memset(memory, 1, size);
  const auto began = Clock::now();
  const cudaError_t status =
      cudaHostRegister(memory, size, cudaHostRegisterMapped | cudaHostRegisterPortable);
  const auto registered = Clock::now();
  line["bytes"] = size_bytes;
  line["works"] = status == cudaSuccess;
  if (status == cudaSuccess) {
    line["host_us"] = 1e3 * milliseconds_between(began, registered);
    cudaHostUnregister(memory);
    line["undone_us"] = 1e3 * milliseconds_between(registered, Clock::now());
  } else {
    cudaGetLastError();
    line["why"] = cudaGetErrorName(status);
  }
  munmap(memory, size);
}

}  // namespace

std::unique_ptr<Gate> make_gate(device::Device& device) { return std::make_unique<CudaGate>(device); }

bool probe_cuda_launches(Bench& bench, Prices& prices, bool streams_write) {
  const auto launch = [&] { launch_empty_kernel(native(bench.stream())); };
  bool worked = true;
  const auto measured = [&](const std::string& name, const std::function<void(Line&)>& measure) {
    worked &= print_measured({{"name", name}}, measure);
  };
  measured("empty kernel", [&](Line& line) { prices.measure(line, bench.tiny() ? 4 : 200, launch); });
  for (const int kernels : {1, 100, 1000})
    measured(fmt::format("graph, empty kernels: {}", kernels),
             [&](Line& line) { probe_graph(bench, prices, kernels, line); });
  if (streams_write)
    measured("graph of 100 stream writes", [&](Line& line) { probe_captured_writes(bench, prices, line); });

  const device::Buffer memory = bench.device().allocate_host(64);
  auto& word = *new (memory.data()) std::atomic<uint64_t>(0);
  measured("queue, empty kernels", [&](Line& line) { probe_queue(bench, line, launch); });
  if (streams_write)
    measured("queue, empty kernels with stream writes", [&](Line& line) {
      probe_queue(bench, line, [&] {
        launch();
        bench.stream().write_word(word, 1);
      });
    });
  for (const int64_t kibibytes : {int64_t{4}, int64_t{64} << 10, int64_t{1} << 20}) {
    measured(fmt::format("cudaHostRegister, {} KiB", kibibytes),
             [&](Line& line) { probe_pinning(kibibytes << 10, line); });
    if (bench.tiny()) break;
  }
  return worked;
}

}  // namespace lockstep::ops
