#include "tokenizer/learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "lockstep/error.h"
#include "tokenizer/words.h"

namespace lockstep::tokenizer {
namespace {

using Pair = std::pair<int32_t, int32_t>;
struct PairHash {
  size_t operator()(const Pair& pair) const {
    return static_cast<size_t>(
        (uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second)) *
            0x9E3779B97F4A7C15u >>
        16);
  }
};

struct Word {
  std::vector<int32_t> tokens;
  int64_t count;
};

/// Words as tokens, how often each pair of neighbours occurs in them, and where.
class Pairs {
 public:
  explicit Pairs(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t word = 0; word < words_.size(); ++word) count_pairs(word, +1);
    for (const auto& [pair, statistics] : pairs_) queue_.push({statistics.count, pair});
  }

  /// The most frequent pair that occurs at least twice; nothing if there is none.
  std::optional<Pair> most_frequent() {
    while (!queue_.empty()) {
      const auto [count, pair] = queue_.top();
      const int64_t now = pairs_[pair].count;
      if (now == count) return count >= 2 ? std::optional(pair) : std::nullopt;
      // Counts of known pairs only fall; one that has fallen takes its new place.
      queue_.pop();
      if (now >= 2) queue_.push({now, pair});
    }
    return std::nullopt;
  }

  void merge(const Pair& pair, int32_t merged) {
    const auto found = pairs_.extract(pair);
    std::unordered_set<Pair, PairHash> changed;
    for (const uint32_t word : found.mapped().words) merge_in(word, pair, merged, changed);
    pairs_.erase(pair);
    for (const auto& each : changed) queue_.push({pairs_[each].count, each});
  }

 private:
  struct Statistics {
    int64_t count = 0;
    std::unordered_set<uint32_t> words;
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void count_pairs(size_t word, int sign) {
    const auto& [tokens, count] = words_[word];
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      Statistics& statistics = pairs_[{tokens[i], tokens[i + 1]}];
      statistics.count += sign * count;
      if (sign > 0) statistics.words.insert(static_cast<uint32_t>(word));
    }
  }

  /// `changed` gets the pairs that the word has only since.
  void merge_in(uint32_t word, const Pair& pair, int32_t merged,
                std::unordered_set<Pair, PairHash>& changed) {
    auto& tokens = words_[word].tokens;
    count_pairs(word, -1);
    size_t end = 0;
    for (size_t i = 0; i < tokens.size(); ++end) {
      const bool here = i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
      tokens[end] = here ? merged : tokens[i];
      i += here ? 2 : 1;
    }
    tokens.resize(end);
    count_pairs(word, +1);
    for (size_t i = 0; i + 1 < tokens.size(); ++i)
      if (tokens[i] == merged || tokens[i + 1] == merged) changed.insert({tokens[i], tokens[i + 1]});
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Statistics, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

void Learner::read(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(text, begin);
    const std::string_view word = text.substr(begin, end - begin);
    if (const auto known = count_of_.find(word); known != count_of_.end())
      ++known->second;
    else
      count_of_.emplace(word, 1);
    begin = end;
  }
}

Tokenizer Learner::learn(int64_t vocabulary) const {
  constexpr int64_t kFewest = 256 + 1;
  require(
      vocabulary >= kFewest && vocabulary <= kMostTokens,
      fmt::format("vocabulary: expected {} to {} tokens (256 bytes, {}, and one for each merge), found {}",
                  kFewest, kMostTokens, kEndOfText, vocabulary));
  TokenizerParts parts{.divides_words = true};
  std::array<int32_t, 256> number{};
  for (const uint8_t byte : bytes_in_gpt2_order()) {
    number[byte] = static_cast<int32_t>(parts.tokens.size());
    parts.tokens.emplace_back(1, static_cast<char>(byte));
  }
  std::vector<Word> words;
  for (const auto& [text, count] : count_of_) {
    Word& word = words.emplace_back(Word{{}, count});
    for (const char byte : text) word.tokens.push_back(number[static_cast<uint8_t>(byte)]);
  }
  Pairs pairs(std::move(words));
  while (static_cast<int64_t>(parts.tokens.size()) + 1 < vocabulary) {
    const auto pair = pairs.most_frequent();
    if (!pair) break;
    const auto merged = static_cast<int32_t>(parts.tokens.size());
    parts.tokens.push_back(parts.tokens[static_cast<size_t>(pair->first)] +
                           parts.tokens[static_cast<size_t>(pair->second)]);
    parts.merges.push_back({pair->first, pair->second, merged});
    pairs.merge(*pair, merged);
  }
  parts.special.push_back(static_cast<int32_t>(parts.tokens.size()));
  parts.tokens.emplace_back(kEndOfText);
  return Tokenizer(std::move(parts));
}

}  // namespace lockstep::tokenizer
