// GET /, /page/FILE and /page/state.
#include "src/server/page.h"

#include <algorithm>

#include "src/server/api_routes.h"
#include "src/server/json.h"
#include "src/server/server.h"

namespace m3::server {
namespace {

// Nothing from elsewhere, nothing inline, and nobody may frame the page.
constexpr const char* content_policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri "
    "'none'; "
    "form-action 'none'; frame-ancestors 'none'";

const char* content_type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "image/svg+xml";
}

const char* state_word(Server::State state) {
  switch (state) {
    case Server::State::loading: return "loading";
    case Server::State::ready: return "ready";
    case Server::State::draining: return "ending";
    case Server::State::failed: return "out of order";
  }
  return "";
}

void page(const std::shared_ptr<Exchange>& exchange) {
  const auto& values = exchange->request().path_values;
  const auto asked = values.find("file");
  const std::string name = asked == values.end() ? "index.html" : asked->second;
  const std::span<const PageFile> files = embedded_page_files();
  const auto file = std::ranges::find(files, name, &PageFile::name);
  if (file == files.end()) throw ApiError(404, "/page/" + name + ": no such file");
  HttpReply reply;
  reply.content_type = content_type_of(name);
  reply.body.assign(file->bytes.begin(), file->bytes.end());
  reply.headers = {{"Content-Security-Policy", content_policy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cache-Control", "no-cache"}};
  exchange->send(std::move(reply));
}

void page_state(Server& server, const std::shared_ptr<Exchange>& exchange) {
  const Server::State state = server.state();
  Json out = {{"status", state_word(state)}};
  if (state == Server::State::ready || state == Server::State::draining) {
    const Model& model = server.model();
    const Statistics statistics = model.engine->statistics();
    out["model"] = server.served_name();
    out["backend"] = model.engine->info().backend;
    out["max_model_len"] = model.engine->info().max_model_len;
    out["chat"] = model.chat_template.has_value();
    if (!model.chat_template) out["no_chat"] = model.no_template;
    const MediaInfo& media = model.engine->info().media;
    out["images"] = media.unavailable.empty() && media.image_id >= 0 && server.options().media.most_images > 0;
    out["videos"] = media.unavailable.empty() && media.video_id >= 0 && server.options().media.most_videos > 0;
    if (!media.unavailable.empty()) out["no_pictures"] = media.unavailable;
    out["running"] = statistics.running;
    out["waiting"] = statistics.waiting;
    out["cache_pages"] = statistics.pages_total;
    out["cache_pages_used"] = statistics.pages_used;
    out["cache_pages_kept"] = statistics.pages_cached;
    out["prompt_tokens"] = statistics.prompt_tokens;
    out["generated_tokens"] = statistics.generated_tokens;
  }
  HttpReply reply;
  reply.body = to_text(out);
  reply.headers = {{"Cache-Control", "no-store"}};
  exchange->send(std::move(reply));
}

}  // namespace

void add_page_routes(Router& router, Server& server) {
  const auto state = [&server](const std::shared_ptr<Exchange>& exchange) { page_state(server, exchange); };
  router.add({"GET", "/", page, ErrorStyle::openai, true, true});
  router.add({"GET", "/page/state", state, ErrorStyle::openai, false, true});
  router.add({"GET", "/page/{file}", page, ErrorStyle::openai, true, true});
}

}  // namespace m3::server
