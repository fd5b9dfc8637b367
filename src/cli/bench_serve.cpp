#include "src/cli/bench_serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "src/base/error.h"

namespace m3::cli {
namespace {

using Json = nlohmann::ordered_json;

// Ids that every vocabulary has, and words of about a token each.
constexpr std::int64_t first_id = 256, last_id = 999;
constexpr std::array<const char*, 16> words = {"sea", "boat", "wind", "light", "stone", "harbour", "night", "the",
                                               "and", "of",   "in",   "with",  "old",   "grey",    "long",  "was"};

// Uniform numbers of a generator whose results are the same everywhere, unlike the standard's distributions.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}
  double unit() { return static_cast<double>(generator_() >> 11U) * 0x1p-53; }  // [0, 1)
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(unit() * static_cast<double>(high - low + 1));
  }
  double exponential(double mean) { return -mean * std::log(1 - unit()); }
  double log_normal(double median, double sigma) {
    const double normal = std::sqrt(-2 * std::log(1 - unit())) * std::cos(6.283185307179586 * unit());
    return median * std::exp(sigma * normal);
  }

 private:
  std::mt19937_64 generator_;
};

// Conversations people shared: prompts of 185 tokens in the mean and replies of 200, with a long tail.
std::int64_t shared_length(Draw& draw, double median, double sigma) {
  return std::clamp<std::int64_t>(std::llround(draw.log_normal(median, sigma)), 4, 1024);
}

std::int64_t varied(Draw& draw, std::int64_t length, double ratio) {
  const auto spread = static_cast<std::int64_t>(static_cast<double>(length) * ratio);
  return std::max<std::int64_t>(1, draw.between(length - spread, length + spread));
}

Json prompt_json(Draw& draw, std::int64_t tokens, bool chat) {
  if (!chat) {
    Json ids = Json::array();
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(draw.between(first_id, last_id));
    return ids;
  }
  std::string text;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (i > 0) text += ' ';
    text += words[static_cast<std::size_t>(draw.between(0, words.size() - 1))];
  }
  return text;
}

Json joined(const Json& prefix, const Json& rest, bool chat) {
  if (chat) return prefix.get<std::string>() + " " + rest.get<std::string>();
  Json out = prefix;
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

Json statistics_of(const std::vector<double>& seconds, const std::vector<double>& percentiles) {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  Json out = {{"mean", seconds.empty() ? 0 : 1000 * sum / static_cast<double>(seconds.size())}};
  for (const double share : percentiles) out[fmt::format("p{:g}", share)] = 1000 * percentile(seconds, share / 100);
  return out;
}

}  // namespace

