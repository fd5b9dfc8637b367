#include "src/cli/foreign_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "src/base/error.h"

namespace m3::cli {
namespace {

enum class Kind {
  renamed,     // `text` is the option here, "" the checkpoint; takes a value
  switched,    // `text` is the flag here; takes no value
  only,        // `values` are what is so here anyway; another value is refused with `text`
  idle_value,  // a choice among what another server has: takes a value
  idle_flag,   // likewise, a flag; a value such as "on" may follow
  refused,     // with `text`
};

struct ForeignFlag {
  Kind kind;
  const char* names;
  const char* text = "";
  const char* values = "";
};

constexpr const char* one_device = "one device computes all for now; leave it out";
constexpr const char* no_draft = "drafts are not implemented yet; leave it out";
constexpr const char* no_offload = "nothing is moved between devices; leave it out";
constexpr const char* no_download = "nothing is downloaded; give the checkpoint's directory";
constexpr const char* own_files =
    "the file beside the weights is read; put a changed one into the checkpoint's directory";
constexpr const char* in_requests = "requests say it, and generation_config.json what they leave open";
constexpr const char* no_plugins = "no foreign code is loaded; leave it out";
constexpr const char* no_adapters = "adapters are not implemented; merge them into the checkpoint";

constexpr ForeignFlag foreign_flags[] = {
    // The same under another name.
    {Kind::renamed, "--model --model-path -m"},
    {Kind::renamed, "--tp --tp-size -tp", "--tensor-parallel-size"},
    {Kind::renamed, "--context-length --ctx-size -c", "--max-model-len"},
    {Kind::renamed, "--max-running-requests --parallel -np", "--max-num-seqs"},
    {Kind::renamed, "--chunked-prefill-size --batch-size -b", "--max-num-batched-tokens"},
    {Kind::renamed, "--max-num-queued-reqs", "--max-queued-requests"},
    {Kind::renamed, "--mem-fraction-static", "--memory-utilization"},
    {Kind::renamed, "--page-size", "--block-size"},
    {Kind::renamed, "--attention-config.indexer-kv-dtype", "--index-cache-dtype"},
    {Kind::renamed, "--alias -a", "--served-model-name"},
    {Kind::renamed, "-t", "--threads"},
    {Kind::renamed, "--chat-template-file", "--chat-template"},
    {Kind::renamed, "--shutdown-timeout", "--timeout-graceful-shutdown"},
    {Kind::switched, "--disable-radix-cache", "--no-enable-prefix-caching"},
    {Kind::switched, "--log-requests", "--enable-log-requests"},
    // Fine where it asks for what is so.
    {Kind::only, "--pipeline-parallel-size -pp --pp-size --data-parallel-size -dp --dp-size --dp --ep-size --ep",
     one_device, "1"},
    {Kind::only, "--decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp --nnodes", one_device, "1"},
    {Kind::only, "--node-rank", one_device, "0"},
    {Kind::only, "--api-server-count -asc", "one process serves; leave it out", "1"},
    {Kind::only, "--swap-space --cpu-offload-gb --kv-offloading-size --n-cpu-moe -ncmoe", no_offload, "0"},
    {Kind::only, "--load-format", "weights are read from safetensors; convert the checkpoint", "auto safetensors hf"},
    {Kind::only, "--tokenizer-mode --config-format", "Hugging Face's files are read; leave it out", "auto hf"},
    {Kind::only, "--task --runner", "text is generated, and nothing else; leave it out", "auto generate"},
    {Kind::only, "--scheduling-policy --schedule-policy",
     "lower 'priority' of requests first, then the order of arrival", "fcfs priority"},
    {Kind::only, "--stream-interval", "fragments are joined by their length; leave it out", "1"},
    {Kind::only, "--num-scheduler-steps", "every step is planned; leave it out", "1"},
    {Kind::only, "--generation-config", own_files, "auto"},
    {Kind::only, "--chat-template-content-format", "strings and parts are both taken; leave it out", "auto"},
    {Kind::only, "--response-role", "replies are the assistant's; leave it out", "assistant"},
    {Kind::only, "--reasoning-format",
     "reasoning stands in reasoning_content; requests ask for another place with "
     "\"reasoning_split\": false",
     "auto deepseek"},
    // Which kernels, graphs and processes another server uses.
    {Kind::idle_value,
     "--attention-backend --moe-backend --moe-runner-backend --linear-backend --mm-encoder-attn-backend "
     "--mm-attention-backend --mm-encoder-tp-mode --mm-processor-cache-type --all2all-backend --sampling-backend"},
    {Kind::idle_value,
     "--compilation-config -cc --optimization-level --max-cudagraph-capture-size --max-seq-len-to-capture "
     "--cuda-graph-max-bs --cuda-graph-backend-decode --cuda-graph-backend-prefill --distributed-executor-backend"},
    {Kind::idle_value,
     "--guided-decoding-backend --structured-outputs-config.backend --grammar-backend "
     "--prefix-caching-hash-algo --watchdog-timeout --max-prefill-tokens --ubatch-size -ub --threads-batch -tb "
     "--n-gpu-layers --gpu-layers -ngl"},
    {Kind::idle_flag,
     "-O0 -O1 -O2 -O3 --async-scheduling --no-async-scheduling --disable-custom-all-reduce "
     "--enable-expert-parallel --disable-cuda-graph --disable-piecewise-cuda-graph --skip-server-warmup "
     "--skip-mm-profiling "
     "--flash-attn -fa"},
    // What is always so.
    {Kind::idle_flag,
     "--enable-prompt-tokens-details --enable-cache-report --enable-metrics --metrics --jinja "
     "--cont-batching -cb --enable-server-load-tracking --enable-request-id-headers --disable-log-stats "
     "--disable-fastapi-docs --use-tqdm-on-load --no-use-tqdm-on-load --enable-multimodal"},
    // What is not there.
    {Kind::refused,
     "--enable-dp-attention --enable-eplb --headless --cpu-moe -cmoe --override-tensor -ot --split-mode -sm "
     "--tensor-split -ts --main-gpu -mg --data-parallel-size-local --data-parallel-address --dist-init-addr "
     "--master-addr --master-port",
     one_device},
    {Kind::refused, "--no-enable-chunked-prefill",
     "prompts are always cut into chunks; --max-num-batched-tokens says how "
     "long they are"},
    {Kind::refused,
     "--speculative-config --speculative-model --num-speculative-tokens --speculative-algorithm "
     "--speculative-draft-model-path --speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens "
     "--model-draft -md --draft-max",
     no_draft},
    {Kind::refused,
     "--kv-offloading-backend --enable-hierarchical-cache --hicache-ratio --hicache-size "
     "--enable-hisparse --kv-transfer-config --kv-events-config --disaggregation-mode "
     "--disaggregation-transfer-backend",
     no_offload},
    {Kind::refused,
     "--hf-overrides --rope-scaling --rope-theta --json-model-override-args --override-generation-config "
     "--tokenizer --tokenizer-path --hf-config-path --rope-freq-base --rope-freq-scale --yarn-orig-ctx",
     own_files},
    {Kind::refused, "--revision --tokenizer-revision --code-revision --download-dir --hf-repo -hf", no_download},
    {Kind::refused,
     "--seed --random-seed --temp --top-k --top-p --min-p --n-predict -n --repeat-penalty --enable-force-include-usage",
     in_requests},
    {Kind::refused, "--max-total-tokens --num-gpu-blocks-override",
     "--kv-cache-memory-bytes and --memory-utilization set the "
     "cache's size"},
    {Kind::refused, "--cache-type-k -ctk --cache-type-v -ctv", "--kv-cache-dtype bf16 or fp8 sets both"},
    {Kind::refused, "--mlock --no-mmap", "weights stay mapped and are read where they are; leave it out"},
    {Kind::refused,
     "--long-prefill-token-threshold --max-num-partial-prefills --max-long-partial-prefills "
     "--schedule-conservativeness --scheduler-delay-factor",
     "a step's tokens are shared out between prompts already; "
     "leave it out"},
    {Kind::refused, "--mmproj", "the vision tower is part of the checkpoint; leave it out"},
    {Kind::refused, "--mm-processor-cache-gb", "--media-cache-bytes and --feature-cache-bytes say what is kept"},
    {Kind::refused, "--media-io-kwargs", "requests say it (media_io_kwargs), and --mm-processor-kwargs for all"},
    {Kind::refused, "--enable-lora --lora-modules --max-loras --max-lora-rank --lora-paths --lora", no_adapters},
    {Kind::refused,
     "--middleware --logits-processors --tool-parser-plugin --reasoning-parser-plugin --tool-server "
     "--io-processor-plugin --worker-cls",
     no_plugins},
    {Kind::refused, "--uds", "a port is listened at: --host and --port"},
    {Kind::refused, "--config", "no file of flags is read; give them on the command line"},
    {Kind::refused, "--api-key-file", "give --api-key, or the key in $M3_API_KEY"},
    {Kind::refused, "--ssl-ca-certs --ssl-cert-reqs --ssl-keyfile-password --enable-ssl-refresh",
     "clients show keys "
     "(--api-key) and no certificates; --ssl-certfile and --ssl-keyfile serve https"},
    {Kind::refused, "--log-config-file --max-log-len --enable-log-outputs --log-requests-level",
     "--log-format, --log-level and "
     "--log-prompts say what is logged"},
    {Kind::refused, "--otlp-traces-endpoint --collect-detailed-traces --show-hidden-metrics-for-version",
     "/metrics has all "
     "that is counted"},
    {Kind::refused,
     "--enable-sleep-mode --enable-prompt-embeds --exclude-tools-when-tool-choice-none --enable-memory-saver",
     "not implemented; leave it out"},
};

const ForeignFlag* find(const std::string& name) {
  for (const ForeignFlag& flag : foreign_flags) {
    std::istringstream names(flag.names);
    for (std::string known; names >> known;) {
      if (known == name) return &flag;
    }
  }
  return nullptr;
}

bool among(const std::string& value, const char* values) {
  std::istringstream words(values);
  for (std::string word; words >> word;) {
    if (word == value) return true;
  }
  return false;
}

// A word split at its "=".
struct Word {
  std::string name;
  std::optional<std::string> value;
};

Word split(const std::string& word) {
  const std::size_t equals = word.find('=');
  Word out{word.substr(0, equals), std::nullopt};
  if (equals != std::string::npos) out.value = word.substr(equals + 1);
  if (out.name.starts_with("--")) std::ranges::replace(out.name, '_', '-');
  return out;
}

// The flags here whose value is JSON, and which vLLM lets scripts write by its members: "--flag.member.member value".
constexpr std::string_view json_flags[] = {"--limit-mm-per-prompt", "--mm-processor-kwargs",
                                           "--default-chat-template-kwargs"};

// Where `word` is one of them with members behind it: the flag. Names of members stay as they are written.
std::optional<std::string> dotted_flag(const std::string& name, std::string& members) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return std::nullopt;
  std::string flag = name.substr(0, dot);
  std::ranges::replace(flag, '_', '-');
  if (std::ranges::find(json_flags, flag) == std::end(json_flags)) return std::nullopt;
  members = name.substr(dot + 1);
  return flag;
}

void set_json_member(nlohmann::ordered_json& object, const std::string& word, const std::string& members,
                     const std::string& value) {
  nlohmann::ordered_json* at = &object;
  std::istringstream names(members);
  for (std::string name; std::getline(names, name, '.');) {
    if (name.empty() || !(at->is_null() || at->is_object())) fail_usage("{}: not the name of a member", word);
    at = &(*at)[name];
  }
  *at = nlohmann::ordered_json::parse(value, nullptr, false);
  if (at->is_discarded()) *at = value;  // a word
}

// A checkpoint that a list of several words has taken for one of its own would leave another model served.
void check_lists(const CLI::App& command, const std::vector<std::string>& words) {
  std::string list, taken;
  std::size_t values = 0;  // how many the option still takes
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() > 1 && word[0] == '-') {
      list.clear();
      const bool whole = word.find('=') != std::string::npos;
      const CLI::Option* option = command.get_option_no_throw(word.substr(0, word.find('=')));
      values = whole || option == nullptr || option->get_expected_max() == 0 ? 0 : 1;
      if (option != nullptr && option->get_allow_extra_args()) list = option->get_name();
    } else if (values > 0) {
      --values;
    } else if (list.empty()) {
      return;  // the checkpoint
    } else {
      std::error_code ignored;
      const bool path = word.find('/') != std::string::npos || std::filesystem::is_directory(word, ignored);
      if (path && taken.empty()) taken = fmt::format("{} {}", list, word);
    }
  }
  if (!taken.empty())
    fail_usage("{}: a checkpoint behind a list counts as one more of its words; write it first, behind serve", taken);
}

}  // namespace

