#pragma once

#include <string>
#include <vector>

#include "run/serve/decision.h"
#include "run/serve/session_worker.h"

namespace lockstep::run {

inline std::string text(const ApplyClock& apply) {
  return "apply clock " + std::to_string(apply.clock) + " from slot " + std::to_string(apply.slot) +
         (apply.keep == kNoCopy ? "" : ", keep copy " + std::to_string(apply.keep));
}
inline std::string text(const ApplyPush& apply) {
  return "apply worker " + std::to_string(apply.worker) + " range " + std::to_string(apply.range) +
         " clock " + std::to_string(apply.clock) + ", missed " + std::to_string(apply.staleness);
}
inline std::string text(const AnswerPull& answer) {
  return "answer worker " + std::to_string(answer.worker) + " range " + std::to_string(answer.range) +
         " version " + std::to_string(answer.version) +
         (answer.copy == kNoCopy ? "" : " of copy " + std::to_string(answer.copy));
}
inline std::string text(const RefuseStep& refusal) {
  return "refuse worker " + std::to_string(refusal.worker) + " step " + std::to_string(refusal.step);
}
inline std::string text(const ReportLost& report) { return "lost worker " + std::to_string(report.worker); }
inline std::string text(const EndSession&) { return "end"; }

inline std::string text(const AskServer& ask) {
  return "ask server " + std::to_string(ask.server) + " for step " + std::to_string(ask.step) +
         (ask.version ? " at version " + std::to_string(*ask.version) : "");
}
inline std::string text(const ComputeStep& step) {
  return "compute step " + std::to_string(step.step) + " at version " + std::to_string(step.version);
}
inline std::string text(const PushRange& push) {
  return "push range " + std::to_string(push.range) + " to server " + std::to_string(push.server) +
         " clock " + std::to_string(push.clock) + " slot " + std::to_string(push.slot) +
         (push.stop ? " stop" : "");
}
inline std::string text(const LeaveServer& leave) { return "leave server " + std::to_string(leave.server); }

/// All that a server decides, or a worker does, before it has to hear something.
template <class Protocol>
std::vector<std::string> said(Protocol& protocol) {
  std::vector<std::string> all;
  const auto ask = [&] {
    if constexpr (requires { protocol.decide(); })
      return protocol.decide();
    else
      return protocol.next();
  };
  while (const auto next = ask())
    all.push_back(std::visit([](const auto& what) { return text(what); }, *next));
  return all;
}

}  // namespace lockstep::run
