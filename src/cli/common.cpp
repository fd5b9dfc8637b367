#include "src/cli/common.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/cli/number_words.h"

namespace m3::cli {

namespace {

constexpr const char* shipped_name = "m3-tiny-chat";

constexpr int unread_output = 128 + SIGPIPE;  // the status a shell shows of a program that the signal ends

constexpr std::sig_atomic_t patient_interrupts = 5;

volatile std::sig_atomic_t interrupt_count = 0;
volatile std::sig_atomic_t interrupts_allowed = 1;

extern "C" void on_interrupt(int) {
  interrupt_count = interrupt_count + 1;
  if (interrupt_count > interrupts_allowed) ::_exit(130);
}

const CLI::Validator not_empty(
    [](const std::string& text) { return text.empty() ? std::string("is empty") : std::string(); }, "", "");

// Here, since serve would find out only after it listens.
const CLI::Validator online_format(
    [](const std::string& text) {
      return text == "ptpc_fp8" ? std::string()
                                : text + ": accepted is ptpc_fp8 (the format that a checkpoint has needs no flag)";
    },
    "", "");

// vLLM's words for the cache's two types.
const CLI::Validator cache_words(
    [](std::string& text) {
      if (text == "auto" || text == "bfloat16") text = "bf16";
      if (text == "fp8_e4m3") text = "fp8";
      return std::string();
    },
    "", "");

// Whether the whole of [begin, end) is one number that the type can hold.
template <typename T>
bool parses(const char* begin, const char* end, T& value) {
  const auto result = std::from_chars(begin, end, value);
  return begin != end && result.ec == std::errc() && result.ptr == end;
}

// What a missing checkpoint was meant for.
std::string hint_of(const std::string& path) {
  if (path == "help") return "; m3 --help and m3 run --help tell more";
  if (path == "chat") return "; m3 run without a question chats";
  for (const char* command : {"run", "serve", "trace", "eval", "bench", "inspect", "tokenize"}) {
    if (path == command) return fmt::format("; the command is m3 {}", command);
  }
  return path.find_first_of(" ?") == std::string::npos ? "" : "; a question goes behind --prompt";
}

}  // namespace

std::string shipped_checkpoint() {
  if (const char* named = std::getenv("M3_MODEL"); named != nullptr && *named != '\0') return named;
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  // build/<preset>/m3 in a source tree; bin/m3 of an installation.
  for (const char* relative : {"../../../models", "../share/m3/models", "models"}) {
    const std::filesystem::path candidate = (program.parent_path() / "x" / relative / shipped_name).lexically_normal();
    if (std::filesystem::exists(candidate / "config.json", ignored)) return candidate.string();
  }
  fail("the checkpoint that ships ({}) is not beside this program; name a checkpoint directory, or set M3_MODEL",
       shipped_name);
}

std::string ModelOptions::path() const {
  std::string path = checkpoint.empty() ? shipped_checkpoint() : checkpoint;
  const char* named = std::getenv("M3_MODEL");
  const std::string shown = checkpoint.empty() && named != nullptr && path == named ? "M3_MODEL=" + path : path;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) fail("{}: there is no such directory{}", shown, hint_of(path));
  if (!std::filesystem::is_directory(path, ignored)) {
    fail("{}: not a directory; a checkpoint is a directory with config.json and safetensors files", shown);
  }
  if (!std::filesystem::exists(std::filesystem::path(path) / "config.json", ignored)) {
    fail("{}: no config.json there; a checkpoint directory has one", shown);
  }
  return path;
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  EngineOptions& engine = options.engine;
  command
      .add_option("checkpoint", options.checkpoint,
                  "Checkpoint directory in the published layout (default: the one that ships)")
      ->check(not_empty);
  command
      .add_option("--device", engine.device,
                  "cuda, cpu, or scalar (the slow, exact judge); auto: cuda where the weights fit, else cpu")
      ->capture_default_str();
  command.add_flag(
      "--deterministic", engine.deterministic,
      "On cuda: results that do not depend on what else is in the batch, bit for bit; always so elsewhere");
  command
      .add_option("--memory-utilization,--gpu-memory-utilization", engine.memory_utilization,
                  "Share that may be used of the memory available at start, on cuda of all the device's memory")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command.add_option("--threads", engine.threads, "Threads; 0 = one for each physical core")->capture_default_str();
  command
      .add_option("--max-model-len", engine.max_model_len,
                  "Longest context in tokens (also 32k, 1M); 0 or auto = what positions and memory allow")
      ->transform(token_words)
      ->capture_default_str();
  command
      .add_option(
          "--max-num-batched-tokens", engine.max_num_batched_tokens,
          "Tokens of one forward pass (also 8k); by default 512 on a processor, 8192 on a GPU, 2048 on a small one")
      ->transform(token_words)
      ->check(CLI::Range(1, 65536));
  command.add_option("--kv-cache-dtype", engine.kv_cache_dtype, "K and V in bf16 or fp8 (e4m3)")
      ->transform(cache_words)
      ->capture_default_str();
  command.add_option("--index-cache-dtype", engine.index_cache_dtype, "Index-K in bf16 or fp8 (e4m3)")
      ->transform(cache_words)
      ->capture_default_str();
  command
      .add_option("--quantization", engine.quantization,
                  "ptpc_fp8: quantise linears at load (per-channel fp8 weights, per-token fp8 activations)")
      ->check(not_empty)
      ->check(online_format);
  command.add_option("--quantization-exclude", engine.quantization_exclude,
                     "Tensor names, * allowed, that --quantization leaves alone; may be repeated");
}

