// Any bytes as the body of a request, its pictures among them: it becomes an engine request whose numbers are in range, or an error of the 400s.
// The first byte chooses the API.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "m3/engine.h"
#include "src/base/error.h"
#include "src/server/chat_call.h"
#include "src/server/completion_call.h"
#include "src/server/errors.h"
#include "src/server/media_call.h"
#include "src/server/server.h"

namespace {

const std::string shipped = std::string(M3_MODELS) + "/m3-tiny-chat";

// Knows the tokenizer and runs nothing.
class NoEngine final : public m3::Engine {
 public:
  explicit NoEngine(m3::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {
    info_.vocab_size = tokenizer_.vocab_size();
    info_.max_model_len = 4096;
    info_.media.unavailable = "";
    info_.media.image_id = tokenizer_.id_of("]<]image[>[");
    info_.media.video_id = tokenizer_.id_of("]<]video[>[");
    info_.media.max_patches = 1024;
  }
  const m3::ModelInfo& info() const override { return info_; }
  m3::RequestId submit(m3::Request, m3::EventSink) override { m3::fail_internal("nothing runs here"); }
  void cancel(m3::RequestId) override {}
  m3::Statistics statistics() const override { return {}; }
  bool healthy() const override { return true; }
  void reset_prefix_cache() override {}
  std::vector<m3::TokenId> encode(std::string_view text, bool parse_special) const override {
    return tokenizer_.encode(text, {.parse_special = parse_special});
  }
  std::string decode(std::span<const m3::TokenId> ids, bool skip_special) const override {
    return tokenizer_.decode(ids, skip_special);
  }

 private:
  m3::Tokenizer tokenizer_;
  m3::ModelInfo info_;
};

m3::server::Server& shared_server() {
  // Never ended: at exit OpenSSL, which FFmpeg brings along, is gone before the loader's threads could give back what
  // they hold of it.
  static m3::server::Server& server = *[] {
    m3::server::ServerOptions options;
    options.host = "127.0.0.1";
    options.port = 0;
    options.log_level = "critical";
    // Small ones are decoded; nothing is read from files or the web.
    options.media.threads = 2;
    options.media.image.limits.pixels = 1 << 16;
    options.media.video.limits.pixels = 1 << 16;
    options.media.video.limits.all_pixels = 1 << 20;
    options.media.memory_bytes = 1 << 26;
    options.media.cache_bytes = 1 << 20;
    return new m3::server::Server(options, [](const m3::LoadProgress&) {
      const m3::Tokenizer tokenizer = m3::Tokenizer::load(shipped);
      return std::make_unique<m3::server::Model>(m3::server::Model{std::make_unique<NoEngine>(tokenizer), tokenizer,
                                                                   m3::chat::load_chat_template(shipped), "", "none"});
    });
  }();
  server.wait_until_loaded();
  return server;
}

void check(const m3::Request& request) {
  const bool sound =
      !request.prompt_ids.empty() && request.samples >= 1 && request.samples <= 128 && request.min_tokens >= 0 &&
      (!request.max_tokens || *request.max_tokens >= 1) && request.logprobs >= -1 && request.logprobs <= 20 &&
      (!request.sampling.temperature || (*request.sampling.temperature >= 0 && *request.sampling.temperature <= 2));
  if (!sound) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace m3::server;
  if (size == 0) return 0;
  Server& server = shared_server();
  HttpRequest request;
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 2 == 0) {
      ChatCall call = read_chat_call(server, parse_body(request));
      check(call.request);
      const m3::ModelInfo& info = server.model().engine->info();
      add_pictures(server.model(), server.media().load_now(call.pictures, info.media, info.max_model_len), call);
      check(call.request);
      if (call.request.media.size() != call.pictures.size()) std::abort();
    } else {
      CompletionCall call = read_completion_call(server, parse_body(request));
      for (std::vector<m3::TokenId>& prompt : call.prompts) {
        call.request.prompt_ids = std::move(prompt);
        check(call.request);
      }
    }
  } catch (...) {
    if (to_api_error(std::current_exception()).status >= 500) throw;
  }
  return 0;
}