std::vector<std::string> translate_foreign_flags(const CLI::App& command, const std::vector<std::string>& words,
                                                 std::string& note) {
  std::vector<std::string> out, idle;
  std::string checkpoint;
  std::map<std::string, nlohmann::ordered_json> dotted;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool option = words[i].size() > 1 && words[i][0] == '-' && words[i] != "--";
    if (!option) {
      out.push_back(words[i]);
      continue;
    }
    Word word = split(words[i]);
    std::string members;
    if (const auto flag = dotted_flag(words[i].substr(0, words[i].find('=')), members)) {
      if (!word.value && i + 1 == words.size()) fail_usage("{}: a value is missing", word.name);
      set_json_member(dotted[*flag], word.name, members, word.value ? *word.value : words[++i]);
      continue;
    }
    const ForeignFlag* flag = command.get_option_no_throw(word.name) == nullptr ? find(word.name) : nullptr;
    if (flag == nullptr) {
      out.push_back(word.name + words[i].substr(word.name.size()));
      continue;
    }
    const bool takes_value = flag->kind == Kind::renamed || flag->kind == Kind::only || flag->kind == Kind::idle_value;
    if (takes_value && !word.value) {
      if (i + 1 == words.size()) fail_usage("{}: a value is missing", word.name);
      word.value = words[++i];
    }
    switch (flag->kind) {
      case Kind::refused: fail_usage("{}: {}", word.name, flag->text);
      case Kind::renamed:
        (*flag->text == '\0' ? checkpoint : out.emplace_back(flag->text + std::string("="))) += *word.value;
        break;
      case Kind::switched: out.emplace_back(flag->text); break;
      case Kind::only:
        if (!among(*word.value, flag->values)) {
          fail_usage("{} {}: {} (only {} is possible)", word.name, *word.value, flag->text, flag->values);
        }
        break;
      case Kind::idle_flag:
        if (i + 1 < words.size() && among(words[i + 1], "on off auto true false True False 0 1")) ++i;
        [[fallthrough]];
      case Kind::idle_value: idle.push_back(word.name); break;
    }
  }
  for (const auto& [flag, value] : dotted) out.push_back(flag + "=" + value.dump());
  // Before the options, some of which take all words that follow.
  if (!checkpoint.empty()) out.insert(out.begin() + 1, checkpoint);
  check_lists(command, out);
  if (!idle.empty()) note = fmt::format("note: without effect here: {}", fmt::join(idle, ", "));
  return out;
}

}  // namespace m3::cli
