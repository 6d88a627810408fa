#include "observe/machine/subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep::observe {
namespace {

constexpr std::string_view kFields[] = {kKindField, "host", "rank", "gpu", "slice", "uuid", "model"};

std::string text_of(const MetricsRow& row, std::string_view name) {
  const auto found = row.values().find(name);
  const std::string* text = found == row.values().end() ? nullptr : std::get_if<std::string>(&found->second);
  return text == nullptr ? "" : *text;
}

}  // namespace

std::vector<std::pair<std::string, MetricValue>> fields_of(const MachineSubject& subject) {
  using Kind = MachineSubject::Kind;
  std::vector<std::pair<std::string, MetricValue>> fields{{kKindField, kMachineKind}, {"host", subject.host}};
  if (subject.kind != Kind::host) fields.emplace_back("rank", static_cast<double>(subject.rank));
  if (subject.kind != Kind::gpu) return fields;
  fields.emplace_back("gpu", static_cast<double>(subject.gpu));
  if (subject.slice) fields.emplace_back("slice", static_cast<double>(*subject.slice));
  fields.emplace_back("uuid", subject.uuid);
  fields.emplace_back("model", subject.model);
  return fields;
}

bool is_subject_field(std::string_view name) { return std::ranges::find(kFields, name) != std::end(kFields); }

std::optional<MachineSubject> subject_of(const MetricsRow& row) {
  using Kind = MachineSubject::Kind;
  if (text_of(row, kKindField) != kMachineKind) return std::nullopt;
  MachineSubject subject{.host = text_of(row, "host"), .slice = {}, .uuid = {}, .model = {}};
  if (!row.has("rank")) return subject;
  subject.kind = Kind::process;
  subject.rank = static_cast<int>(row.number("rank"));
  if (!row.has("gpu")) return subject;
  subject.kind = Kind::gpu;
  subject.gpu = static_cast<int>(row.number("gpu"));
  if (row.has("slice")) subject.slice = static_cast<int>(row.number("slice"));
  subject.uuid = text_of(row, "uuid");
  subject.model = text_of(row, "model");
  return subject;
}

std::string group_of(const MachineSubject& subject, bool several_hosts) {
  using Kind = MachineSubject::Kind;
  // Ranks are numbered across hosts.
  if (subject.kind == Kind::process) return fmt::format("rank{}", subject.rank);
  std::string group = subject.kind == Kind::host ? "machine" : fmt::format("gpu{}", subject.gpu);
  if (subject.slice) group += fmt::format(".slice{}", *subject.slice);
  return several_hosts ? fmt::format("{}.{}", subject.host, group) : group;
}

}  // namespace lockstep::observe
