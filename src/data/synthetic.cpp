#include "data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "base/index.h"
#include "base/philox_stream.h"
#include "base/text.h"
#include "data/documents.h"
#include "data/order.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

enum Stream : uint32_t { kPrototypeStream, kNoiseStream, kTokenStream };

constexpr int64_t kBlocks = PhiloxBlocks::kCount;
constexpr int64_t kElements = 4 * kBlocks;  // of an image, made at a time

/// What is the same for many samples is made once, where it fits into this; otherwise for each sample anew.
constexpr int64_t kMostKeptBytes = 16 << 20;

PhiloxStream stream(uint64_t seed, Stream number) {
  return {.seed = seed, .purpose = RandomPurpose::data_generation, .number = number};
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

/// Nearly normal numbers of `stream`, four to a block from block `first` on; `count` <= kElements.
void draw_nearly_normal(const PhiloxStream& stream, uint64_t first, int64_t count, float* values) {
  PhiloxBlocks blocks;
  draw_blocks(stream, first, (count + 3) / 4, blocks);
  int64_t b = 0;
  for (; 4 * b + 4 <= count; ++b)
    for (int64_t word = 0; word < 4; ++word) values[4 * b + word] = nearly_normal(blocks.word[word][b]);
  for (int64_t i = 4 * b; i < count; ++i) values[i] = nearly_normal(blocks.word[i % 4][b]);
}

/// The classes' prototypes: `elements` nearly normal numbers each, of deviation `amplitude`.
class Prototypes {
 public:
  Prototypes(uint64_t seed, int64_t classes, int64_t elements)
      : stream_(stream(seed, kPrototypeStream)),
        elements_(elements),
        // Two prototypes of n elements of deviation a lie a * sqrt(2n) apart.
        amplitude_(std::min(1.0f, 8.0f / std::sqrt(static_cast<float>(elements)))) {
    if (classes > kMostKeptBytes / (elements * int64_t{sizeof(float)})) return;
    kept_.resize(static_cast<size_t>(classes * elements));
    for (int64_t label = 0; label < classes; ++label)
      for (int64_t begin = 0; begin < elements; begin += kElements)
        draw(label, begin, std::min(kElements, elements - begin), kept_.data() + label * elements + begin);
  }

  /// Elements [begin, begin + count) of a class, from `kept_` or made in `room`. REQUIRES: `begin` is a
  /// multiple of 4, `count` <= kElements, which `room` has too.
  const float* of(int64_t label, int64_t begin, int64_t count, float* room) const {
    if (!kept_.empty()) return kept_.data() + label * elements_ + begin;
    draw(label, begin, count, room);
    return room;
  }

 private:
  void draw(int64_t label, int64_t begin, int64_t count, float* values) const {
    const int64_t first = label * ((elements_ + 3) / 4) + begin / 4;
    draw_nearly_normal(stream_, static_cast<uint64_t>(first), count, values);
    for (int64_t i = 0; i < count; ++i) values[i] *= amplitude_;
  }

  PhiloxStream stream_;
  int64_t elements_;
  float amplitude_;
  std::vector<float> kept_;  // one class after the other; empty where they are too large
};

/// A fixed permutation of the tokens: the first epoch of a sample order, whose numbers take long to find, so
/// that those that were asked for are kept. Thread-safe.
class Successors {
 public:
  Successors(uint64_t seed, int64_t classes)
      : order_(seed, classes, true),
        kept_(classes <= kMostKeptBytes / int64_t{sizeof(int32_t)} ? static_cast<size_t>(classes) : 0) {}

  int32_t of(int32_t token) const {
    if (kept_.empty()) return static_cast<int32_t>(order_.sample(token));
    auto& kept = nth(kept_, token);
    if (const int32_t known = kept.load(std::memory_order_relaxed); known != 0) return known - 1;
    // Threads that come here at once find the same.
    const auto successor = static_cast<int32_t>(order_.sample(token));
    kept.store(successor + 1, std::memory_order_relaxed);
    return successor;
  }

 private:
  SampleOrder order_;
  mutable std::vector<std::atomic<int32_t>>
      kept_;  // token: its successor + 1, or 0 where it is not known yet
};

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
  SyntheticImages(const DataOptions& options, int64_t first, int64_t count, const Shape& shape,
                  std::shared_ptr<const Prototypes> prototypes)
      : SyntheticDataset(
            options, first, count,
            {{"image", {shape, DType::float32}}, {std::string(kLabelField), {Shape{}, DType::int32}}}),
        elements_(shape.count()),
        prototypes_(std::move(prototypes)) {}

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t index = first_ + key.sample, label = index % classes_;
    if (destinations[1]) *reinterpret_cast<int32_t*>(destinations[1]) = static_cast<int32_t>(label);
    if (!destinations[0]) return;
    auto* image = reinterpret_cast<float*>(destinations[0]);
    const uint64_t first_block = static_cast<uint64_t>(index) * ((static_cast<uint64_t>(elements_) + 3) / 4);
    float noise[kElements], room[kElements];
    for (int64_t begin = 0; begin < elements_; begin += kElements) {
      const int64_t count = std::min(kElements, elements_ - begin);
      const float* prototype = prototypes_->of(label, begin, count, room);
      draw_nearly_normal(stream(seed_, kNoiseStream), first_block + static_cast<uint64_t>(begin / 4), count,
                         noise);
      for (int64_t i = 0; i < count; ++i) image[begin + i] = prototype[i] + noise[i];
    }
  }

 private:
  int64_t elements_;
  std::shared_ptr<const Prototypes> prototypes_;
};

