#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "src/base/error.h"
#include "src/checkpoint/config_parts.h"

namespace m3 {

namespace {

using Switches = std::optional<std::vector<bool>>;

// A list of layer names, one of two words each.
Switches named_switches(const JsonFields& text, const std::string& key, std::string_view off, std::string_view on,
                        std::size_t count) {
  const auto names = text.texts(key);
  if (!names) return std::nullopt;
  if (names->size() != count) text.refuse(key, fmt::format("a list with one entry for each of the {} layers", count));
  std::vector<bool> result;
  for (std::size_t layer = 0; layer < count; ++layer) {
    const std::string& name = (*names)[layer];
    if (name != off && name != on) {
      fail("{}: {}[{}] is {}; accepted: \"{}\" or \"{}\"", text.origin(), text.full_key(key), layer,
           describe(Json(name)), off, on);
    }
    result.push_back(name == on);
  }
  return result;
}

// One fact in two spellings: whichever is there, and no contradiction.
Switches agreed(const Switches& first, const Switches& second, const JsonFields& where, const std::string& key,
                const std::string& other) {
  if (first && second && *first != *second) where.refuse(key, "the same layers as " + other);
  return first ? first : second;
}

// An integer under its name in sparse_attention_config or under its flat name in a re-saved config.
std::optional<std::int64_t> either(const JsonFields& text, const std::optional<JsonFields>& sparse,
                                   const std::string& flat, const std::string& nested, std::int64_t high) {
  const auto outer = text.integer(flat, 0, high);
  const auto inner = sparse ? sparse->integer(nested, 0, high) : std::nullopt;
  if (outer && inner && *outer != *inner) {
    text.refuse(flat, fmt::format("the value of sparse_attention_config.{}, {}", nested, *inner));
  }
  return inner ? inner : outer;
}

void fixed(const JsonFields& text, const std::optional<JsonFields>& sparse, const std::string& flat,
           const std::string& nested, std::int64_t accepted) {
  text.only(flat, accepted);
  if (sparse) sparse->only(nested, accepted);
}

// ceil(tokens / 128): the block counts' older spelling.
std::optional<int> blocks_of_tokens(const std::optional<JsonFields>& sparse, const std::string& key) {
  const auto tokens = sparse ? sparse->integer(key, 0, 1 << 24) : std::nullopt;
  if (!tokens) return std::nullopt;
  return static_cast<int>((*tokens + block_size - 1) / block_size);
}

void parse_block_choice(const JsonFields& text, const std::optional<JsonFields>& sparse, ModelConfig& config) {
  fixed(text, sparse, "index_n_heads", "sparse_num_index_heads", config.num_key_value_heads);
  fixed(text, sparse, "index_head_dim", "sparse_index_dim", head_dim);
  fixed(text, sparse, "index_block_size", "sparse_block_size", block_size);
  if (sparse) sparse->only_one_of("sparse_score_type", {"max"});
  const auto topk = either(text, sparse, "index_topk_blocks", "sparse_topk_blocks", 1 << 16);
  if (!topk || *topk < 1) {
    const JsonFields& where = sparse ? *sparse : text;
    const std::string key = sparse ? "sparse_topk_blocks" : "index_topk_blocks";
    if (topk) where.refuse(key, "at least 1");
    where.missing(key, "MiniMax-M3 has 16; it is not guessed");
  }
  config.topk_blocks = static_cast<int>(*topk);
  const auto init = sparse ? sparse->integer("sparse_init_block", 0, 1 << 16) : std::nullopt;
  config.init_blocks = init ? static_cast<int>(*init) : blocks_of_tokens(sparse, "sparse_init_tokens").value_or(0);
  const auto local = either(text, sparse, "index_local_blocks", "sparse_local_block", 1 << 16);
  const auto local_tokens = blocks_of_tokens(sparse, "sparse_local_tokens");
  config.local_blocks = local ? static_cast<int>(*local) : local_tokens ? *local_tokens + 1 : 1;
  if (config.init_blocks + config.local_blocks > config.topk_blocks) {
    fail(
        "{}: {} forced blocks at the start and {} at the end do not fit into {} chosen blocks "
        "(sparse_init_block, sparse_local_block, sparse_topk_blocks)",
        text.origin(), config.init_blocks, config.local_blocks, config.topk_blocks);
  }
}

// Spec §3.15. Counted over sparse layers alone.
void parse_reuse(const JsonFields& text, ModelConfig& config) {
  if (!text.boolean("use_index_cache").value_or(false)) return;
  IndexReuse& reuse = config.reuse;
  reuse.frequency = static_cast<int>(text.integer("index_topk_freq", INT32_MIN, 1 << 16).value_or(1));
  reuse.pattern = text.text("index_topk_pattern").value_or("");
  reuse.offset = static_cast<int>(text.integer("index_skip_topk_offset", 0, 1 << 16).value_or(0));
  reuse.enabled = !reuse.pattern.empty() || reuse.frequency > 1;
  if (!reuse.enabled) return;
  int ordinal = 0;
  for (LayerKind& layer : config.layers) {
    if (!layer.sparse_attention) continue;
    const auto position = static_cast<std::size_t>(ordinal);
    layer.reuses_blocks = reuse.pattern.empty() ? std::max(ordinal - reuse.offset, 0) % reuse.frequency != 0
                                                : position < reuse.pattern.size() && reuse.pattern[position] == 'S';
    if (layer.reuses_blocks && ordinal == 0) {
      text.refuse("index_topk_pattern", "a pattern whose first sparse layer computes its blocks (not 'S')");
    }
    ++ordinal;
  }
}

}  // namespace

void parse_layers(const JsonFields& text, ModelConfig& config) {
  const auto count = static_cast<std::size_t>(config.num_hidden_layers);
  const auto moe = agreed(named_switches(text, "mlp_layer_types", "dense", "sparse", count),
                          text.switches("moe_layer_freq", count), text, "mlp_layer_types", "moe_layer_freq");
  const auto sparse = text.object("sparse_attention_config");
  const Switches freq = sparse ? sparse->switches("sparse_attention_freq", count) : std::nullopt;
  const bool use_sparse = !sparse || sparse->boolean("use_sparse_attention").value_or(true);
  if (!use_sparse && freq && std::find(freq->begin(), freq->end(), true) != freq->end()) {
    sparse->refuse("use_sparse_attention", "true, since sparse_attention_freq has a 1");
  }
  const auto attention = agreed(named_switches(text, "layer_types", "full_attention", "minimax_m3_sparse", count), freq,
                                text, "layer_types", "sparse_attention_config.sparse_attention_freq");
  if (!use_sparse && attention && std::find(attention->begin(), attention->end(), true) != attention->end()) {
    sparse->refuse("use_sparse_attention", "true, since layer_types has sparse layers");
  }
  const Switches scored = sparse ? sparse->switches("sparse_disable_index_value", count) : std::nullopt;

  for (std::size_t layer = 0; layer < count; ++layer) {
    LayerKind kind;
    kind.moe = !moe || (*moe)[layer];
    kind.sparse_attention = attention && (*attention)[layer];
    if (kind.sparse_attention && scored && !(*scored)[layer]) {
      fail("{}: {}[{}] is 0; accepted: 1 on a sparse layer (an indexer with values is not M3's)", text.origin(),
           sparse->full_key("sparse_disable_index_value"), layer);
    }
    config.layers.push_back(kind);
  }
  if (config.sparse_layers() == 0) return;
  parse_block_choice(text, sparse, config);
  parse_reuse(text, config);
}

}  // namespace m3
