#include "src/checkpoint/names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

#include "src/checkpoint/drafts.h"

namespace m3 {

namespace {

using Parts = std::vector<std::string_view>;

template <std::size_t N>
bool one_of(std::string_view value, const std::array<std::string_view, N>& list) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string join(const Parts& parts) {
  std::string text;
  for (const std::string_view part : parts) {
    if (!text.empty()) text += '.';
    text += part;
  }
  return text;
}

std::optional<std::size_t> layer_number(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;  // "03" is not how anybody writes layer 3
  return value;
}

constexpr std::array<std::string_view, 3> mlp_projections = {"gate_proj", "up_proj", "down_proj"};

// The experts' own names: w1 gate, w3 up, w2 down.
std::string_view expert_projection(std::string_view name) {
  if (name == "gate_proj") return "w1";
  if (name == "up_proj") return "w3";
  if (name == "down_proj") return "w2";
  return name;
}

// What stands below a layer, in the published spelling. `rest` may end anywhere (a module's prefix).
void canonical_layer(Parts& rest, bool moe) {
  if (rest.size() >= 3 && rest[0] == "self_attn" && rest[1] == "indexer") {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> spelled = {{{"q_proj", "index_q_proj"},
                                                                                       {"k_proj", "index_k_proj"},
                                                                                       {"q_norm", "index_q_norm"},
                                                                                       {"k_norm", "index_k_norm"}}};
    for (const auto& [from, to] : spelled) {
      if (rest[2] != from) continue;
      rest.erase(rest.begin() + 1);
      rest[1] = to;
      break;
    }
    return;
  }
  if (rest.size() == 1) {
    if (rest[0] == "mlp" || rest[0] == "block_sparse_moe") rest[0] = moe ? "block_sparse_moe" : "mlp";
    return;
  }
  if (!moe) {
    if (rest[0] == "block_sparse_moe" && (one_of(rest[1], mlp_projections) || rest[1] == "gate_up_proj")) {
      rest[0] = "mlp";
    }
    return;
  }
  constexpr std::array<std::string_view, 3> moe_parts = {"experts", "gate", "shared_experts"};
  if (rest[0] == "mlp" && one_of(rest[1], moe_parts)) rest[0] = "block_sparse_moe";
  if (rest[0] != "block_sparse_moe") return;
  if (rest[1] == "gate" && rest.size() >= 3 && rest[2] == "e_score_correction_bias") rest.erase(rest.begin() + 1);
  if (rest[1] == "experts" && rest.size() >= 4 && layer_number(rest[2])) rest[3] = expert_projection(rest[3]);
}

// Below "language_model." in the published spelling, "model." included; empty where this is no text name.
Parts text_parts(Parts c) {
  bool wrapped = false;
  if (c.size() >= 2 && c[0] == "model" && c[1] == "language_model") c.erase(c.begin());
  if (c[0] == "language_model") {
    wrapped = true;
    c.erase(c.begin());
    if (c.empty()) return {};
  }
  if (c[0] == "lm_head") return c;
  const bool inner = c[0] == "model";
  if (inner) c.erase(c.begin());
  if (c.empty()) return {};
  if (!inner && !wrapped) return {};
  constexpr std::array<std::string_view, 3> roots = {"embed_tokens", "norm", "layers"};
  if (!one_of(c[0], roots)) return {};
  c.insert(c.begin(), "model");
  return c;
}

Parts canonical_text(const Parts& stored, const std::vector<LayerKind>& layers) {
  Parts c = text_parts(stored);
  if (c.empty()) return {};
  if (c.size() >= 4 && c[1] == "layers") {
    const auto layer = layer_number(c[2]);
    if (!layer) return {};
    if (*layer < layers.size()) {
      Parts rest(c.begin() + 3, c.end());
      canonical_layer(rest, layers[*layer].moe);
      c.resize(3);
      c.insert(c.end(), rest.begin(), rest.end());
    }
  }
  c.insert(c.begin(), "language_model");
  return c;
}

Parts canonical_vision(Parts c) {
  constexpr std::array<std::string_view, 3> roots = {"vision_tower", "multi_modal_projector", "patch_merge_mlp"};
  if (c.size() >= 2 && c[0] == "model" && one_of(c[1], roots)) c.erase(c.begin());
  if (!one_of(c[0], roots)) return {};
  if (c[0] == "multi_modal_projector" && c.size() >= 2 && (c[1] == "merge_linear_1" || c[1] == "merge_linear_2")) {
    c[0] = "patch_merge_mlp";
    c[1].remove_prefix(std::string_view("merge_").size());
  }
  return c;
}

Parts canonical_tower(Parts c) {
  if (c.size() < 2) return c;
  Parts rest(c.begin() + 1, c.end());
  if (rest[0] == "vision_model") rest.erase(rest.begin());
  if (rest.size() >= 2 && rest[0] == "embeddings" && rest[1] == "proj") rest[1] = "patch_embedding";
  if (!rest.empty() && rest[0] == "layers") rest.insert(rest.begin(), "encoder");
  if (rest.size() >= 5 && rest[0] == "encoder" && rest[3] == "block_sparse_moe" &&
      (rest[4] == "fc1" || rest[4] == "fc2")) {
    rest[3] = "mlp";
  }
  rest.insert(rest.begin(), {"vision_tower", "vision_model"});
  return rest;
}

bool is_mtp(const Parts& c) {
  std::size_t at = 0;
  if (at < c.size() && c[at] == "language_model") ++at;
  if (at < c.size() && c[at] == "model") ++at;
  return at < c.size() && c[at] == "mtp";
}

// Splits the last component off as the part; packed experts have none of their own.
void split_part(const Parts& canonical, TensorName& name) {
  const std::string_view last = canonical.back();
  const bool packed = canonical.size() >= 3 && canonical[canonical.size() - 2] == "experts";
  if (packed) {
    for (const std::string_view projection : {std::string_view("gate_up_proj"), std::string_view("down_proj")}) {
      if (!last.starts_with(projection)) continue;
      const std::string_view tail = last.substr(projection.size());
      if (tail.empty() || tail == "_scale_inv" || tail == "_scale") {
        Parts module = canonical;
        module.back() = projection;
        name.module = join(module);
        name.part = tail.empty() ? "weight" : "weight_scale";
        return;
      }
    }
  }
  name.module = join(Parts(canonical.begin(), canonical.end() - 1));
  name.part = last == "weight_scale_inv" || last == "scale" ? "weight_scale" : std::string(last);
}

bool usable(const Parts& parts) {
  return !parts.empty() && std::none_of(parts.begin(), parts.end(), [](std::string_view p) { return p.empty(); });
}

// Empty where the name belongs to neither side.
Parts canonical_parts(const Parts& stored, const std::vector<LayerKind>& layers, NameKind& kind) {
  kind = NameKind::text;
  Parts parts = canonical_text(stored, layers);
  if (!parts.empty()) return parts;
  Parts c = canonical_vision(stored);
  if (c.empty()) return {};
  kind = NameKind::vision;
  return c[0] == "vision_tower" ? canonical_tower(c) : c;
}

}  // namespace

std::vector<std::string_view> split_name(std::string_view name) {
  Parts parts;
  while (true) {
    const auto dot = name.find('.');
    parts.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    name.remove_prefix(dot + 1);
  }
}

TensorName canonical_name(std::string_view stored, const std::vector<LayerKind>& layers) {
  TensorName name;
  const Parts parts = split_name(stored);
  if (!usable(parts)) return name;
  if (is_mtp(parts)) {
    name.kind = NameKind::ignored;
    return name;
  }
  const Parts canonical = canonical_parts(parts, layers, name.kind);
  if (canonical.size() < 3) {  // the shortest is language_model.lm_head.weight
    name.kind = draft_tensor(stored).empty() ? NameKind::unknown : NameKind::draft;
    return name;
  }
  split_part(canonical, name);
  return name;
}

std::string canonical_module(std::string_view name, const std::vector<LayerKind>& layers) {
  const Parts parts = split_name(name);
  if (!usable(parts)) return std::string(name);
  NameKind kind = NameKind::unknown;
  const Parts canonical = canonical_parts(parts, layers, kind);
  return canonical.empty() ? std::string(name) : join(canonical);
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  // Greedy with one backtracking point: the last '*' seen. Linear in practice, quadratic at worst.
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string_view from_layers(std::string_view name) {
  if (name.starts_with("layers.")) return name;
  const auto at = name.find(".layers.");
  return at == std::string_view::npos ? name : name.substr(at + 1);
}

}  // namespace m3