LoadTarget parse_target(const std::string& url, const std::string& path) {
  if (url.starts_with("https://")) fail_usage("--base-url {}: https is not implemented here; use http", url);
  const std::string scheme = "http://";
  if (!url.starts_with(scheme)) fail_usage("--base-url {}: expected http://HOST:PORT", url);
  const std::string rest = url.substr(scheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string address = rest.substr(0, slash), prefix = rest.substr(slash);
  while (prefix.ends_with('/')) prefix.pop_back();
  if (prefix.ends_with("/v1") && path.starts_with("/v1/")) prefix.resize(prefix.size() - 3);
  const std::size_t colon = address.rfind(':');
  const bool has_port = colon != std::string::npos && address.find(']', colon) == std::string::npos;
  LoadTarget target;
  target.host = has_port ? address.substr(0, colon) : address;
  target.port = has_port ? address.substr(colon + 1) : "80";
  if (target.host.starts_with('[') && target.host.ends_with(']')) {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  target.path = prefix + path;
  if (target.host.empty()) fail_usage("--base-url {}: there is no host", url);
  return target;
}

std::vector<PlannedRequest> plan_requests(const LoadPlan& plan) {
  Draw draw(plan.seed);
  const Json prefix = plan.prefix_len > 0 ? prompt_json(draw, plan.prefix_len, plan.chat) : Json();
  std::vector<PlannedRequest> requests(static_cast<std::size_t>(plan.requests));
  double start = 0;
  for (PlannedRequest& request : requests) {
    if (plan.dataset == "sharegpt") {
      request.prompt_tokens = shared_length(draw, 90, 1.2);
      request.output_tokens = shared_length(draw, 135, 0.9);
    } else {
      request.prompt_tokens = varied(draw, plan.input_len, plan.range_ratio);
      request.output_tokens = varied(draw, plan.output_len, plan.range_ratio);
    }
    Json prompt = prompt_json(draw, request.prompt_tokens, plan.chat);
    if (!prefix.is_null()) prompt = joined(prefix, prompt, plan.chat);
    request.prompt_tokens += plan.prefix_len;
    request.start = start;
    if (plan.rate > 0) start += draw.exponential(1 / plan.rate);
    Json body = {{"model", plan.model},
                 {"max_tokens", request.output_tokens},
                 {"temperature", plan.temperature},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (plan.model.empty()) body.erase("model");
    if (plan.ignore_eos) body["ignore_eos"] = true;
    if (plan.chat) {
      body["messages"] = {{{"role", "user"}, {"content", std::move(prompt)}}};
    } else {
      body["prompt"] = std::move(prompt);
    }
    request.body = body.dump();
  }
  return requests;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

Json summarise(const std::vector<LoadRecord>& records, double seconds, const std::vector<double>& percentiles) {
  std::int64_t good = 0, input = 0, output = 0, cached = 0;
  std::vector<double> first, per_token, gaps, whole;
  std::string error;
  for (const LoadRecord& record : records) {
    if (!record.error.empty()) {
      error = record.error;
      continue;
    }
    ++good;
    input += record.prompt_tokens;
    output += record.output_tokens;
    cached += record.cached_tokens;
    whole.push_back(record.ended - record.started);
    if (record.first == 0) continue;
    first.push_back(record.first - record.started);
    gaps.insert(gaps.end(), record.gaps.begin(), record.gaps.end());
    if (record.output_tokens > 1) {
      per_token.push_back((record.ended - record.first) / static_cast<double>(record.output_tokens - 1));
    }
  }
  const auto rate = [&](std::int64_t count) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; };
  Json out = {{"completed", good},
              {"failed", static_cast<std::int64_t>(records.size()) - good},
              {"duration_s", seconds},
              {"total_input_tokens", input},
              {"total_output_tokens", output},
              {"cached_input_tokens", cached},
              {"requests_per_s", rate(good)},
              {"output_tokens_per_s", rate(output)},
              {"total_tokens_per_s", rate(input + output)},
              {"ttft_ms", statistics_of(first, percentiles)},
              {"tpot_ms", statistics_of(per_token, percentiles)},
              {"itl_ms", statistics_of(gaps, percentiles)},
              {"e2el_ms", statistics_of(whole, percentiles)}};
  if (!error.empty()) out["last_error"] = error;
  return out;
}

std::string summary_text(const Json& summary) {
  std::string out = fmt::format(
      "requests        {} completed, {} failed, in {:.2f} s: {:.2f} a second\n"
      "prompt tokens   {}, {} of them cached\n"
      "output tokens   {}: {:.1f} tok/s; with prompts {:.1f} tok/s\n\n",
      summary["completed"].get<std::int64_t>(), summary["failed"].get<std::int64_t>(),
      summary["duration_s"].get<double>(), summary["requests_per_s"].get<double>(),
      summary["total_input_tokens"].get<std::int64_t>(), summary["cached_input_tokens"].get<std::int64_t>(),
      summary["total_output_tokens"].get<std::int64_t>(), summary["output_tokens_per_s"].get<double>(),
      summary["total_tokens_per_s"].get<double>());
  constexpr std::array<std::pair<const char*, const char*>, 4> rows = {{{"ttft_ms", "time to first token"},
                                                                        {"tpot_ms", "time per output token"},
                                                                        {"itl_ms", "between packets"},
                                                                        {"e2el_ms", "whole request"}}};
  out += fmt::format("{:<24}", "milliseconds");
  for (const auto& [name, value] : summary["ttft_ms"].items()) out += fmt::format("{:>10}", name);
  for (const auto& [key, title] : rows) {
    out += fmt::format("\n{:<24}", title);
    for (const auto& [name, value] : summary[key].items()) out += fmt::format("{:>10.2f}", value.get<double>());
  }
  out += "\n";
  if (summary.contains("last_error")) out += "last error: " + summary["last_error"].get<std::string>() + "\n";
  return out;
}

}  // namespace m3::cli
