#include "src/server/model.h"

#include "src/base/error.h"

namespace m3::server {

std::unique_ptr<Model> load_model(const EngineOptions& options, const std::string& template_path,
                                  const LoadProgress& progress) {
  std::optional<chat::ChatTemplate> chat_template;
  std::string no_template;
  if (!template_path.empty()) {
    chat_template.emplace(chat::load_chat_template(template_path));
  } else {
    try {
      chat_template.emplace(chat::load_chat_template(options.checkpoint));
    } catch (const Error& problem) {
      no_template = problem.what();
    }
  }
  std::unique_ptr<Engine> engine = Engine::load(options, progress);
  auto model = std::make_unique<Model>(Model{
      std::move(engine), Tokenizer::load(options.checkpoint), std::move(chat_template), std::move(no_template), {}});
  model->name = model->engine->info().name;
  return model;
}

}  // namespace m3::server
