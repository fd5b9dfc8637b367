// Numbers with units, and that every flag of bytes or tokens takes them.
#include "src/cli/number_words.h"

#include <gtest/gtest.h>

#include "src/cli/serve_options.h"

namespace m3::cli {
namespace {

TEST(NumberWords, AreAsVllmReadsThem) {
  const std::pair<const char*, std::int64_t> cases[] = {{"0", 0},
                                                        {"123", 123},
                                                        {"32k", 32'000},
                                                        {"32K", 32'768},
                                                        {"4G", 4LL << 30},
                                                        {"4g", 4'000'000'000},
                                                        {"512M", 512 << 20},
                                                        {"1.5K", 1536},
                                                        {"25.6k", 25'600},
                                                        {"2T", 2LL << 40},
                                                        {"1t", 1'000'000'000'000},
                                                        {"4GiB", 4LL << 30},
                                                        {"4GB", 4'000'000'000},
                                                        {"1kB", 1000},
                                                        {"1KB", 1000}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(parse_number_words(text), expected) << text;
  for (const char* wrong : {"", "k", "4X", "4 G", "-4G", "1..5K", "4Gi", "4gb", "4mB", "1e3K", "9999999T", "1.5", "G4",
                            "4GiBs", "nan", "infK", "99999999999999999999"}) {
    EXPECT_FALSE(parse_number_words(wrong)) << wrong;
  }
}

// Lists as vLLM takes them, and plain words.
TEST(WordLists, AsJsonAndPlain) {
  const auto origins = [](const std::string& value) {
    CLI::App command;
    ServeOptions options;
    add_model_options(command, options.model);
    add_serve_options(command, options);
    command.parse(std::vector<std::string>{"--allowed-origins=" + value});
    return options.finish().allowed_origins;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(origins("*"), Words{"*"});
  EXPECT_EQ(origins(R"(["*"])"), Words{"*"});
  EXPECT_EQ(origins(R"(["http://a", "http://b:80"])"), (Words{"http://a", "http://b:80"}));
  EXPECT_EQ(origins(R"(["http://a","http://b:80"])"), (Words{"http://a", "http://b:80"}));
}

TEST(NumberWords, EveryFlagOfBytesTakesThem) {
  CLI::App command;
  ServeOptions options;
  add_model_options(command, options.model);
  add_serve_options(command, options);
  int count = 0;
  for (const CLI::Option* option : command.get_options()) {
    const std::string& name = option->get_lnames().empty() ? option->get_name() : option->get_lnames().front();
    const bool bytes = name.find("-bytes") != std::string::npos || name == "max-body-size" ||
                       name == "max-body-memory" || name == "h11-max-incomplete-event-size" ||
                       name == "max-stream-queue";
    const bool tokens = name == "max-model-len" || name == "max-num-batched-tokens";
    if (!bytes && !tokens) continue;
    ++count;
    const auto line = [&](const std::string& value) -> std::string {
      CLI::App fresh;
      ServeOptions read;
      add_model_options(fresh, read.model);
      add_serve_options(fresh, read);
      try {
        fresh.parse(std::vector<std::string>{"--" + name + "=" + value});
      } catch (const CLI::Error& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(line("64K"), "") << name;
    EXPECT_NE(line("64X").find("64X is not a number of"), std::string::npos) << name << ": " << line("64X");
  }
  EXPECT_EQ(count, 13);
}

}  // namespace
}  // namespace m3::cli
