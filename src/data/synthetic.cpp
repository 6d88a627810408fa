#include "data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/hash.h"
#include "base/philox.h"
#include "base/text.h"
#include "data/order.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

enum Stream : uint32_t { kPrototypeStream, kNoiseStream, kTokenStream };

Philox::Block draw(uint64_t seed, Stream stream, uint64_t index) {
  const Philox::Block counter{{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream,
                               static_cast<uint32_t>(RandomPurpose::data_generation)}};
  return Philox::generate(counter, seed);
}

/// Sum of a word's four bytes, centred and scaled to deviation 1 (by the reciprocal of 147.80, the deviation
/// of the sum): nearly Gaussian, and free of libm, whose last bits differ between machines.
float nearly_normal(uint32_t word) {
  const auto sum =
      static_cast<int32_t>((word & 0xff) + (word >> 8 & 0xff) + (word >> 16 & 0xff) + (word >> 24));
  return static_cast<float>(sum - 510) * 0.006765821f;
}

uint32_t below(uint32_t word, int64_t bound) {  // uniform in [0, bound), by the high half of a product
  return static_cast<uint32_t>((uint64_t{word} * static_cast<uint64_t>(bound)) >> 32);
}

/// [first, first + count) of an endless source; what both kinds of synthetic samples share.
class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(const DataOptions& options, int64_t first, int64_t count, std::vector<Field> fields)
      : seed_(options.seed),
        first_(first),
        size_(count),
        classes_(options.classes),
        fields_(std::move(fields)) {}
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return size_; }
  int64_t classes() const override { return classes_; }
  uint64_t identity() const override {
    return hash64(fmt::format("synthetic {} {} {} {} {}", fields_[0].name, fields_[0].spec.shape.to_string(),
                              classes_, first_, size_),
                  seed_);
  }
  std::string description() const override {
    return fmt::format("{} synthetic samples of {} {} in {} classes from seed {}", size_, fields_[0].name,
                       fields_[0].spec.shape.to_string(), classes_, seed_);
  }

 protected:
  uint64_t seed_;
  int64_t first_, size_, classes_;
  std::vector<Field> fields_;
};

class SyntheticImages : public SyntheticDataset {
 public:
  SyntheticImages(const DataOptions& options, int64_t first, int64_t count, const Shape& shape)
      : SyntheticDataset(
            options, first, count,
            {{"image", {shape, DType::float32}}, {std::string(kLabelField), {Shape{}, DType::int32}}}),
        elements_(static_cast<uint64_t>(shape.count())),
        // Two prototypes of n elements of deviation a lie a * sqrt(2n) apart.
        amplitude_(std::min(1.0f, 8.0f / std::sqrt(static_cast<float>(elements_)))) {}

  void read(int64_t sample, std::span<std::byte* const> destinations) const override {
    const auto index = static_cast<uint64_t>(first_ + sample);
    const auto label = static_cast<int32_t>(index % static_cast<uint64_t>(classes_));
    if (destinations[1]) *reinterpret_cast<int32_t*>(destinations[1]) = label;
    if (!destinations[0]) return;
    auto* image = reinterpret_cast<float*>(destinations[0]);
    const uint64_t blocks = (elements_ + 3) / 4;
    for (uint64_t block = 0; block < blocks; ++block) {
      const auto prototype = draw(seed_, kPrototypeStream, static_cast<uint64_t>(label) * blocks + block);
      const auto noise = draw(seed_, kNoiseStream, index * blocks + block);
      const uint64_t end = std::min<uint64_t>(4, elements_ - 4 * block);
      for (uint64_t i = 0; i < end; ++i)
        image[4 * block + i] = amplitude_ * nearly_normal(prototype.word[i]) + nearly_normal(noise.word[i]);
    }
  }

 private:
  uint64_t elements_;
  float amplitude_;
};

class SyntheticTokens : public SyntheticDataset {
 public:
  SyntheticTokens(const DataOptions& options, int64_t first, int64_t count)
      : SyntheticDataset(options, first, count,
                         {{"tokens", {Shape{options.context}, DType::int32}},
                          {std::string(kLabelField), {Shape{options.context}, DType::int32}}}),
        context_(options.context),
        successor_(options.seed, options.classes, true) {}

  void read(int64_t sample, std::span<std::byte* const> destinations) const override {
    auto* tokens = reinterpret_cast<int32_t*>(destinations[0]);
    auto* labels = reinterpret_cast<int32_t*>(destinations[1]);
    const uint64_t first = static_cast<uint64_t>(first_ + sample) * static_cast<uint64_t>(context_ + 1);
    int32_t token = 0;
    for (int64_t i = 0; i <= context_; ++i) {
      const auto block = draw(seed_, kTokenStream, first + static_cast<uint64_t>(i));
      const bool at_random = i == 0 || (block.word[0] & 7) == 0;
      token = at_random ? static_cast<int32_t>(below(block.word[1], classes_))
                        : static_cast<int32_t>(successor_.sample(token));
      if (tokens && i < context_) tokens[i] = token;
      if (labels && i > 0) labels[i - 1] = token;
    }
  }

 private:
  int64_t context_;
  SampleOrder successor_;  // its first epoch is a permutation of the classes
};

Shape parse_shape(const std::string& text) {
  std::vector<int64_t> dims;
  for (const auto& part : split(text, ',')) {
    int64_t dim = 0;
    const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), dim);
    require(status == std::errc{} && end == part.data() + part.size() && dim > 0,
            fmt::format("data.shape: expected positive numbers as in \"28,28,1\", found \"{}\"", text));
    dims.push_back(dim);
  }
  return Shape(std::move(dims));
}

}  // namespace

DatasetPair open_synthetic_datasets(const DataOptions& options) {
  require(options.samples > 0 && options.eval_samples > 0,
          fmt::format("data: expected at least 1 of samples and of eval_samples, found {} and {}",
                      options.samples, options.eval_samples));
  require(options.classes >= 2 && options.classes <= INT32_MAX,
          fmt::format("data.classes: expected from 2 to {}, found {}", INT32_MAX, options.classes));
  require(options.shape.empty() != (options.context == 0),
          "data: a synthetic data set needs either a shape (images) or a context (tokens), not both");
  require(options.context >= 0,
          fmt::format("data.context: expected a positive number, found {}", options.context));
  if (options.context > 0)
    return {std::make_unique<SyntheticTokens>(options, 0, options.samples),
            std::make_unique<SyntheticTokens>(options, options.samples, options.eval_samples)};
  const Shape shape = parse_shape(options.shape);
  require(shape.count() <= int64_t{1} << 32,
          fmt::format("data.shape: expected at most 2^32 elements, found {}", shape.to_string()));
  return {std::make_unique<SyntheticImages>(options, 0, options.samples, shape),
          std::make_unique<SyntheticImages>(options, options.samples, options.eval_samples, shape)};
}

}  // namespace lockstep
