#include "comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"

namespace lockstep::comm {
namespace {

/// Fields as one text: length-prefixed, so that values may contain anything.
std::string pack(const std::vector<AgreementField>& fields) {
  std::string packed;
  for (const auto& field : fields)
    packed += fmt::format("{} {} {} {}{}", static_cast<int>(field.code), field.name.size(),
                          field.value.size(), field.name, field.value);
  return packed;
}

std::vector<AgreementField> unpack(const std::string& packed) {
  std::vector<AgreementField> fields;
  size_t at = 0;
  const auto number = [&] {
    const size_t space = packed.find(' ', at);
    const int value = std::stoi(packed.substr(at, space - at));
    at = space + 1;
    return value;
  };
  while (at < packed.size()) {
    AgreementField field;
    field.code = static_cast<ExitCode>(number());
    const auto name_size = static_cast<size_t>(number()), value_size = static_cast<size_t>(number());
    field.name = packed.substr(at, name_size);
    field.value = packed.substr(at + name_size, value_size);
    at += name_size + value_size;
    fields.push_back(std::move(field));
  }
  return fields;
}

/// The ranks that hold each value of one field; "(absent)" where a rank has no such field.
std::map<std::string, std::vector<int>> holders(
    const std::vector<std::map<std::string, AgreementField>>& ranks, const std::string& name) {
  std::map<std::string, std::vector<int>> by_value;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto found = ranks[rank].find(name);
    if (found != ranks[rank].end() && found->second.value == kAgreesWithAny) continue;
    by_value[found == ranks[rank].end() ? "(absent)" : found->second.value].push_back(static_cast<int>(rank));
  }
  return by_value;
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", join(names, ", "));
}

void agree_on_outcome(Communicator& communicator, std::exception_ptr outcome,
                      std::chrono::milliseconds timeout) {
  std::string own;
  if (outcome) {
    try {
      std::rethrow_exception(outcome);
    } catch (const Error& error) {
      own = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      own = fmt::format("{} {}", static_cast<int>(ExitCode::internal), error.what());
    }
  }
  const auto outcomes = gather_texts(communicator, own, timeout);
  std::map<std::string, std::vector<int>> failures;
  for (size_t rank = 0; rank < outcomes.size(); ++rank)
    if (!outcomes[rank].empty()) failures[outcomes[rank]].push_back(static_cast<int>(rank));
  if (failures.empty()) return;
  std::vector<std::string> messages;
  int code = 0;
  for (const auto& [text, ranks] : failures) {
    const size_t space = text.find(' ');
    if (code == 0) code = std::stoi(text.substr(0, space));
    // What all ranks say alike needs no list of ranks.
    messages.push_back(ranks.size() == outcomes.size()
                           ? text.substr(space + 1)
                           : fmt::format("{}: {}", rank_list(ranks), text.substr(space + 1)));
  }
  throw CollectiveError(join(messages, "\n"), static_cast<ExitCode>(code));
}

void agree_on_fields(Communicator& communicator, const std::vector<AgreementField>& fields,
                     std::chrono::milliseconds timeout) {
  const auto texts = gather_texts(communicator, pack(fields), timeout);
  if (std::all_of(texts.begin(), texts.end(), [&](const auto& text) { return text == texts[0]; })) return;

  std::vector<std::map<std::string, AgreementField>> ranks;
  std::vector<std::pair<std::string, ExitCode>> names;  // in the order in which they were first seen
  for (const auto& text : texts) {
    ranks.emplace_back();
    for (auto& field : unpack(text)) {
      if (std::none_of(names.begin(), names.end(), [&](const auto& n) { return n.first == field.name; }))
        names.emplace_back(field.name, field.code);
      ranks.back().emplace(field.name, std::move(field));
    }
  }
  std::vector<std::string> differences;
  ExitCode code = ExitCode::usage;
  for (const auto& [name, field_code] : names) {
    const auto by_value = holders(ranks, name);
    if (by_value.size() < 2) continue;
    const auto majority =
        std::max_element(by_value.begin(), by_value.end(), [](const auto& a, const auto& b) {
          // Among equally many, rank 0's value counts as the right one.
          return std::pair(a.second.size(), a.second[0] == 0) < std::pair(b.second.size(), b.second[0] == 0);
        });
    if (differences.empty()) code = field_code;
    for (const auto& [value, holding] : by_value)
      if (value != majority->first)
        differences.push_back(fmt::format("{}: {} has {}, {} {} {}", name, rank_list(holding), value,
                                          rank_list(majority->second),
                                          majority->second.size() == 1 ? "has" : "have", majority->first));
  }
  if (differences.empty()) return;
  constexpr size_t kMost = 8;
  const size_t more = differences.size() > kMost ? differences.size() - kMost : 0;
  differences.resize(std::min(differences.size(), kMost));
  throw CollectiveError(
      fmt::format("the ranks do not run the same job:\n  {}{}\nStart every rank with the same program, "
                  "config, overrides and data.",
                  join(differences, "\n  "), more > 0 ? fmt::format("\n  and {} more", more) : ""),
      code);
}

}  // namespace lockstep::comm
