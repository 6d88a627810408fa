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

/// Windows [begin, end), and how many are left out before them.
struct LeftOut {
  int64_t begin, end, before;
};

/// The windows of all segments, numbered from one segment to the next.
struct Windows {
  struct Numbered {
    TokenSegment segment;
    int64_t first_window;
  };
  std::vector<Numbered> segments;  // those that have windows
  std::vector<LeftOut> left_out;   // ascending, apart
  int64_t count = 0;

  int64_t left_out_count() const {
    return left_out.empty() ? 0 : left_out.back().before + left_out.back().end - left_out.back().begin;
  }
  int64_t samples() const { return count - left_out_count(); }
  /// That a sample is.
  int64_t window(int64_t sample) const {
    const auto next = std::ranges::upper_bound(left_out, sample, {},
                                               [](const LeftOut& each) { return each.begin - each.before; });
    if (next == left_out.begin()) return sample;
    const LeftOut& last = *(next - 1);
    return sample + last.before + last.end - last.begin;
  }
};

/// A window's last token is one that it predicts alone, and the next window's first: both hold it.
void leave_out(const TokenSegment& segment, const TokenWindowsOptions& options, int64_t first_window,
               int64_t windows, std::vector<LeftOut>& left_out) {
  const auto& damaged = segment.sequence->damaged();
  for (auto token = std::ranges::lower_bound(damaged, segment.begin);
       token != damaged.end() && *token < segment.end; ++token) {
    const int64_t place = *token - segment.begin;
    const int64_t begin =
        place <= options.context ? 0 : (place - options.context + options.stride - 1) / options.stride;
    const int64_t end = std::min(windows, place / options.stride + 1);
    if (begin >= end) continue;
    LeftOut next{first_window + begin, first_window + end, 0};
    if (!left_out.empty()) {
      LeftOut& last = left_out.back();
      if (next.begin <= last.end) {
        last.end = std::max(last.end, next.end);
        continue;
      }
      next.before = last.before + last.end - last.begin;
    }
    left_out.push_back(next);
  }
}

Windows find_windows(const TokenWindowsOptions& options) {
  Windows found;
  for (const auto& segment : options.segments) {
    const int64_t windows = windows_in(segment, options);
    if (windows == 0) continue;
    leave_out(segment, options, found.count, windows, found.left_out);
    found.segments.push_back({segment, found.count});
    found.count += windows;
  }
  return found;
}

class TokenWindows : public Dataset {
 public:
  explicit TokenWindows(TokenWindowsOptions options) : options_(std::move(options)) {
    ensure(options_.context > 0 && options_.stride > 0, "windows have tokens");
    ensure(!options_.pads || options_.stride == options_.context, "a padded window is a segment's last");
    windows_ = find_windows(options_);
    ensure(windows_.samples() > 0, "there is a window");
    const Shape shape{options_.context};
    fields_ = {{"tokens", {shape, DType::int32}}, {std::string(kLabelField), {shape, DType::int32}}};
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return windows_.samples(); }
  Damage damage() const override { return {.left_out = windows_.left_out_count(), .replaced = {}}; }
  int64_t classes() const override { return options_.vocabulary; }
  uint64_t identity() const override { return options_.identity; }
  Encodings encodings() const override {
    if (!options_.tokenizer) return {};
    return {{std::string(tokenizer::kTokenizerFile), tokenizer::to_json(*options_.tokenizer)}};
  }
  std::string description() const override {
    return fmt::format("{} windows of {} tokens, one every {}, vocabulary {}: {}", size(), options_.context,
                       options_.stride, classes(), options_.description);
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t window = windows_.window(key.sample);
    const auto next = std::ranges::upper_bound(
        windows_.segments, window, {}, [](const Windows::Numbered& each) { return each.first_window; });
    const auto& [segment, first_window] = *(next - 1);
    const int64_t first = segment.begin + (window - first_window) * options_.stride;
    const int64_t real = std::min(options_.context, segment.end - 1 - first);  // predictions in the segment
    if (destinations[0]) read_to(segment, first, real, destinations[0], 0);
    if (destinations[1]) read_to(segment, first + 1, real, destinations[1], -1);
  }

 private:
  void read_to(const TokenSegment& segment, int64_t first, int64_t real, std::byte* to,
               int32_t padding) const {
    auto* tokens = reinterpret_cast<int32_t*>(to);
    segment.sequence->read(first, {tokens, static_cast<size_t>(real)});
    std::fill(tokens + real, tokens + options_.context, padding);
  }

  TokenWindowsOptions options_;
  Windows windows_;
  std::vector<Field> fields_;
};

}  // namespace

std::shared_ptr<const Dataset> make_token_windows(TokenWindowsOptions options) {
  return std::make_shared<TokenWindows>(std::move(options));
}

int64_t count_token_windows(const TokenWindowsOptions& options) { return find_windows(options).samples(); }

std::shared_ptr<const tokenizer::Tokenizer> tokenizer_of_model(const DataOptions& options) {
  const auto found = options.encodings.find(std::string(tokenizer::kTokenizerFile));
  if (found == options.encodings.end()) return nullptr;
  return std::make_shared<const tokenizer::Tokenizer>(
      tokenizer::tokenizer_from_json(found->second, "the checkpoint's " + found->first));
}

}  // namespace lockstep::data
