// The pieces of config.json's reading; config.cpp puts them together.
#pragma once

#include "src/checkpoint/config.h"
#include "src/checkpoint/json_fields.h"

namespace m3 {

// Largest size of any one dimension: products of three stay inside 63 bits, and no model comes near.
inline constexpr std::int64_t dimension_limit = std::int64_t{1} << 20;

// Which layers are sparse and which have experts, the block choice, and reuse across layers (spec §1.3, §1.5, §3.15).
// `config` holds num_hidden_layers and num_key_value_heads already.
void parse_layers(const JsonFields& text, ModelConfig& config);

// rope_theta, the rotary width and YaRN, from `rope_parameters`, `rope_scaling` or the flat keys (addenda §13).
void parse_rope(const JsonFields& text, ModelConfig& config);

// `vision_config` and the projector's keys beside it (spec §1.1, §1.4).
VisionConfig parse_vision(const JsonFields& top, const JsonFields& vision, const ModelConfig& config);

}  // namespace m3
