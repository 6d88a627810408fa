#include "checkpoint/strict_json.h"
#include "exchange/family.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {
      R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_ctx":1024,"n_embd":768,"n_layer":12,)"
      R"("n_head":12,"resid_pdrop":0.1,"embd_pdrop":0.1,"attn_pdrop":0.1,"layer_norm_epsilon":1e-05,)"
      R"("activation_function":"gelu_new"})",
      R"({"model_type":"llama","vocab_size":32000,"hidden_size":64,"intermediate_size":176,"num_hidden_layers":2,)"
      R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":128,"rms_norm_eps":1e-06,)"
      R"("rope_theta":10000.0,"hidden_act":"silu","tie_word_embeddings":false})",
  };
}

void parse(std::string_view bytes) {
  const auto json = checkpoint::parse_strict_json(std::string(bytes), "config.json");
  const exchange::Family& family = exchange::family_of(json, "config.json");
  if (family.preset_text == nullptr) return;
  family.preset_text(json, 0);
  family.preset_text(json, 16);
}

}  // namespace lockstep::fuzz