void take_one_value_each(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) option->allow_extra_args(false);
  for (CLI::App* subcommand : command.get_subcommands({})) take_one_value_each(*subcommand);
}

void add_picture_options(CLI::App& command, EngineOptions& engine) {
  command
      .add_option("--max-picture-patches", engine.max_picture_patches,
                  "Largest picture in patches of 14 x 14 pixels, or 8 frames of a video; memory is planned for it; by "
                  "default 65536 (3584 x 3584 pixels), 20736 on a small GPU")
      ->check(CLI::Range(4, 1 << 24));
  command
      .add_option("--feature-cache-bytes", engine.feature_cache_bytes,
                  "Memory for features of pictures seen lately, so that each is computed once (also 4G, 512M)")
      ->transform(byte_words)
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  Request& request = options.request;
  SamplingParameters& sampling = request.sampling;
  command.add_option("--max-tokens", request.max_tokens,
                     "Tokens to generate at most (default: what the context leaves)");
  command.add_option("--min-tokens", request.min_tokens, "No end before this many tokens");
  command.add_option("--temperature", sampling.temperature,
                     "0 … 2; 0 takes the most probable token (default: the checkpoint's)");
  command.add_option("--top-k", sampling.top_k, "Draw from the k most probable; 0 = all");
  command.add_option("--top-p", sampling.top_p, "Draw from the smallest set with this probability");
  command.add_option("--min-p", sampling.min_p, "Drop tokens below this share of the most probable one");
  command.add_option("--repetition-penalty", sampling.repetition_penalty,
                     "Divide positive and multiply negative logits of seen tokens");
  command.add_option("--presence-penalty", sampling.presence_penalty, "Subtract from logits of generated tokens");
  command.add_option("--frequency-penalty", sampling.frequency_penalty, "Subtract for each time a token was generated");
  command.add_option("--logit-bias", options.logit_bias, "ID=VALUE added to a logit; may be repeated");
  command.add_option("--seed", options.seed, "The same seed gives the same tokens; 0 to 2^64 - 1");
  command.add_option("--stop", request.stop, "End before this text; may be repeated")->take_all();
  command.add_option("--stop-id", request.stop_ids, "End at this token id; may be repeated")->take_all();
  command.add_flag("--ignore-eos", request.ignore_eos, "Go on past the checkpoint's end tokens");
  command.add_option("--logprobs", request.logprobs,
                     "Log-probabilities of each token and of the n most probable (with --json)");
  command.add_option("--n", request.samples, "Independent samples");
}

Request SamplingOptions::finish() const {
  Request finished = request;
  if (seed) {
    std::uint64_t value = 0;
    if (!parses(seed->data(), seed->data() + seed->size(), value))
      fail_usage("--seed {}: give a whole number from 0 to 2^64 - 1", *seed);
    finished.sampling.seed = value;
  }
  for (const std::string& bias : logit_bias) {
    const std::size_t equals = bias.find('=');
    TokenId id = 0;
    float value = 0;
    const char* begin = bias.data();
    const char* end = begin + bias.size();
    const bool valid =
        equals != std::string::npos && parses(begin, begin + equals, id) && parses(begin + equals + 1, end, value);
    if (!valid) fail_usage("--logit-bias {}: write ID=VALUE, for instance 42=-5", bias);
    finished.sampling.logit_bias.emplace_back(id, value);
  }
  return finished;
}

std::string read_standard_input(std::size_t limit) {
  std::string text;
  std::array<char, 65536> buffer{};
  while (std::cin.read(buffer.data(), buffer.size()) || std::cin.gcount() > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(std::cin.gcount()));
    if (text.size() > limit) fail("standard input has more than the {} bytes that a prompt may have", limit);
  }
  return text;
}

bool interrupted() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, nullptr);
    return true;
  }();
  return installed && interrupt_count > 0;
}

void clear_interrupt() {
  static_cast<void>(interrupted());
  interrupts_allowed = patient_interrupts;
  interrupt_count = 0;
}

void write_output(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EPIPE) throw CLI::RuntimeError(unread_output);  // as head ends what it reads from
      fail_resource("cannot write to standard output: {}", std::strerror(errno));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace m3::cli
