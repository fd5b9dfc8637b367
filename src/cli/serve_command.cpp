// m3 serve: the HTTP server.
#include <pthread.h>

#include <csignal>
#include <ctime>
#include <filesystem>

#include "src/base/console.h"
#include "src/base/error.h"
#include "src/base/memory_size.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/cli/serve_options.h"
#include "src/server/server.h"

namespace m3::cli {
namespace {

// SIGTERM and SIGINT are taken by sigtimedwait() below, so every thread must have them blocked.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

bool takes_pictures(const media::MediaOptions& media) { return media.most_images > 0 || media.most_videos > 0; }

void print_ready(server::Server& server) {
  const server::Model& model = server.model();
  const ModelInfo& info = model.engine->info();
  write_error(fmt::format("m3: {} on {}: {:.1f} MB of weights, context {} tokens\n", server.served_name(), info.backend,
                          static_cast<double>(info.weight_bytes) / 1e6, info.max_model_len));
  write_error(fmt::format("m3: cache {} pages = {} tokens ({:.1f} MB); {} samples at once, {:.1f} of full context\n",
                          info.cache_pages, info.cache_tokens,
                          static_cast<double>(info.cache_token_bytes * info.cache_tokens) / 1e6, info.max_num_seqs,
                          info.max_concurrency));
  const media::MediaOptions& media = server.media().options();
  if (info.media.unavailable.empty() && takes_pictures(media)) {
    write_error(fmt::format("m3: pictures hold up to {} and {} while they are decoded, on {} threads and one\n",
                            human_bytes(media.memory_bytes), human_bytes(media.decode_memory_bytes), media.threads));
  }
  if (!model.chat_template) write_error(fmt::format("m3: no chat: {}\n", model.no_template));
  write_error(fmt::format("m3: ready at {}\n", server.url()));
}

void serve(const ServeOptions& options, const server::ModelLoader& load_model) {
  const sigset_t signals = block_signals();
  const server::ServerOptions server_options = options.finish();
  EngineOptions engine = options.model.engine;
  engine.checkpoint = options.model.path();
  if (!options.chat_template.empty() && !std::filesystem::exists(options.chat_template))
    fail("--chat-template {}: there is no such file", options.chat_template);
  if (takes_pictures(server_options.media)) {
    engine.other_picture_bytes = server_options.media.memory_bytes + server_options.media.decode_memory_bytes;
  }
  server::Server server(server_options, [&](const LoadProgress& progress) {
    return load_model(engine, options.chat_template, progress);
  });
  write_error(fmt::format("m3: loading {}; listening at {}\n", engine.checkpoint, server.url()));
  bool announced = false;
  while (true) {
    if (const std::optional<int> code = server.wait_for(std::chrono::milliseconds(0))) {
      if (*code != 0) server.wait_until_loaded();  // throws what went wrong while loading
      if (*code != 0) throw CLI::RuntimeError(*code);
      return;
    }
    if (!announced && server.state() == server::Server::State::ready) {
      announced = true;
      print_ready(server);
    }
    const timespec moment = {0, 20'000'000};
    if (sigtimedwait(&signals, nullptr, &moment) > 0) server.shut_down();
  }
}

}  // namespace

void add_serve_command(CLI::App& app, const server::ModelLoader& load_model) {
  CLI::App& command = *app.add_subcommand("serve", "Serve the OpenAI and Anthropic APIs over HTTP");
  const auto options = std::make_shared<ServeOptions>();
  add_model_options(command, options->model);
  add_serve_options(command, *options);
  command.callback([options, load_model] { serve(*options, load_model); });
}

}  // namespace m3::cli
