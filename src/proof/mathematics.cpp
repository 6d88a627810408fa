#include "proof/mathematics.h"

#include "proof/activation_proof.h"
#include "proof/flow_proof.h"
#include "proof/gradient_proof.h"
#include "proof/metrics_proof.h"
#include "proof/ownership_proof.h"
#include "proof/parameter_proof.h"
#include "proof/residual_proof.h"
#include "proof/symbolic_communication.h"
#include "proof/symbolic_computation.h"
#include "proof/verdict_proof.h"

namespace lockstep::proof {

Mathematics::Mathematics(const ProgramWorld& world, const ModelFlow* flow, Findings& findings)
    : machine_(world), findings_(findings) {
  proofs_.push_back(std::make_unique<ParameterProof>(machine_, findings_));
  proofs_.push_back(std::make_unique<ActivationProof>(machine_, findings_));
  proofs_.push_back(std::make_unique<GradientProof>(machine_, findings_));
  proofs_.push_back(std::make_unique<ResidualProof>(machine_, findings_));
  proofs_.push_back(std::make_unique<MetricsProof>(machine_, findings_));
  proofs_.push_back(std::make_unique<VerdictProof>(machine_, findings_));
  proofs_.push_back(std::make_unique<OwnershipProof>(machine_, findings_));
  if (flow != nullptr) proofs_.push_back(std::make_unique<FlowProof>(machine_, findings_, *flow));
}

void Mathematics::local(const Place& at) {
  for (const auto& proof : proofs_) proof->before(at);
  compute(machine_, at);
}

void Mathematics::transfer(const Place& from, const program::Operand& send, const Place& to,
                           const program::Operand& receive) {
  proof::transfer(machine_, from, send, to, receive);
}

void Mathematics::collective(const std::vector<Place>& members) {
  for (const auto& proof : proofs_) proof->before_collective(members);
  proof::collective(machine_, members);
}

void Mathematics::push(const Place& worker, const program::Operand& pushed, int server, int serve) {
  for (const auto& proof : proofs_) proof->before_push(worker, pushed, server, serve);
}

void Mathematics::pull(const Place& worker, const program::Operand& parameters, int server, int serve) {
  proof::pull(machine_, worker, parameters, server, serve);
}

void Mathematics::finish(int iterations) {
  for (const auto& proof : proofs_) proof->finish(iterations);
}

}  // namespace lockstep::proof
