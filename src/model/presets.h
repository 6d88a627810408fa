#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/model.h"

namespace lockstep::model {

/// Fully connected classifier with ReLU between layers; flattens its input first.
struct MlpOptions {
  Shape image{28, 28, 1};
  std::vector<int64_t> hidden{256, 128};
  int64_t classes = 10;
  float dropout = 0;          ///< after each hidden layer
  float label_smoothing = 0;  ///< of the loss
};
ModelSpec make_mlp(const MlpOptions& options);

/// Makes a preset's model read "label_mix" beside "label": what its loss needs if samples are mixed.
void read_label_mixtures(ModelSpec& model);

/// LeNet-5 with ReLU and max pooling: conv 6 5x5 (padding 2), pool, conv 16 5x5, pool, 120, 84, classes.
struct LenetOptions {
  Shape image{28, 28, 1};
  int64_t classes = 10;
  float dropout = 0;          ///< before the last two linear layers
  bool batch_norm = false;    ///< after each convolution
  float label_smoothing = 0;  ///< of the loss
};
ModelSpec make_lenet(const LenetOptions& options);

/// torchvision's ResNet, version 1.5: the stride of a bottleneck is that of its 3x3 convolution. Layers have
/// torchvision's names. Initialisation as there: convolutions N(0, 2 / (channels kernel²)), norms 1 and 0, fc
/// uniform in ±1/sqrt(in).
struct ResnetOptions {
  Shape image{224, 224, 3};
  int64_t depth = 50;  ///< 18, 34, 50, 101 or 152
  int64_t classes = 1000;
  bool small_stem = false;       ///< conv1 is 3x3 with stride 1, and there is no pooling after it
  bool zero_init = false;        ///< the last norm of each block starts at 0
  int64_t width = 64;            ///< channels of conv1
  int64_t groups = 1;            ///< of the 3x3 convolution of bottlenecks
  int64_t width_per_group = 64;  ///< channels of such a group in layer1, for 64 of `width`
  float label_smoothing = 0;     ///< of the loss
};
ModelSpec make_resnet(const ResnetOptions& options);

/// torchvision's VGG, whose layers have its names. Initialisation as there: convolutions N(0, 2 / (channels
/// kernel²)), linear layers N(0, 0.01), biases 0. The first linear layer reads all pixels that pooling
/// leaves; torchvision pools to 7 x 7 before, which leaves images of 224 x 224 as they are.
struct VggOptions {
  Shape image{224, 224, 3};  ///< at least 32 x 32
  int64_t depth = 16;        ///< 11, 13, 16 or 19
  int64_t classes = 1000;
  bool batch_norm = false;
  float dropout = 0.5f;  ///< after the first two linear layers
  int64_t width = 64;    ///< channels of the first convolution
  int64_t hidden = 4096;
  float label_smoothing = 0;  ///< of the loss
};
ModelSpec make_vgg(const VggOptions& options);

/// GPT-2's architecture: pre-norm blocks of attention and a 4x MLP with GELU. Layers have the names of
/// Hugging Face (wte, wpe, h.{i}.ln_1, h.{i}.attn.c_attn, ...). Initialisation as in GPT-2: N(0, 0.02),
/// residual projections N(0, 0.02 / sqrt(2 layers)), biases 0.
struct GptOptions {
  int64_t vocabulary = 0;
  int64_t context = 0;  ///< tokens in a sample
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  float dropout = 0;
  bool bias = true;
  bool tied_head = true;      ///< the head's weight is wte.weight
  float label_smoothing = 0;  ///< of the loss
  float epsilon = 1e-5f;      ///< of the layer norms
  GeluKind gelu = GeluKind::tanh;
  bool operator==(const GptOptions&) const = default;
};
ModelSpec make_gpt(const GptOptions& options);

/// Llama's architecture: pre-norm blocks of attention with rotary positions and grouped keys, and of a gated
/// MLP, down(silu(gate(x)) up(x)); RMS norms, no biases. Layers have the names of Hugging Face, except that
/// q_proj, k_proj and v_proj are one layer, qkv_proj, with their rows one after another. All weights are
/// drawn from N(0, init_std), as Hugging Face does; those of norms are 1.
struct LlamaOptions {
  int64_t vocabulary = 0;
  int64_t context = 0;  ///< tokens in a sample
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_value_heads = 0;  ///< divides heads; 0: the same
  int64_t width = 0;
  int64_t hidden = 0;  ///< units of the MLP; 0: 8/3 of width, rounded up to a multiple of 64
  float theta = 10000;
  float epsilon = 1e-5f;
  float init_std = 0.02f;
  bool tied_head = false;     ///< the head's weight is embed_tokens.weight
  float label_smoothing = 0;  ///< of the loss
  float scaling_factor = 0;   ///< of rotary positions, as in RotaryEmbedding
  float low_frequency_factor = 1;
  float high_frequency_factor = 4;
  int64_t original_positions = 8192;
  bool operator==(const LlamaOptions&) const = default;
};
ModelSpec make_llama(const LlamaOptions& options);

/// An embedding, layers of LSTM, and a linear layer, with the names of PyTorch's word_language_model example:
/// encoder, rnn.l0, ..., decoder. Initialisation as there: encoder and decoder uniform in ±0.1, decoder's
/// bias 0, everything of an LSTM uniform in ±1/sqrt(units).
struct LstmOptions {
  int64_t vocabulary = 0;
  int64_t context = 0;  ///< tokens in a sample
  int64_t layers = 1;
  int64_t width = 0;           ///< of the embedding
  int64_t units = 0;           ///< of each layer; 0: width
  float dropout = 0;           ///< before and after each layer
  int64_t classes = 0;         ///< of texts, whose "mask" is read; 0: a language model
  bool bidirectional = false;  ///< classifiers
  bool pools_last = false;     ///< classifiers: the last state of each direction, not the mean of the outputs
  bool tied_head = false;      ///< language models: decoder's weight is encoder's
  float label_smoothing = 0;   ///< of the loss
};
ModelSpec make_lstm(const LstmOptions& options);

/// torchvision's vision transformer: patches as a convolution, a class token, learned positions, and pre-norm
/// blocks of attention and an MLP. Layers have torchvision's names, but for `in_proj`, whose parameters are
/// in_proj_weight and in_proj_bias there. Initialisation as there: conv_proj N(0, 1 / fan-in), which
/// torchvision truncates at ±2, many deviations away; positions N(0, 0.02²); in_proj and MLPs uniform in
/// ±sqrt(6 / (in + out)) (Xavier), out_proj in ±1/sqrt(in); the MLPs' biases N(0, 1e-12); the class token,
/// the head and all other biases 0.
struct VitOptions {
  Shape image{224, 224, 3};
  int64_t patch = 16;  ///< divides the image's sides
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t width = 768;
  int64_t hidden = 0;  ///< of the MLP; 0: four times the width
  int64_t classes = 1000;
  float dropout = 0;            ///< after the positions, and at the end of each branch
  float attention_dropout = 0;  ///< of attention's weights
  bool pools_mean = false;      ///< the mean of all patches in place of a class token
  float epsilon = 1e-6f;        ///< of the layer norms
  float label_smoothing = 0;    ///< of the loss
  GeluKind gelu = GeluKind::erf;
};
ModelSpec make_vit(const VitOptions& options);

}  // namespace lockstep::model
