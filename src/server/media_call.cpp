#include "src/server/media_call.h"

#include <mutex>

#include "m3/error.h"

namespace m3::server {
namespace {

// One request's pictures on their way.
class Loading : public std::enable_shared_from_this<Loading> {
 public:
  Loading(Server& server, std::shared_ptr<Exchange> exchange, FieldNames names, WithPictures go_on)
      : server_(server), exchange_(std::move(exchange)), names_(std::move(names)), go_on_(std::move(go_on)) {}

  void start(std::vector<media::Reference> references) {
    const std::weak_ptr<Loading> weak = weak_from_this();
    const auto cancel = [weak] {
      if (const auto self = weak.lock()) self->cancel();
    };
    key_ = server_.generations().add(exchange_->request().id, cancel);
    exchange_->on_gone(cancel);
    const ModelInfo& info = server_.model().engine->info();
    try {
      auto job = server_.media().load(
          std::move(references), info.media, info.max_model_len,
          [self = shared_from_this()](std::vector<media::Prepared> pictures, std::exception_ptr problem) {
            // Handlers and replies run on workers; this may be one of the loader's threads.
            self->server_.workers().post([self, pictures = std::move(pictures), problem = std::move(problem)] {
              self->finish(pictures, problem);
            });
          },
          server_.model().engine->statistics().waiting);
      bool cancelled = false;
      {
        const std::lock_guard lock(mutex_);
        job_ = job;
        cancelled = cancelled_;
      }
      if (cancelled) server_.media().cancel(job);
    } catch (...) {
      server_.generations().remove(key_);
      throw;
    }
  }

 private:
  void cancel() {
    std::shared_ptr<media::MediaLoader::Job> job;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      job = job_;
    }
    if (job) server_.media().cancel(job);
  }

  void finish(const std::vector<media::Prepared>& pictures, const std::exception_ptr& problem) {
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      cancelled = cancelled_;
    }
    try {
      if (!exchange_->gone()) {
        if (cancelled) throw ApiError(503, "the request was cancelled by the server", {}, "cancelled");
        if (problem) std::rethrow_exception(problem);
        go_on_(pictures);
      }
    } catch (...) {
      exchange_->send(error_reply(names_.translate(to_api_error(std::current_exception())), exchange_->request()));
    }
    // Behind the beginning of its generation, so that the server's end finds the one or the other.
    server_.generations().remove(key_);
    go_on_ = nullptr;
  }

  Server& server_;
  std::shared_ptr<Exchange> exchange_;
  FieldNames names_;
  WithPictures go_on_;
  std::uint64_t key_ = 0;
  std::mutex mutex_;
  std::shared_ptr<media::MediaLoader::Job> job_;
  bool cancelled_ = false;
};

}  // namespace

std::vector<media::Reference> read_pictures(const Server& server, const chat::ChatRequest& request,
                                            const chat::Value& body) {
  std::vector<media::Reference> references = media::read_references(request, body, server.options().media);
  if (references.empty()) return references;
  const Model& model = server.model();
  media::check_model_takes(references, model.engine->info().media);
  static_cast<void>(media::placeholder_ids(model.tokenizer, model.engine->info().media));
  return references;
}

void with_pictures(Server& server, const std::shared_ptr<Exchange>& exchange, std::vector<media::Reference> references,
                   const FieldNames& names, WithPictures go_on) {
  if (references.empty()) return go_on({});
  std::make_shared<Loading>(server, exchange, names, std::move(go_on))->start(std::move(references));
}

void add_pictures(const Model& model, const std::vector<media::Prepared>& pictures, ChatCall& call) {
  if (pictures.empty()) return;
  try {
    call.request.prompt_ids =
        media::expand_prompt(model.tokenizer, model.engine->info().media, call.request.prompt_ids, pictures);
  } catch (const Error& error) {
    throw Error(error.kind(), std::string("messages: ") + error.what());
  }
  call.request.media = media::media_of(pictures);
  check_prompt_length(model, call.request.prompt_ids.size(), "messages");
}

}  // namespace m3::server
