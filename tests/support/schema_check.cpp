#include "tests/support/schema_check.h"

#include <fmt/format.h>

#include <cmath>
#include <regex>

namespace m3::test {
namespace {

using nlohmann::json;

bool is_type(const json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  return false;
}

std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

std::string number_problem(const json& value, const json& schema) {
  const double number = value.get<double>();
  const auto wrong = [&](const char* keyword) { return fmt::format("{} against {}", value.dump(), keyword); };
  const auto bound = [&](const char* keyword) { return schema.at(keyword).get<double>(); };
  if (schema.contains("minimum") && number < bound("minimum")) return wrong("minimum");
  if (schema.contains("maximum") && number > bound("maximum")) return wrong("maximum");
  if (schema.value("exclusiveMinimum", nlohmann::json()).is_boolean())
    return number > bound("minimum") ? "" : wrong("minimum");
  if (schema.contains("exclusiveMinimum") && number <= bound("exclusiveMinimum")) return wrong("exclusiveMinimum");
  if (schema.contains("exclusiveMaximum") && number >= bound("exclusiveMaximum")) return wrong("exclusiveMaximum");
  if (schema.contains("multipleOf")) {
    const double quotient = number / bound("multipleOf");
    if (std::fabs(quotient - std::round(quotient)) > 1e-6 * std::max(1.0, std::fabs(quotient)))
      return wrong("multipleOf");
  }
  return "";
}

std::string string_problem(const json& value, const json& schema) {
  const auto text = value.get<std::string>();
  if (schema.contains("minLength") && characters(text) < schema.at("minLength")) return "minLength: " + text;
  if (schema.contains("maxLength") && characters(text) > schema.at("maxLength")) return "maxLength: " + text;
  if (schema.contains("pattern")) {
    if (!std::regex_search(text, std::regex(schema.at("pattern").get<std::string>()))) return "pattern: " + text;
  }
  return "";
}

std::string array_problem(const json& value, const json& schema, const json& root) {
  if (schema.contains("minItems") && value.size() < schema.at("minItems")) return "minItems";
  if (schema.contains("maxItems") && value.size() > schema.at("maxItems")) return "maxItems";
  const json prefix = schema.value("prefixItems", json::array());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const json* item = i < prefix.size() ? &prefix[i] : schema.contains("items") ? &schema.at("items") : nullptr;
    if (item == nullptr) continue;
    if (auto problem = schema_problem(value[i], *item, root); !problem.empty())
      return fmt::format("[{}] {}", i, problem);
  }
  return "";
}

std::string object_problem(const json& value, const json& schema, const json& root) {
  for (const json& name : schema.value("required", json::array())) {
    if (!value.contains(name.get<std::string>())) return "missing " + name.dump();
  }
  if (schema.contains("minProperties") && value.size() < schema.at("minProperties")) return "minProperties";
  if (schema.contains("maxProperties") && value.size() > schema.at("maxProperties")) return "maxProperties";
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, member] : value.items()) {
    const json* inner = properties.contains(name)                 ? &properties.at(name)
                        : schema.contains("additionalProperties") ? &schema.at("additionalProperties")
                                                                  : nullptr;
    if (inner == nullptr) continue;
    if (auto problem = schema_problem(member, *inner, root); !problem.empty())
      return fmt::format(".{} {}", name, problem);
  }
  return "";
}

}  // namespace

std::string schema_problem(const json& value, const json& schema, const json& root) {
  if (schema.is_boolean()) return schema.get<bool>() ? "" : "nothing is allowed here";
  if (schema.contains("$ref")) {
    const std::string reference = schema.at("$ref").get<std::string>().substr(1);
    if (auto problem = schema_problem(value, root.at(json::json_pointer(reference)), root); !problem.empty())
      return problem;
  }
  if (schema.contains("type")) {
    const json types = schema.at("type").is_array() ? schema.at("type") : json::array({schema.at("type")});
    bool any = value.is_null() && schema.value("nullable", false);
    for (const json& type : types) any = any || is_type(value, type.get<std::string>());
    if (!any) return fmt::format("{} is not {}", value.dump(), schema.at("type").dump());
  }
  if (schema.contains("enum")) {
    bool any = false;
    for (const json& one : schema.at("enum")) any = any || one == value;
    if (!any) return value.dump() + " is none of " + schema.at("enum").dump();
  }
  if (schema.contains("const") && schema.at("const") != value)
    return value.dump() + " is not " + schema.at("const").dump();
  for (const json& all : schema.value("allOf", json::array())) {
    if (auto problem = schema_problem(value, all, root); !problem.empty()) return problem;
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    int held = 0;
    std::string problems;
    for (const json& one : schema.at(keyword)) {
      const std::string problem = schema_problem(value, one, root);
      held += problem.empty() ? 1 : 0;
      problems += problem + "; ";
    }
    if (held == 0 || (held > 1 && std::string_view(keyword) == "oneOf"))
      return fmt::format("{}: {}", keyword, problems);
  }
  if (value.is_number()) return number_problem(value, schema);
  if (value.is_string()) return string_problem(value, schema);
  if (value.is_array()) return array_problem(value, schema, root);
  if (value.is_object()) return object_problem(value, schema, root);
  return "";
}

}  // namespace m3::test
