// A plain validator of JSON Schema for tests: it shares no code with src/grammar.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace m3::test {

// What is wrong with the value, as one line; empty where it satisfies the schema. Knows the keywords that the project
// enforces, and fails the test on others that constrain.
std::string schema_problem(const nlohmann::json& value, const nlohmann::json& schema, const nlohmann::json& root);

}  // namespace m3::test
