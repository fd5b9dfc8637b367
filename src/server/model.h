// What is served: the engine, and what the chat format needs of the checkpoint.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "m3/engine.h"
#include "src/chat/prompt.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::server {

struct Model {
  std::unique_ptr<Engine> engine;
  Tokenizer tokenizer;
  std::optional<chat::ChatTemplate> chat_template;  // nothing: chat is refused with `no_template`
  std::string no_template;
  std::string name;  // of the checkpoint's folder
  std::time_t created = std::time(nullptr);
};

// `template_path`: a template file, or empty for the checkpoint's own. Errors: as Engine::load; a template file that
// does not parse.
std::unique_ptr<Model> load_model(const EngineOptions& options, const std::string& template_path,
                                  const LoadProgress& progress = {});

// What load_model() is.
using ModelLoader = std::function<std::unique_ptr<Model>(const EngineOptions& options, const std::string& template_path,
                                                         const LoadProgress& progress)>;

}  // namespace m3::server
