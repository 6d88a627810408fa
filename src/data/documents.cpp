#include "data/documents.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "base/hash.h"
#include "data/transforms/wrapped_dataset.h"

namespace lockstep::data {
namespace {

class WithDocuments : public WrappedDataset {
 public:
  WithDocuments(std::shared_ptr<const Dataset> base, std::optional<int32_t> end_of_text)
      : WrappedDataset(std::move(base)), end_of_text_(end_of_text) {
    const auto place_of = [&](std::string_view name) {
      const auto found = std::ranges::find(fields_, name, &Field::name);
      ensure(found != fields_.end(), "samples have tokens and labels");
      return static_cast<size_t>(found - fields_.begin());
    };
    tokens_ = place_of("tokens");
    labels_ = place_of(kLabelField);
    const TensorSpec spec = fields_[tokens_].spec;
    ensure(spec == fields_[labels_].spec && spec.dtype == DType::int32, "each token has a label");
    context_ = spec.shape.count();
    fields_.push_back({std::string(kDocumentsField), spec});
  }

  int64_t vocabulary(std::string_view field) const override {
    return field == kDocumentsField ? context_ + 1 : base_->vocabulary(field);
  }
  LargestValue largest(std::string_view field, int64_t ignored) const override {
    return field == kDocumentsField ? Dataset::largest(field, ignored) : base_->largest(field, ignored);
  }
  uint64_t identity() const override {
    const int64_t decides = end_of_text_ ? *end_of_text_ : -1;
    return hash_combine(base_->identity(), hash64(&decides, sizeof decides));
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    auto* const documents = reinterpret_cast<int32_t*>(destinations.back());
    const auto of_base = destinations.first(destinations.size() - 1);
    if (documents == nullptr) return base_->read(key, of_base);
    // Tokens and labels are needed, also if nobody else asks for them.
    std::array<std::byte*, kMostFields> all{};
    std::ranges::copy(of_base, all.begin());
    std::vector<int32_t> own;
    for (const size_t field : {tokens_, labels_})
      if (all[field] == nullptr) {
        own.resize(static_cast<size_t>(2 * context_));
        all[field] = reinterpret_cast<std::byte*>(own.data() + (field == tokens_ ? 0 : context_));
      }
    base_->read(key, std::span<std::byte* const>(all).first(of_base.size()));
    const auto* const tokens = reinterpret_cast<const int32_t*>(all[tokens_]);
    const auto* const labels = reinterpret_cast<const int32_t*>(all[labels_]);
    int32_t document = 0;
    for (int64_t i = 0; i < context_; ++i) {
      if (end_of_text_ && tokens[i] == *end_of_text_) ++document;
      documents[i] = labels[i] < 0 ? -1 : document;
    }
  }

 private:
  std::optional<int32_t> end_of_text_;
  size_t tokens_ = 0, labels_ = 0;
  int64_t context_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> with_documents(std::shared_ptr<const Dataset> tokens,
                                              std::optional<int32_t> end_of_text) {
  if (!tokens) return nullptr;
  return std::make_shared<WithDocuments>(std::move(tokens), end_of_text);
}

DatasetPair with_documents(DatasetPair tokens, std::optional<int32_t> end_of_text) {
  return {with_documents(std::move(tokens.train), end_of_text),
          with_documents(std::move(tokens.eval), end_of_text)};
}

std::optional<int32_t> begin_of_documents(const DataOptions& options, const tokenizer::Tokenizer* tokenizer) {
  const DocumentOptions& documents = options.documents;
  if (options.kind == DataKind::synthetic) return 0;
  if (options.kind == DataKind::tokens) {
    if (documents.end_of_text >= 0) return static_cast<int32_t>(documents.end_of_text);
    return tokenizer == nullptr ? std::nullopt : tokenizer->end_of_text();
  }
  const std::string& character = documents.end_of_text_character;
  if (options.kind != DataKind::text || tokenizer == nullptr || character.size() != 1) return {};
  const int32_t token = tokenizer->token_of(static_cast<uint8_t>(character[0]));
  return token < 0 ? std::nullopt : std::optional(token);
}

}  // namespace lockstep::data
