#include "src/checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "tests/support/temporary_directory.h"

namespace m3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GenerationConfig parse(const std::string& json) { return parse_generation_config(json, "generation_config.json"); }

TEST(GenerationConfig, EndTokensAndDefaults) {
  const GenerationConfig config = parse(
      R"({"eos_token_id": [200020, 7], "do_sample": true, "temperature": 1.0, "top_p": 0.95, "top_k": 40, "min_p": 0.01,
          "repetition_penalty": 1.1, "transformers_version": "4.46.1", "bos_token_id": 200019})");
  EXPECT_THAT(config.eos_token_ids, ElementsAre(200020, 7));
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 1.0f);
  EXPECT_EQ(config.top_p, 0.95f);
  EXPECT_EQ(config.top_k, 40);
  EXPECT_EQ(config.min_p, 0.01f);
  EXPECT_EQ(config.repetition_penalty, 1.1f);
}

TEST(GenerationConfig, OneEndTokenAndNothingElse) {
  const GenerationConfig config = parse(R"({"eos_token_id": 2, "temperature": null})");
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_FALSE(config.temperature || config.top_p || config.top_k || config.do_sample);
  EXPECT_EQ(parse(R"({"top_k": -1})").top_k, 0);
}

TEST(GenerationConfig, NoFileMeansNoDefaults) {
  const test::TemporaryDirectory directory;
  EXPECT_TRUE(read_generation_config(directory.path()).eos_token_ids.empty());
  test::write_file(directory / "generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_THAT(read_generation_config(directory.path()).eos_token_ids, ElementsAre(5));
}

TEST(GenerationConfig, Refusals) {
  const std::vector<std::pair<const char*, const char*>> table = {
      {R"({"eos_token_id": "end"})", "eos_token_id is \"end\"; accepted: a token id"},
      {R"({"eos_token_id": -1})", "eos_token_id is -1"},
      {R"({"eos_token_id": [1, 2.5]})", "eos_token_id is a list of 2"},
      {R"({"eos_token_id": 4294967296})", "eos_token_id is 4294967296"},
      {R"({"temperature": -0.5})", "temperature is -0.5"},
      {R"({"temperature": "hot"})", "temperature is \"hot\""},
      {R"({"top_p": 0})", "top_p is 0; accepted: above 0, at most 1"},
      {R"({"top_p": 1.5})", "top_p is 1.5"},
      {R"({"min_p": 1})", "min_p is 1"},
      {R"({"top_k": 1.5})", "top_k is 1.5"},
      {R"({"repetition_penalty": 0})", "repetition_penalty is 0"},
      {R"({"do_sample": 1})", "do_sample is 1; accepted: true or false"},
      {"[]", "expected a JSON object"},
      {"", "not valid JSON"},
  };
  for (const auto& [json, message] : table) {
    try {
      parse(json);
      ADD_FAILURE() << json << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_THAT(error.what(), HasSubstr("generation_config.json"));
    }
  }
}

}  // namespace
}  // namespace m3
