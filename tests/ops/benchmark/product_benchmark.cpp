// Products and convolutions of linear and conv2d ops on one core, beside oneDNN's and OpenBLAS's products of
// whole matrices, where their libraries are installed: medians, interleaved. Gradients of weights are of
// eight virtual replicas here, and of one in brackets.
//
//   product_benchmark [--rounds 15]
#include <dlfcn.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "ops/cpu/chained_products.h"
#include "ops/cpu/convolution.h"
#include "ops/cpu/speed.h"

namespace lockstep::ops {
namespace {

constexpr int kReplicas = 8;

struct Matrix {
  int64_t rows, columns;
  std::vector<float> numbers;

  Matrix(int64_t rows_, int64_t columns_) : rows(rows_), columns(columns_) {
    std::minstd_rand random(7);
    std::uniform_real_distribution<float> centred(-0.5f, 0.5f);
    numbers.resize(static_cast<size_t>(rows * columns));
    for (float& number : numbers) number = centred(random);
  }
  float* data() { return numbers.data(); }
};

/// Products of row-major matrices of a library: result = left right, either of them transposed.
class Library {
 public:
  explicit Library(std::string_view name) : name_(name) {
    if (name == "oneDNN") {
      for (const char* file : {"libdnnl.so.3", "libdnnl.so.2"}) open(file);
      onednn_ = reinterpret_cast<OneDnn*>(find("dnnl_sgemm"));
    } else {
      open("libopenblas.so.0");
      cblas_ = reinterpret_cast<Cblas*>(find("cblas_sgemm"));
    }
  }
  bool is_there() const { return onednn_ != nullptr || cblas_ != nullptr; }
  const std::string& name() const { return name_; }

  void multiply(bool left_transposed, bool right_transposed, int64_t rows, int64_t columns, int64_t inner,
                const float* left, const float* right, float* result) const {
    const int64_t left_stride = left_transposed ? rows : inner,
                  right_stride = right_transposed ? inner : columns;
    if (onednn_ != nullptr)
      onednn_(left_transposed ? 'T' : 'N', right_transposed ? 'T' : 'N', rows, columns, inner, 1.0f, left,
              left_stride, right, right_stride, 0.0f, result, columns);
    else
      cblas_(101, left_transposed ? 112 : 111, right_transposed ? 112 : 111, static_cast<int>(rows),
             static_cast<int>(columns), static_cast<int>(inner), 1.0f, left, static_cast<int>(left_stride),
             right, static_cast<int>(right_stride), 0.0f, result, static_cast<int>(columns));
  }

 private:
  using OneDnn = int(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                     int64_t, float, float*, int64_t);
  using Cblas = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                     int);

  void open(const char* file) {
    if (handle_ == nullptr) handle_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  }
  void* find(const char* symbol) { return handle_ == nullptr ? nullptr : dlsym(handle_, symbol); }

  std::string name_;
  void* handle_ = nullptr;  // stays open: libraries keep threads
  OneDnn* onednn_ = nullptr;
  Cblas* cblas_ = nullptr;
};

struct Contender {
  std::string name;
  std::function<void()> call;
};

/// Seconds of each, the median of interleaved rounds.
std::vector<double> measure(const std::vector<Contender>& contenders, int rounds) {
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < contenders.size(); ++i) {
      constexpr int kCalls = 4;
      const auto begin = Clock::now();
      for (int call = 0; call < kCalls; ++call) contenders[i].call();
      const std::chrono::duration<double> taken = Clock::now() - begin;
      if (round >= 0) times[i].push_back(taken.count() / kCalls);
    }
  std::vector<double> medians;
  for (auto& own : times) {
    std::ranges::nth_element(own, own.begin() + static_cast<std::ptrdiff_t>(own.size() / 2));
    medians.push_back(own[own.size() / 2]);
  }
  return medians;
}

std::vector<float> workspace_of(int64_t bytes) {
  return std::vector<float>(static_cast<size_t>(bytes / 4) + 16);
}
float* aligned(std::vector<float>& workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  return workspace.data() + (64 - address % 64) % 64 / 4;
}

void compare_products(int64_t rows, int64_t units, int64_t inputs, const std::vector<Library>& libraries,
                      int rounds) {
  Matrix x(rows, inputs), weight(units, inputs), y(rows, units), dy(rows, units), dx(rows, inputs),
      dweight(units, inputs);
  const ChainedProducts one(rows, units, inputs, 1, 1), several(rows, units, inputs, kReplicas, 1);
  auto workspace = workspace_of(std::max({several.forward_bytes(), several.input_gradient_bytes(),
                                          several.weight_gradient_bytes(), one.weight_gradient_bytes()}));
  float* own = aligned(workspace);
  const auto line = [&](const char* what, std::vector<Contender> contenders, const auto& of_library) {
    for (const Library& library : libraries)
      contenders.push_back({library.name(), [&] { of_library(library); }});
    const std::vector<double> seconds = measure(contenders, rounds);
    const double operations = 2e-9 * static_cast<double>(rows * units * inputs);
    fmt::print("{:>5} x {:>4} x {:>4}  {:<15}", rows, units, inputs, what);
    for (size_t i = 0; i < contenders.size(); ++i)
      fmt::print("  {} {:.0f}{}", contenders[i].name, operations / seconds[i],
                 i == 0 ? "" : fmt::format(" (x {:.2f})", seconds[i] / seconds[0]));
    fmt::print("\n");
    std::fflush(stdout);
  };
  line("forward", {{"lockstep", [&] { several.forward(x.data(), weight.data(), nullptr, y.data(), own); }}},
       [&](const Library& library) {
         library.multiply(false, true, rows, units, inputs, x.data(), weight.data(), y.data());
       });
  line("input gradient",
       {{"lockstep", [&] { several.input_gradient(dy.data(), weight.data(), dx.data(), own); }}},
       [&](const Library& library) {
         library.multiply(false, false, rows, inputs, units, dy.data(), weight.data(), dx.data());
       });
  line("weight gradient",
       {{"lockstep", [&] { several.weight_gradient(dy.data(), x.data(), dweight.data(), false, own); }},
        {"one replica", [&] { one.weight_gradient(dy.data(), x.data(), dweight.data(), false, own); }}},
       [&](const Library& library) {
         library.multiply(true, false, units, inputs, rows, dy.data(), x.data(), dweight.data());
       });
}

