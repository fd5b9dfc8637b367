// Configs written from the specification's tables.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace m3::test {

// MiniMax-M3's own values (spec §1.1-1.4).
nlohmann::json published_config();

// Three layers of the same architecture, a few hundred kilobytes of weights: layer 0 dense, 1 and 2 sparse with 4 experts.
// Every width is a multiple of 32.
nlohmann::json small_config();

// small_config() as transformers saves it: flat index_* keys, layer_types, rope_parameters.
nlohmann::json resaved_config();

}  // namespace m3::test
