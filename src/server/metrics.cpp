#include "src/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <string_view>

namespace m3::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets seconds_short = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                               1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640};
const Buckets seconds_token = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                               0.3,   0.4,    0.5,   0.75, 1,     2.5,  5,     7.5, 10};
const Buckets seconds_long = {0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,
                              15,   20,  30,  40,  50,  60, 120, 240, 480, 960, 1920};
const Buckets tokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                        2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const Buckets few = {1, 2, 5, 10, 20};

// What dashboards made for earlier versions of vLLM look for.
const std::map<std::string, std::string> old_names = {{"kv_cache_usage_perc", "gpu_cache_usage_perc"},
                                                      {"inter_token_latency_seconds", "time_per_output_token_seconds"}};

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

MetricFamily family(const char* name, const char* help, MetricType type) {
  MetricFamily out;
  out.name = name;
  out.help = help;
  out.type = type;
  return out;
}

class EngineFamilies {
 public:
  // `counts[i]`: of values up to 2^i, beyond 2^(i-1); the last: all beyond.
  void histogram(const char* name, const char* help, std::span<const std::int64_t> counts, double sum) {
    ClientMetric metric;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      total += static_cast<std::uint64_t>(counts[i]);
      const bool last = i + 1 == counts.size();
      const double bound = last ? std::numeric_limits<double>::infinity() : std::ldexp(1.0, static_cast<int>(i));
      metric.histogram.bucket.push_back({total, bound});
    }
    metric.histogram.sample_count = total;
    metric.histogram.sample_sum = sum;
    add(name, help, MetricType::Histogram, metric);
  }
  void gauge(const char* name, const char* help, double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    add(name, help, MetricType::Gauge, metric);
  }
  void counter(const char* name, const char* help, double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    add(name, help, MetricType::Counter, metric);
  }
  std::vector<MetricFamily> families;

 private:
  void add(const char* name, const char* help, MetricType type, const ClientMetric& metric) {
    if (families.empty() || families.back().name != name) families.push_back(family(name, help, type));
    families.back().metric.push_back(metric);
  }
};

std::vector<MetricFamily> engine_families(const Engine& engine, const Metrics::Pictures& pictures) {
  const Statistics now = engine.statistics();
  const ModelInfo& info = engine.info();
  EngineFamilies out;
  out.gauge("num_requests_running", "Requests that the engine computes", static_cast<double>(now.running));
  out.gauge("num_requests_waiting", "Requests that wait for a place, or for their pictures",
            static_cast<double>(now.waiting) + static_cast<double>(pictures.waiting));
  out.gauge("media_requests_waiting", "Of these, those that wait for their pictures",
            static_cast<double>(pictures.waiting));
  out.gauge("media_memory_bytes", "Held by pictures and videos of requests, the cached ones included",
            static_cast<double>(pictures.held_bytes));
  out.gauge("media_decode_memory_bytes", "Planned for the pictures and videos that are being decoded",
            static_cast<double>(pictures.decoding_bytes));
  const double pages = std::max<double>(1, static_cast<double>(now.pages_total));
  out.gauge("kv_cache_usage_perc", "Share of the cache that running requests hold, 0 to 1",
            static_cast<double>(now.pages_used) / pages);
  out.gauge("kv_cache_prefix_perc", "Share of the cache that only the prefix cache holds, 0 to 1",
            static_cast<double>(now.pages_cached) / pages);
  out.gauge("cache_config_info", "The cache's size", 1,
            {{"block_size", "128"},
             {"num_gpu_blocks", std::to_string(info.cache_pages)},
             {"max_model_len", std::to_string(info.max_model_len)},
             {"max_num_seqs", std::to_string(info.max_num_seqs)}});
  out.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
              static_cast<double>(now.prefix_queries));
  out.counter("prefix_cache_hits_total", "Prompt tokens taken from the prefix cache",
              static_cast<double>(now.prefix_hits));
  out.counter("num_preemptions_total", "Requests put back for want of cache pages",
              static_cast<double>(now.preemptions));
  out.counter("prompt_tokens_total", "Tokens of prompts", static_cast<double>(now.prompt_tokens));
  out.counter("generation_tokens_total", "Tokens of replies", static_cast<double>(now.generated_tokens));
  out.counter("engine_steps_total", "Forward passes", static_cast<double>(now.steps));
  out.counter("engine_step_seconds_total", "Time in forward passes", now.step_seconds);
  out.histogram("iteration_tokens_total", "Tokens of a forward pass", now.step_sizes,
                static_cast<double>(now.step_tokens));
  constexpr std::pair<FinishReason, const char*> reasons[] = {{FinishReason::stop, "stop"},
                                                              {FinishReason::length, "length"},
                                                              {FinishReason::cancelled, "abort"},
                                                              {FinishReason::error, "error"}};
  for (const auto& [reason, name] : reasons) {
    out.counter("request_success_total", "Finished samples, by how they ended",
                static_cast<double>(now.finished.at(static_cast<std::size_t>(reason))), {{"finished_reason", name}});
  }
  return std::move(out.families);
}

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double open_descriptors() {
  std::error_code ignored;
  double count = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", ignored); it != end(it); it.increment(ignored)) {
    ++count;
  }
  return count;
}

// A series stays for ever, so no client makes label values: paths come through routes, and methods are these.
std::string label_of(int status) { return std::to_string(status); }
std::string label_of(const std::string& method) {
  constexpr std::array<std::string_view, 7> known = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
  return std::ranges::find(known, method) != known.end() ? method : "other";
}

}  // namespace

struct Metrics::State {
  explicit State(bool with_vllm_names) : vllm_names(with_vllm_names) {}

