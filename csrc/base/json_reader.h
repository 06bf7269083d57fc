// Reads the project's JSON files: objects whose keys are all known, tables stored by column.
//
// A thin layer over simdjson's on-demand parser, which never builds a document: a value is
// converted where it stands, so that a table of a million rows costs its rows and nothing else.
// This adds strictness (no unknown, repeated or missing key, columns of one length) and errors that
// name the file, the key and the row. Not thread-safe.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stalloc {

class JsonReader {
 public:
  using Value = simdjson::ondemand::value;
  using Raise = void (*)(const std::string& message);  // throws the format's own exception

  struct Field {
    std::string_view key;
    std::function<void(Value)> read;
    bool optional = false;
  };

  template <typename Row>
  struct Column {
    std::string_view key;
    std::function<void(Row&, Value)> read;
    bool optional = false;
  };

  // `source` is what messages call the text.
  JsonReader(std::string_view text, std::string_view source, Raise raise)
      : text_(text), source_(source), raise_(raise) {}

  // Reads the whole text. Its "format" must be `format` and its "version" at most `version`; its
  // other keys are `fields`, in any order. Only optional ones may be missing.
  void document(std::string_view format, std::int64_t version, std::initializer_list<Field> fields);

  // Each converts one value, or fails.
  std::string text(Value value);
  bool boolean(Value value);
  bool is_null(Value value);
  std::map<std::string, std::string> texts(Value value);  // an object of strings
  template <typename Integer>
  Integer integer(Value value) {
    std::int64_t number = 0;
    if (value.get_int64().get(number) || number < std::numeric_limits<Integer>::min() ||
        number > std::numeric_limits<Integer>::max()) {
      fail("expected an integer of " + std::to_string(8 * sizeof(Integer)) + " bits, found " +
           token(value));
    }
    return static_cast<Integer>(number);
  }
  // Calls read(value) for each element.
  template <typename Read>
  void array(Value value, Read read);
  // Reads an object of arrays of one length.
  template <typename Row>
  std::vector<Row> table(Value value, const std::vector<Column<Row>>& columns);

  // Throws; the message begins with the place that is being read.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  static constexpr std::int64_t kNoRow = -1;

  [[noreturn]] void fail(simdjson::error_code error) const;
  void object(simdjson::ondemand::object object, const std::vector<Field>& fields);
  void expect(simdjson::ondemand::object object, std::string_view format, std::int64_t version);
  static std::string token(Value value);
  template <typename T>
  T get(simdjson::simdjson_result<T> result) const {
    T value;
    if (const auto error = std::move(result).get(value)) fail(error);
    return value;
  }
  template <typename T>
  T get(simdjson::simdjson_result<T> result, std::string_view expected, Value found) const {
    T value;
    const auto error = std::move(result).get(value);
    if (error == simdjson::INCORRECT_TYPE) {
      fail("expected " + std::string(expected) + ", found " + token(found));
    }
    if (error) fail(error);
    return value;
  }

  simdjson::padded_string text_;
  std::string source_;
  Raise raise_;
  std::string path_;  // the current key, as in "requests.size"
  std::int64_t row_ = kNoRow;
};

template <typename Read>
void JsonReader::array(Value value, Read read) {
  auto elements = get(value.get_array(), "an array", value);
  const std::int64_t outer = std::exchange(row_, 0);
  for (auto element : elements) {
    read(get(std::move(element)));
    ++row_;
  }
  row_ = outer;
}

template <typename Row>
std::vector<Row> JsonReader::table(Value value, const std::vector<Column<Row>>& columns) {
  std::vector<Row> rows;
  std::string_view first;  // the column that was read first and told the number of rows
  std::vector<Field> fields;
  for (const Column<Row>& column : columns) {
    fields.push_back({column.key,
                      [&](Value cells) {
                        std::size_t count = 0;
                        array(cells, [&](Value cell) {
                          if (count == rows.size()) {
                            if (!first.empty()) {
                              fail("more rows than the " + std::to_string(rows.size()) + " of '" +
                                   std::string(first) + "'");
                            }
                            rows.emplace_back();
                          }
                          column.read(rows[count++], cell);
                        });
                        if (count < rows.size()) {
                          fail("has " + std::to_string(count) + " rows, but '" +
                               std::string(first) + "' has " + std::to_string(rows.size()));
                        }
                        if (first.empty()) first = column.key;
                      },
                      column.optional});
  }
  object(get(value.get_object(), "an object of columns", value), fields);
  return rows;
}

}  // namespace stalloc