class SyntheticTokens : public SyntheticDataset {
 public:
  SyntheticTokens(const DataOptions& options, int64_t first, int64_t count,
                  std::shared_ptr<const Successors> successors)
      : SyntheticDataset(options, first, count,
                         {{"tokens", {Shape{options.context}, DType::int32}},
                          {std::string(kLabelField), {Shape{options.context}, DType::int32}}}),
        context_(options.context),
        successors_(std::move(successors)) {}

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    auto* tokens = reinterpret_cast<int32_t*>(destinations[0]);
    auto* labels = reinterpret_cast<int32_t*>(destinations[1]);
    const uint64_t first = static_cast<uint64_t>(first_ + key.sample) * static_cast<uint64_t>(context_ + 1);
    PhiloxBlocks blocks;
    int32_t token = 0;
    for (int64_t begin = 0; begin <= context_; begin += kBlocks) {
      const int64_t count = std::min(kBlocks, context_ + 1 - begin);
      draw_blocks(stream(seed_, kTokenStream), first + static_cast<uint64_t>(begin), count, blocks);
      for (int64_t b = 0; b < count; ++b) {
        const int64_t i = begin + b;
        const bool at_random = i == 0 || (blocks.word[0][b] & 7) == 0;
        token = at_random ? static_cast<int32_t>(below(blocks.word[1][b], classes_)) : successors_->of(token);
        if (tokens && i < context_) tokens[i] = token;
        if (labels && i > 0) labels[i - 1] = token;
      }
    }
  }

 private:
  int64_t context_;
  std::shared_ptr<const Successors> successors_;
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

/// What is evaluated on follows what is trained on, in the same source.
template <class Make>
DatasetPair pair_of(const DataOptions& options, const Make& make) {
  DatasetPair data;
  if (options.trains) data.train = make(int64_t{0}, options.samples);
  if (options.eval_samples > 0) data.eval = make(options.samples, options.eval_samples);
  return data;
}

}  // namespace

DatasetPair open_synthetic_datasets(const DataOptions& options) {
  require(options.samples > 0 && options.eval_samples >= 0,
          fmt::format("data: expected at least 1 of samples and 0 of eval_samples, found {} and {}",
                      options.samples, options.eval_samples));
  require(options.classes >= 2 && options.classes <= INT32_MAX,
          fmt::format("data.classes: expected from 2 to {}, found {}", INT32_MAX, options.classes));
  require(options.shape.empty() != (options.context == 0),
          "data: a synthetic data set needs either a shape (images) or a context (tokens), not both");
  require(options.context >= 0,
          fmt::format("data.context: expected a positive number, found {}", options.context));
  if (options.context > 0) {
    const auto successors = std::make_shared<const Successors>(options.seed, options.classes);
    DatasetPair data = pair_of(options, [&](int64_t first, int64_t count) {
      return std::make_shared<SyntheticTokens>(options, first, count, successors);
    });
    return options.documents.are_read ? with_documents(std::move(data), 0) : data;
  }
  const Shape shape = parse_shape(options.shape);
  require(shape.count() <= int64_t{1} << 32,
          fmt::format("data.shape: expected at most 2^32 elements, found {}", shape.to_string()));
  const auto prototypes = std::make_shared<const Prototypes>(options.seed, options.classes, shape.count());
  return pair_of(options, [&](int64_t first, int64_t count) {
    return std::make_shared<SyntheticImages>(options, first, count, shape, prototypes);
  });
}

}  // namespace lockstep::data
