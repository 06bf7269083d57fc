#include "base/json_reader.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::string_view kFormat = "format";
constexpr std::string_view kVersion = "version";

}  // namespace

void JsonReader::document(std::string_view format, std::int64_t version,
                          std::initializer_list<Field> fields) {
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
  if (const auto error = parser.iterate(text_).get(document)) fail(error);
  simdjson::ondemand::object root;
  const auto error = document.get_object().get(root);
  if (error == simdjson::INCORRECT_TYPE) fail("not a JSON object");
  if (error) fail(error);
  expect(root, format, version);
  if (const auto reset = root.reset().error()) fail(reset);
  std::vector<Field> all(fields);
  for (const std::string_view key : {kFormat, kVersion}) all.push_back({key, [](Value) {}});
  object(root, all);
  const char* rest = nullptr;
  if (document.current_location().get(rest) != simdjson::OUT_OF_BOUNDS) {
    fail("there is text after the end of the JSON object");
  }
}

void JsonReader::expect(simdjson::ondemand::object object, std::string_view format,
                        std::int64_t version) {
  std::string_view found;
  if (object[kFormat].get_string().get(found)) {
    fail("no 'format': not a file of stalloc's, or a damaged one");
  }
  if (found != format) {
    fail("holds a '" + std::string(found) + "', where a '" + std::string(format) + "' is needed");
  }
  std::int64_t number = 0;
  if (object[kVersion].get_int64().get(number) || number < 1) {
    fail("the 'version' is missing or invalid");
  }
  if (number > version) {
    fail("is of version " + std::to_string(number) + ", and this stalloc reads version " +
         std::to_string(version) + ": upgrade stalloc, or write the file anew");
  }
}

void JsonReader::object(simdjson::ondemand::object object, const std::vector<Field>& fields) {
  std::vector<bool> seen(fields.size(), false);
  const std::string parent = path_;
  for (auto entry : object) {
    auto field = get(std::move(entry));
    const std::string_view key = get(field.unescaped_key());
    const auto known = std::ranges::find(fields, key, &Field::key);
    if (known == fields.end()) fail("unknown key '" + std::string(key) + "'");
    auto was_seen = seen[static_cast<std::size_t>(known - fields.begin())];
    if (was_seen) fail("the key '" + std::string(key) + "' appears twice");
    was_seen = true;
    path_ = parent.empty() ? std::string(key) : parent + "." + std::string(key);
    known->read(field.value());
    path_ = parent;
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!seen[i] && !fields[i].optional)
      fail("the key '" + std::string(fields[i].key) + "' is missing");
  }
}

std::string JsonReader::text(Value value) {
  return std::string(get(value.get_string(), "a string", value));
}

bool JsonReader::boolean(Value value) { return get(value.get_bool(), "true or false", value); }

bool JsonReader::is_null(Value value) {
  bool null = false;
  return !value.is_null().get(null) && null;
}

std::map<std::string, std::string> JsonReader::texts(Value value) {
  std::map<std::string, std::string> result;
  const std::string parent = path_;
  auto entries = get(value.get_object(), "an object of strings", value);
  for (auto entry : entries) {
    auto field = get(std::move(entry));
    const std::string key(get(field.unescaped_key()));
    path_ = parent + "." + key;
    if (!result.emplace(key, text(field.value())).second) fail("the key appears twice");
    path_ = parent;
  }
  return result;
}

std::string JsonReader::token(Value value) {
  constexpr std::size_t kLongest = 40;
  std::string_view token = value.raw_json_token();
  token = token.substr(0, token.find_last_not_of(" \t\r\n") + 1);
  return token.size() > kLongest ? std::string(token.substr(0, kLongest)) + "..."
                                 : std::string(token);
}

void JsonReader::fail(simdjson::error_code error) const {
  if (error == simdjson::INCOMPLETE_ARRAY_OR_OBJECT || error == simdjson::UNCLOSED_STRING ||
      error == simdjson::EMPTY) {
    fail("the file ends too early: it was cut off");
  }
  fail(simdjson::error_message(error));
}

void JsonReader::fail(const std::string& what) const {
  std::string message = source_;
  if (!path_.empty()) message += ": " + path_;
  if (row_ != kNoRow) message += ", row " + std::to_string(row_);
  raise_(message + ": " + what);
  std::abort();
}

}  // namespace stalloc
