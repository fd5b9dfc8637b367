// The program itself, with an engine whose thread ends at its 20th step: what `m3 serve` does then is the program's part.
#include "src/base/error.h"
#include "src/cli/program.h"
#include "tests/support/small_engine.h"

int main(int argc, char** argv) {
  const auto load = [](const m3::EngineOptions& options, const std::string&, const m3::LoadProgress&) {
    m3::test::SmallOptions small;
    small.sequences = 1;
    small.before_step = [](std::int64_t step) {
      if (step == 20) m3::fail("step 20 is one too many");
    };
    return std::make_unique<m3::server::Model>(m3::server::Model{
        m3::test::small_engine(small), m3::Tokenizer::load(options.checkpoint), std::nullopt, "no template", "small"});
  };
  return m3::cli::run_program(argc, argv, load);
}
