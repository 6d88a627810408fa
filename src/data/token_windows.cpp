#include "data/token_windows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/hash.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::data {
namespace {

int64_t windows_in(const TokenSegment& segment, const TokenWindowsOptions& options) {
  const int64_t predictions = segment.end - segment.begin - 1;
  if (predictions < 1) return 0;
  if (options.pads) return (predictions + options.stride - 1) / options.stride;
  return predictions < options.context ? 0 : (predictions - options.context) / options.stride + 1;
}

class TokenWindows : public Dataset {
 public:
  explicit TokenWindows(TokenWindowsOptions options) : options_(std::move(options)) {
    ensure(options_.context > 0 && options_.stride > 0, "windows have tokens");
    ensure(!options_.pads || options_.stride == options_.context, "a padded window is a segment's last");
    for (const auto& segment : options_.segments) {
      const int64_t windows = windows_in(segment, options_);
      if (windows == 0) continue;
      segments_.push_back({segment, size_});
      size_ += windows;
    }
    ensure(size_ > 0, "there is a window");
    const Shape shape{options_.context};
    fields_ = {{"tokens", {shape, DType::int32}}, {std::string(kLabelField), {shape, DType::int32}}};
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return size_; }
  int64_t classes() const override { return options_.vocabulary; }
  uint64_t identity() const override { return options_.identity; }
  Encodings encodings() const override {
    if (!options_.tokenizer) return {};
    return {{std::string(tokenizer::kTokenizerFile), tokenizer::to_json(*options_.tokenizer)}};
  }
  std::string description() const override {
    return fmt::format("{} windows of {} tokens, one every {}, vocabulary {}: {}", size_, options_.context,
                       options_.stride, classes(), options_.description);
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const auto next = std::ranges::upper_bound(segments_, key.sample, {},
                                               [](const Numbered& each) { return each.first_sample; });
    const auto& [segment, first_sample] = *(next - 1);
    const int64_t first = segment.begin + (key.sample - first_sample) * options_.stride;
    const int64_t real = std::min(options_.context, segment.end - 1 - first);  // predictions in the segment
    if (destinations[0]) read_to(segment, first, real, destinations[0], 0);
    if (destinations[1]) read_to(segment, first + 1, real, destinations[1], -1);
  }

 private:
  struct Numbered {
    TokenSegment segment;
    int64_t first_sample;
  };

  void read_to(const TokenSegment& segment, int64_t first, int64_t real, std::byte* to,
               int32_t padding) const {
    auto* tokens = reinterpret_cast<int32_t*>(to);
    segment.sequence->read(first, {tokens, static_cast<size_t>(real)});
    std::fill(tokens + real, tokens + options_.context, padding);
  }

  TokenWindowsOptions options_;
  std::vector<Numbered> segments_;  // those that have windows
  std::vector<Field> fields_;
  int64_t size_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> make_token_windows(TokenWindowsOptions options) {
  return std::make_shared<TokenWindows>(std::move(options));
}

int64_t count_token_windows(const TokenWindowsOptions& options) {
  int64_t windows = 0;
  for (const auto& segment : options.segments) windows += windows_in(segment, options);
  return windows;
}

std::shared_ptr<const tokenizer::Tokenizer> tokenizer_of_model(const DataOptions& options) {
  const auto found = options.encodings.find(std::string(tokenizer::kTokenizerFile));
  if (found == options.encodings.end()) return nullptr;
  return std::make_shared<const tokenizer::Tokenizer>(
      tokenizer::tokenizer_from_json(found->second, "the checkpoint's " + found->first));
}

}  // namespace lockstep::data
