// How an Inspection is printed.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "src/cli/inspect_command.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* counted =
    "attention, indexer, dense MLP, chosen and shared experts, router, lm_head; not counted: embedding table, norms, "
    "correction bias, vision";

// 427040140160 -> "427,040,140,160"
std::string grouped(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string result;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

std::string gigabytes(std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", size / 1e9);
  return bytes >= 1'000'000 ? fmt::format("{:.2f} MB", size / 1e6) : fmt::format("{:.2f} kB", size / 1e3);
}

std::string attention_text(const ModelConfig& config, const LayerKind& kind) {
  if (!kind.sparse_attention) return "dense attention";
  std::string text = fmt::format("sparse attention, {} blocks of {} ({} at the start and {} at the end forced)",
                                 config.topk_blocks, block_size, config.init_blocks, config.local_blocks);
  return kind.reuses_blocks ? text + ", the last computed choice reused" : text;
}

std::string mlp_text(const ModelConfig& config, const LayerKind& kind) {
  if (!kind.moe) return fmt::format("dense MLP of {}", config.dense_intermediate_size);
  return fmt::format("{} of {} experts of {}, shared expert of {}", config.num_experts_per_tok,
                     config.num_local_experts, config.intermediate_size, config.shared_intermediate_size);
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return fmt::format("{:.2f} %", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void add_model(std::string& out, const Inspection& i) {
  const ModelConfig& c = i.config;
  out += fmt::format("{}\n  MiniMax-M3 layout, {}\n", i.path.string(),
                     i.weights_read ? "configuration and weights" : "configuration alone");
  out += fmt::format("  hidden {}, {} layers, {} query and {} KV heads of {}, vocabulary {}, context {}{}\n",
                     c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads, head_dim,
                     c.vocab_size, c.max_context(), c.yarn ? fmt::format(" (YaRN x{})", c.yarn->factor) : "");
  out += fmt::format("  quantisation: {}; {}\n", i.quantization, c.vision ? "with a vision tower" : "text alone");
}

void add_parameters(std::string& out, const Inspection& i) {
  out += "\nparameters\n";
  for (std::size_t g = 0; g < parameter_groups; ++g) {
    if (i.groups[g].parameters == 0) continue;
    out += fmt::format("  {:<20} {:>19}  {:>8}\n", parameter_group_name(static_cast<ParameterGroup>(g)),
                       grouped(i.groups[g].parameters), percent(i.groups[g].parameters, i.total.parameters));
  }
  out += fmt::format("  {:<20} {:>19}  in {} text and {} vision tensors as published\n", "total",
                     grouped(i.total.parameters), grouped(i.text_tensors), grouped(i.vision_tensors));
  out += fmt::format("  {:<20} {:>19}  ({})\n", "active per token", grouped(i.active.total), counted);
  out += fmt::format("  {:<20} {:>19}\n", "  with embedding", grouped(i.active.with_embedding));
}

void add_bytes(std::string& out, const Inspection& i) {
  out += fmt::format("\nmatrices of the text model by format{}\n", i.weights_read ? "" : " (as the config promises)");
  for (const auto& [format, count] : i.formats) {
    out += fmt::format("  {:<8} {:>7} matrices {:>19} parameters {:>12}\n", format, grouped(count.matrices),
                       grouped(count.parameters), gigabytes(count.bytes));
  }
  if (i.weights_read) {
    out +=
        fmt::format("stored: {} tensors, {} bytes of text, {} of vision, {} in files{}\n", grouped(i.stored_tensors),
                    grouped(i.text_bytes), grouped(i.vision_bytes), grouped(i.file_bytes),
                    i.skipped_tensors == 0 ? "" : fmt::format(", {} mtp tensors skipped", grouped(i.skipped_tensors)));
  }
  out += "\nbytes of this model in each variant, vision included\n";
  for (const Variant& variant : i.variants) {
    out += fmt::format("  {:<26} {:>19} {:>12}\n", variant.name, grouped(variant.bytes), gigabytes(variant.bytes));
  }
}

void add_cache(std::string& out, const Inspection& i) {
  out += fmt::format("\ncache, bytes per token (and at the whole context of {})\n", i.config.max_context());
  for (const CacheCost& cost : i.caches) {
    const double all = static_cast<double>(cost.bytes_per_token) * static_cast<double>(i.config.max_context());
    out += fmt::format("  K/V {:<5} index-K {:<5} {:>10}  {:>9.3f} KiB  {:>9.2f} GiB\n", cost.kv_dtype,
                       cost.index_dtype, grouped(cost.bytes_per_token),
                       static_cast<double>(cost.bytes_per_token) / 1024, all / (1024.0 * 1024 * 1024));
  }
}

void add_layers(std::string& out, const Inspection& i) {
  out += "\nlayers\n";
  for (const LayerRun& run : i.layers) {
    const std::string range =
        run.first == run.last ? std::to_string(run.first) : fmt::format("{}-{}", run.first, run.last);
    out += fmt::format("  {:<7} {}; {}\n", range, attention_text(i.config, run.kind), mlp_text(i.config, run.kind));
  }
  out += "\ntensor schemes\n";
  for (const Scheme& scheme : i.schemes) {
    out += fmt::format("  {:<52} {:<6} [{}, {}] x {}\n", scheme.modules, scheme.format, scheme.rows, scheme.columns,
                       scheme.count);
  }
}

void add_ranges(std::string& out, const Inspection& i) {
  if (i.ranges.empty()) return;
  out += fmt::format("\n{:<54} {:>12} {:>12} {:>12} {:>10} {:>10} {:>10}\n", "values read", "lowest", "highest", "rms",
                     "zero rows", "not finite", "bad scales");
  for (const ValueRange& range : i.ranges) {
    out +=
        fmt::format("  {:<52} {:>12.5g} {:>12.5g} {:>12.5g} {:>10} {:>10} {:>10}\n", range.modules, range.lowest,
                    range.highest, std::sqrt(range.mean_square), range.zero_rows, range.not_finite, range.bad_scales);
  }
}

void add_problems(std::string& out, const Inspection& i) {
  if (!i.failure.empty()) {
    out += fmt::format("\nthe weight files cannot be read: {}\n", i.failure);
  } else if (!i.problems.empty()) {
    out += fmt::format("\nproblems: {}{}\n", i.problems.all().size(), i.problems.text());
  } else if (i.weights_read) {
    out += fmt::format("\nno problems{}\n", i.ranges.empty() ? " (--deep reads the values too)" : "");
  }
}

Json config_json(const ModelConfig& c) {
  return {{"hidden_size", c.hidden_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.num_key_value_heads},
          {"head_dim", head_dim},
          {"intermediate_size", c.intermediate_size},
          {"shared_intermediate_size", c.shared_intermediate_size},
          {"dense_intermediate_size", c.dense_intermediate_size},
          {"vocab_size", c.vocab_size},
          {"num_local_experts", c.num_local_experts},
          {"num_experts_per_tok", c.num_experts_per_tok},
          {"topk_blocks", c.topk_blocks},
          {"init_blocks", c.init_blocks},
          {"local_blocks", c.local_blocks},
          {"max_context", c.max_context()},
          {"tie_word_embeddings", c.tie_word_embeddings}};
}

Json parameters_json(const Inspection& i) {
  Json groups = Json::object();
  for (std::size_t g = 0; g < parameter_groups; ++g) {
    groups[std::string(parameter_group_name(static_cast<ParameterGroup>(g)))] = i.groups[g].parameters;
  }
  return {{"total", i.total.parameters},
          {"groups", groups},
          {"active_per_token", i.active.total},
          {"active_counts", counted},
          {"active_with_embedding", i.active.with_embedding}};
}

Json bytes_json(const Inspection& i) {
  Json formats = Json::object();
  for (const auto& [format, count] : i.formats) {
    formats[format] = {{"matrices", count.matrices}, {"parameters", count.parameters}, {"bytes", count.bytes}};
  }
  Json variants = Json::object();
  for (const Variant& variant : i.variants) variants[variant.name] = variant.bytes;
  Json bytes = {{"formats", formats}, {"variants", variants}};
  if (i.weights_read) {
    bytes["text"] = i.text_bytes;
    bytes["vision"] = i.vision_bytes;
    bytes["files"] = i.file_bytes;
  }
  return bytes;
}

}  // namespace

std::string inspection_text(const Inspection& inspection) {
  std::string out;
  add_model(out, inspection);
  add_parameters(out, inspection);
  add_bytes(out, inspection);
  add_cache(out, inspection);
  add_layers(out, inspection);
  add_ranges(out, inspection);
  add_problems(out, inspection);
  return out;
}

std::string inspection_json(const Inspection& i) {
  Json out = {{"path", i.path.string()},
              {"kind", i.weights_read ? "checkpoint" : "config"},
              {"quantization", i.quantization},
              {"model", config_json(i.config)},
              {"parameters", parameters_json(i)},
              {"bytes", bytes_json(i)},
              {"tensors", {{"text", i.text_tensors}, {"vision", i.vision_tensors}}}};
  if (i.weights_read) {
    out["tensors"]["stored"] = i.stored_tensors;
    out["tensors"]["skipped"] = i.skipped_tensors;
  }
  out["cache_bytes_per_token"] = Json::array();
  for (const CacheCost& cost : i.caches) {
    out["cache_bytes_per_token"].push_back(
        {{"kv", cost.kv_dtype}, {"index", cost.index_dtype}, {"bytes", cost.bytes_per_token}});
  }
  out["layers"] = Json::array();
  for (const LayerRun& run : i.layers) {
    out["layers"].push_back({{"first", run.first},
                             {"last", run.last},
                             {"attention", run.kind.sparse_attention ? "sparse" : "dense"},
                             {"mlp", run.kind.moe ? "experts" : "dense"},
                             {"reuses_blocks", run.kind.reuses_blocks}});
  }
  out["schemes"] = Json::array();
  for (const Scheme& scheme : i.schemes) {
    out["schemes"].push_back({{"modules", scheme.modules},
                              {"format", scheme.format},
                              {"shape", {scheme.rows, scheme.columns}},
                              {"count", scheme.count}});
  }
  if (!i.ranges.empty()) out["values"] = Json::array();
  for (const ValueRange& range : i.ranges) {
    out["values"].push_back({{"modules", range.modules},
                             {"lowest", range.lowest},
                             {"highest", range.highest},
                             {"rms", std::sqrt(range.mean_square)},
                             {"values", range.values},
                             {"zero_rows", range.zero_rows},
                             {"not_finite", range.not_finite},
                             {"bad_scales", range.bad_scales}});
  }
  if (!i.failure.empty()) out["failure"] = i.failure;
  out["problems"] = Json::array();
  for (const Problem& problem : i.problems.all()) {
    out["problems"].push_back({{"name", problem.name}, {"expected", problem.expected}, {"found", problem.found}});
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace m3::cli
