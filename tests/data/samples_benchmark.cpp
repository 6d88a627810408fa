// How fast one thread makes batches of samples, for scripts/bench_images.py, which runs it beside other
// programs:
//
//     samples_benchmark files|whole_decoding|records|tokens FOLDER COUNT
//
// files: images in folders by class, through random_resized_crop (224), flip and normalize, decoded at a part
// of their size where that is enough; whole_decoding: likewise, at their whole size; records: likewise,
// packed; tokens: windows of 1,024 of FOLDER/*.bin. For each line on stdin it reads COUNT more samples, in
// batches of 64, and prints the seconds that they took.
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "data/batch_reader.h"
#include "data/dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kBatch = 64;

DataOptions options_of(const std::string& kind, const std::string& folder) {
  DataOptions options;
  options.directory = folder;
  if (kind == "tokens") {
    options.kind = DataKind::tokens;
    options.tokens = {.files = {"*.bin"}, .context = 1024};
    return options;
  }
  const RandomResizedCropOptions crop{.height = 224, .width = 224};
  const NormalizeOptions normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
  options.transforms = {crop, FlipOptions{}, normalize};
  options.kind = kind == "records" ? DataKind::records : DataKind::images;
  options.images.train = ".";
  options.images.scaled_decoding = kind != "whole_decoding";
  return options;
}

class Batches {
 public:
  explicit Batches(const Dataset& data) : reader_(data, SampleOrder(1, data.size(), true), {}) {
    for (const auto& field : data.fields()) {
      const TensorSpec& spec = field.spec;
      room_.emplace_back(static_cast<size_t>(kBatch * spec.shape.count() * size_of(spec.dtype)));
      tensors_.push_back(
          {.data = room_.back().data(), .shape = spec.shape.batched(kBatch), .dtype = spec.dtype});
    }
  }
  void read(int64_t count) {
    for (int64_t done = 0; done < count; done += kBatch, position_ += kBatch)
      reader_.read({position_, kBatch}, tensors_, {});
  }

 private:
  BatchReader reader_;
  std::vector<std::vector<std::byte>> room_;
  std::vector<Tensor> tensors_;
  int64_t position_ = 0;
};

void serve(const std::string& kind, const std::string& folder, int64_t count) {
  const auto data = open_datasets(options_of(kind, folder)).train;
  Batches batches(*data);
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = Clock::now();
    batches.read(count);
    std::cout << fmt::format("{}\n", milliseconds_between(begin, Clock::now()) / 1e3) << std::flush;
  }
}

}  // namespace
}  // namespace lockstep::data

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: samples_benchmark files|whole_decoding|records|tokens FOLDER COUNT\n";
    return 2;
  }
  try {
    lockstep::data::serve(argv[1], argv[2], std::atoll(argv[3]));
  } catch (const lockstep::Error& error) {
    std::cerr << "samples_benchmark: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