void measure_convolution(const ConvolutionSizes& sizes, double peak, int rounds) {
  Matrix x(sizes.batch, sizes.image()), weight(sizes.units, sizes.window()),
      y(sizes.batch, sizes.pixels() * sizes.units), dy(sizes.batch, sizes.pixels() * sizes.units),
      dx(sizes.batch, sizes.image()), dweight(sizes.units, sizes.window());
  const Convolution convolution(sizes, kReplicas, 1);
  auto workspace = workspace_of(std::max({convolution.forward_bytes(), convolution.input_gradient_bytes(),
                                          convolution.weight_gradient_bytes()}));
  float* own = aligned(workspace);
  const std::vector<Contender> contenders{
      {"forward", [&] { convolution.forward(x.data(), weight.data(), nullptr, y.data(), own); }},
      {"input gradient", [&] { convolution.input_gradient(dy.data(), weight.data(), dx.data(), own); }},
      {"weight gradient",
       [&] { convolution.weight_gradient(dy.data(), x.data(), dweight.data(), false, own); }}};
  const std::vector<double> seconds = measure(contenders, rounds);
  const double operations =
      2e-9 * static_cast<double>(sizes.batch * sizes.pixels() * sizes.units * sizes.window());
  fmt::print("{} images {}x{}x{}, {} units, kernel {}, stride {}:", sizes.batch, sizes.height, sizes.width,
             sizes.channels, sizes.units, sizes.kernel, sizes.stride);
  for (size_t i = 0; i < contenders.size(); ++i)
    fmt::print("  {} {:.0f} ({:.0f} %)", contenders[i].name, operations / seconds[i],
               100 * operations * 1e9 / seconds[i] / peak);
  fmt::print("\n");
  std::fflush(stdout);
}

int run(int rounds) {
  const ArithmeticSpeed speed = measure_arithmetic(0.2);
  fmt::print("GFLOP/s of one core; {}\n", to_text(speed));
  std::vector<Library> libraries;
  for (const char* name : {"oneDNN", "OpenBLAS"})
    if (Library library(name); library.is_there())
      libraries.push_back(std::move(library));
    else
      fmt::print("{} is not installed\n", name);
  struct Shape {
    int64_t rows, units, inputs;
  };
  for (const Shape& shape : {Shape{64, 256, 784},
                             {64, 128, 256},
                             {64, 10, 128},
                             {128, 1024, 784},
                             {128, 1024, 1024},
                             {768, 384, 128},
                             {768, 512, 128},
                             {768, 128, 512},
                             {768, 65, 128},
                             {2048, 768, 768}})
    compare_products(shape.rows, shape.units, shape.inputs, libraries, rounds);
  const auto convolution = [](int64_t batch, int64_t side, int64_t channels, int64_t units, int64_t kernel,
                              int64_t stride, int64_t padding) {
    const int64_t out = (side + 2 * padding - kernel) / stride + 1;
    return ConvolutionSizes{.batch = batch,
                            .height = side,
                            .width = side,
                            .channels = channels,
                            .kernel = kernel,
                            .stride = stride,
                            .padding = padding,
                            .out_height = out,
                            .out_width = out,
                            .units = units};
  };
  for (const ConvolutionSizes& sizes :
       {convolution(64, 28, 1, 6, 5, 1, 2), convolution(64, 14, 6, 16, 5, 1, 0),
        convolution(16, 32, 16, 16, 3, 1, 1), convolution(16, 32, 64, 64, 3, 1, 1),
        convolution(16, 16, 128, 128, 3, 1, 1), convolution(16, 32, 64, 128, 3, 2, 1),
        convolution(16, 8, 256, 256, 3, 1, 1), convolution(16, 32, 64, 256, 1, 1, 0)})
    measure_convolution(sizes, speed.peak, rounds);
  return 0;
}

}  // namespace
}  // namespace lockstep::ops

int main(int argc, char** argv) {
  // One core, for the libraries, too.
  omp_set_num_threads(1);
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  int rounds = 15;
  if (argc == 3 && std::string_view(argv[1]) == "--rounds") rounds = std::max(1, std::atoi(argv[2]));
  return lockstep::ops::run(rounds);
}