  bool vllm_names;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter().Name("http_requests_total").Help("Replies").Register(registry);
  prometheus::Family<prometheus::Histogram>& request_seconds = prometheus::BuildHistogram()
                                                                   .Name("http_request_duration_seconds")
                                                                   .Help("From a request's last byte to its reply's")
                                                                   .Register(registry);
  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }
  prometheus::Histogram& first_token =
      histogram("time_to_first_token_seconds", "From the queue to a sample's first token", seconds_short);
  prometheus::Histogram& between =
      histogram("inter_token_latency_seconds", "From one token of a sample to its next", seconds_token);
  prometheus::Histogram& per_token = histogram("request_time_per_output_token_seconds",
                                               "Mean time of a sample's tokens behind its first", seconds_token);
  prometheus::Histogram& whole =
      histogram("e2e_request_latency_seconds", "From the queue to a sample's end", seconds_long);
  prometheus::Histogram& queued =
      histogram("request_queue_time_seconds", "From the queue to a request's first step", seconds_long);
  prometheus::Histogram& prefill =
      histogram("request_prefill_time_seconds", "From the first step to a sample's first token", seconds_long);
  prometheus::Histogram& decode =
      histogram("request_decode_time_seconds", "From a sample's first token to its last", seconds_long);
  prometheus::Histogram& inference =
      histogram("request_inference_time_seconds", "From the first step to a sample's last token", seconds_long);
  prometheus::Histogram& computed =
      histogram("request_prefill_kv_computed_tokens", "Tokens of a prompt that the prefix cache did not have", tokens);
  prometheus::Histogram& longest =
      histogram("request_max_num_generation_tokens", "Tokens of a request's longest sample", tokens);
  prometheus::Histogram& prompt = histogram("request_prompt_tokens", "Tokens of a prompt", tokens);
  prometheus::Histogram& generated = histogram("request_generation_tokens", "Tokens of a sample", tokens);
  prometheus::Histogram& samples = histogram("request_params_n", "Samples that requests ask for", few);
  prometheus::Histogram& limit = histogram("request_params_max_tokens", "Tokens that requests ask for at most", tokens);
};

Metrics::Metrics(bool vllm_names) : state_(std::make_unique<State>(vllm_names)) {}

Metrics::~Metrics() = default;

void Metrics::request_done(const std::string& method, const std::string& route, int status, double elapsed) {
  state_->requests.Add({{"method", label_of(method)}, {"handler", route}, {"status", label_of(status)}}).Increment();
  state_->request_seconds.Add({{"handler", route}}, seconds_long).Observe(elapsed);
}

Metrics::Timer::Timer(Metrics& metrics, const Request& request, Clock::time_point submitted)
    : metrics_(metrics),
      submitted_(submitted),
      samples_(static_cast<std::size_t>(request.samples)),
      open_(request.samples) {
  State& state = *metrics_.state_;
  state.samples.Observe(request.samples);
  if (request.max_tokens) state.limit.Observe(static_cast<double>(*request.max_tokens));
}

void Metrics::Timer::event(const Event& event, Clock::time_point now) {
  State& state = *metrics_.state_;
  Sample& sample = samples_[static_cast<std::size_t>(event.sample)];
  if (!prompt_seen_) {
    state.prompt.Observe(static_cast<double>(event.usage.prompt_tokens));
    state.computed.Observe(static_cast<double>(event.usage.prompt_tokens - event.usage.cached_tokens));
  }
  prompt_seen_ = true;
  if (!event.ids.empty()) {
    if (!sample.begun) {
      sample.begun = true;
      sample.first = now;
      state.first_token.Observe(seconds(now - submitted_));
    } else {
      state.between.Observe(seconds(now - sample.last));
    }
    sample.last = now;
  }
  if (event.finish == FinishReason::none || event.finish == FinishReason::error) return;
  const std::int64_t count = event.usage.completion_tokens;
  state.generated.Observe(static_cast<double>(count));
  state.whole.Observe(seconds(now - submitted_));
  if (sample.begun && event.queue_seconds >= 0) {
    state.queued.Observe(event.queue_seconds);
    state.prefill.Observe(std::max(0.0, seconds(sample.first - submitted_) - event.queue_seconds));
    state.decode.Observe(seconds(sample.last - sample.first));
    state.inference.Observe(std::max(0.0, seconds(sample.last - submitted_) - event.queue_seconds));
  }
  longest_ = std::max(longest_, count);
  if (--open_ == 0) state.longest.Observe(static_cast<double>(longest_));
  if (count > 1) state.per_token.Observe(seconds(now - sample.first) / static_cast<double>(count - 1));
}

std::string Metrics::text(const std::string& model_name, const Engine* engine, const Pictures& pictures) const {
  std::vector<MetricFamily> ours = state_->registry.Collect();
  if (engine != nullptr) std::ranges::move(engine_families(*engine, pictures), std::back_inserter(ours));
  for (MetricFamily& one : ours) {
    for (ClientMetric& metric : one.metric) {
      metric.label.insert(metric.label.begin(), {{"model_name", model_name}, {"engine", "0"}});
    }
  }
  std::vector<MetricFamily> all;
  for (const char* prefix : {"m3:", "vllm:"}) {
    if (prefix[0] == 'v' && !state_->vllm_names) continue;
    for (const MetricFamily& one : ours) {
      all.push_back(one);
      all.back().name = prefix + one.name;
      const auto old = prefix[0] == 'v' ? old_names.find(one.name) : old_names.end();
      if (old == old_names.end()) continue;
      all.push_back(one);
      all.back().name = prefix + old->second;
    }
  }
  EngineFamilies process;
  process.gauge("process_resident_memory_bytes", "Resident memory", resident_bytes());
  process.gauge("process_open_fds", "Open descriptors", open_descriptors());
  std::ranges::move(process.families, std::back_inserter(all));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace m3::server
