// m3 bench serve: a serving benchmark against any OpenAI-compatible server.
#include <chrono>
#include <limits>
#include <mutex>
#include <semaphore>
#include <thread>

#include "src/base/error.h"
#include "src/base/progress.h"
#include "src/cli/bench_serve.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"

namespace m3::cli {
namespace {

struct BenchServeOptions {
  std::string url = "http://localhost:8000", endpoint = "/v1/completions", rate = "inf", key;
  std::int64_t concurrency = 0;
  std::vector<double> percentiles = {50, 90, 99};
  LoadPlan plan;
  bool json = false;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double parse_rate(const std::string& text) {
  if (text == "inf") return 0;
  try {
    std::size_t end = 0;
    const double rate = std::stod(text, &end);
    if (end == text.size() && rate > 0 && rate < 1e6) return rate;
  } catch (const std::exception&) {
    // falls through to the error
  }
  fail_usage("--request-rate {}: expected requests a second, or inf for all at once", text);
}

void run(BenchServeOptions options) {
  LoadTarget target = parse_target(options.url, options.endpoint);
  target.key = options.key;
  options.plan.rate = parse_rate(options.rate);
  options.plan.chat = options.endpoint.ends_with("/chat/completions");
  for (const double share : options.percentiles) {
    if (!(share >= 0 && share <= 100)) fail_usage("--metric-percentiles {}: from 0 to 100", share);
  }
  if (!answers(target)) fail_resource("nothing answers at {}; start m3 serve or give --base-url", options.url);
  const std::vector<PlannedRequest> requests = plan_requests(options.plan);
  const auto most = options.concurrency > 0 ? options.concurrency : static_cast<std::int64_t>(requests.size());
  std::counting_semaphore<> slots(most);
  std::vector<LoadRecord> records(requests.size());
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::int64_t done = 0;
  Progress progress("requests", static_cast<std::int64_t>(requests.size()), "requests");
  const double begin = seconds_now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const double wait = begin + requests[i].start - seconds_now();
    if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    slots.acquire();
    threads.emplace_back([&, i] {
      records[i] = stream_request(target, requests[i].body, seconds_now);
      slots.release();
      const std::lock_guard lock(mutex);
      progress.update(++done);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto summary = summarise(records, seconds_now() - begin, options.percentiles);
  write_output(options.json ? summary.dump() + "\n" : summary_text(summary));
  if (summary["completed"] == 0) fail_resource("no request to {} completed: {}", options.url, records.back().error);
}

}  // namespace

void add_bench_serve_command(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("serve", "Load an OpenAI-compatible server and time its replies");
  const auto options = std::make_shared<BenchServeOptions>();
  LoadPlan& plan = options->plan;
  const auto count = CLI::Range(std::int64_t{1}, std::int64_t{1'000'000});
  command.add_option("--base-url", options->url, "http://HOST:PORT")->capture_default_str();
  command.add_option("--endpoint", options->endpoint, "/v1/completions or /v1/chat/completions")
      ->check(CLI::IsMember({"/v1/completions", "/v1/chat/completions"}))
      ->capture_default_str();
  command.add_option("--model", plan.model, "Its name, where the server asks for one");
  command.add_option("--api-key", options->key, "Sent as Authorization: Bearer")->envname("M3_API_KEY");
  command
      .add_option("--dataset-name", plan.dataset,
                  "random: the lengths below; sharegpt: lengths as people's conversations with assistants have them")
      ->check(CLI::IsMember({"random", "sharegpt"}))
      ->capture_default_str();
  command.add_option("--num-prompts", plan.requests, "Requests")->check(count)->capture_default_str();
  command.add_option("--random-input-len", plan.input_len, "Prompt tokens")->check(count)->capture_default_str();
  command.add_option("--random-output-len", plan.output_len, "Tokens of a reply, at most")
      ->check(count)
      ->capture_default_str();
  command.add_option("--random-range-ratio", plan.range_ratio, "Lengths vary by this share, up and down")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--random-prefix-len", plan.prefix_len, "Tokens that all prompts begin with")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command.add_option("--request-rate", options->rate, "Requests a second, at random times; inf: all at once")
      ->capture_default_str();
  command.add_option("--max-concurrency", options->concurrency, "Requests in flight, at most; 0: any number")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_flag("--ignore-eos", plan.ignore_eos, "Replies go on to their full length");
  command.add_option("--temperature", plan.temperature, "Of the replies; 0 takes the most probable tokens")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command.add_option("--seed", plan.seed, "Of lengths, prompts and times")->capture_default_str();
  command.add_option("--metric-percentiles", options->percentiles, "Of each time that is printed")
      ->delimiter(',')
      ->capture_default_str();
  command.add_flag("--json", options->json, "Print one JSON object");
  command.callback([options] { run(*options); });
}

}  // namespace m3::cli
