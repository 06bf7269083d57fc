#include "solve/csv.h"

#include <array>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "base/error.h"

namespace stalloc::solve {
namespace {

enum Column : std::size_t { kId, kLower, kUpper, kSize, kOffset, kAlignment, kGaps, kColumns };

constexpr std::array<std::string_view, kColumns> kNames = {"id",     "lower",     "upper", "size",
                                                           "offset", "alignment", "gaps"};

[[noreturn]] void fail(std::size_t line, const std::string& what) {
  throw PlanError("line " + std::to_string(line) + ": " + what);
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(trim(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

// The position of each column in a line, if it has one.
using Header = std::array<std::optional<std::size_t>, kColumns>;

Header read_header(std::string_view line, std::size_t number) {
  Header header;
  const std::vector<std::string_view> names = split(line);
  for (std::size_t field = 0; field < names.size(); ++field) {
    for (std::size_t c = 0; c < kColumns; ++c) {
      if (names[field] != kNames[c]) continue;
      if (header[c]) fail(number, "the column \"" + std::string(kNames[c]) + "\" appears twice");
      header[c] = field;
    }
  }
  for (const Column c : {kId, kLower, kUpper, kSize}) {
    if (!header[c]) {
      fail(number, "the column \"" + std::string(kNames[c]) +
                       "\" is missing; a header line like \"id,lower,upper,size\" is expected");
    }
  }
  return header;
}

std::int64_t number_in(std::string_view field, Column column, std::size_t line) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error == std::errc::result_out_of_range) {
    fail(line, "the " + std::string(kNames[column]) + " " + std::string(field) +
                   " does not fit in 63 bits");
  }
  if (error != std::errc() || end != field.data() + field.size()) {
    fail(line, "the " + std::string(kNames[column]) + " \"" + std::string(field) +
                   "\" is no whole number");
  }
  return value;
}

// Reads gaps such as "3-5 8-11", ascending.
void read_gaps(std::string_view field, std::size_t line, Problem& problem) {
  const Buffer& buffer = problem.buffers.back();
  Tick reached = buffer.lower;
  while (!field.empty()) {
    const std::size_t blank = field.find(' ');
    const std::string_view gap = field.substr(0, blank);
    field = blank == std::string_view::npos ? std::string_view{} : trim(field.substr(blank));
    const std::string quoted = "the gap \"" + std::string(gap) + "\"";
    if (gap.find('@') != std::string_view::npos) {
      fail(line, quoted + " is of a part of the buffer only, which is not supported");
    }
    const std::size_t dash = gap.find('-', 1);
    if (dash == std::string_view::npos) fail(line, quoted + " is not like \"3-5\"");
    const Tick lower = number_in(gap.substr(0, dash), kGaps, line);
    const Tick upper = number_in(gap.substr(dash + 1), kGaps, line);
    if (upper <= lower) fail(line, quoted + " is empty or reversed");
    if (lower < buffer.lower || upper > buffer.upper) {
      fail(line, quoted + " is not within the lifetime");
    }
    if (lower < reached) fail(line, quoted + " overlaps the one before it, or is out of order");
    problem.idle.push_back({static_cast<std::int32_t>(problem.buffers.size() - 1), lower, upper});
    reached = upper;
  }
}

// Writes gaps as read_gaps() reads them, and moves `gap` to the first of the next buffer.
std::string gaps_of(const Problem& problem, std::size_t buffer,
                    std::vector<IdleInterval>::const_iterator& gap) {
  std::string text;
  for (; gap != problem.idle.end() && static_cast<std::size_t>(gap->buffer) == buffer; ++gap) {
    if (!text.empty()) text += ' ';
    text += std::to_string(gap->lower);
    text += '-';
    text += std::to_string(gap->upper);
  }
  return text;
}

}  // namespace

CsvProblem read_csv(std::string_view text) {
  CsvProblem result;
  result.problem.alignment = 1;
  std::optional<Header> header;
  std::size_t fields_expected = 0;
  std::unordered_set<std::string_view> seen;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t length = text.find('\n');
    const std::string_view line = trim(text.substr(0, length));
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
    if (line.empty()) continue;
    if (!header) {
      header = read_header(line, number);
      fields_expected = split(line).size();
      result.has_offsets = (*header)[kOffset].has_value();
      continue;
    }
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != fields_expected) {
      fail(number, std::to_string(fields.size()) + " fields where the header names " +
                       std::to_string(fields_expected));
    }
    const auto value = [&](Column c) { return number_in(fields[*(*header)[c]], c, number); };
    const std::string_view id = fields[*(*header)[kId]];
    if (!seen.insert(id).second) fail(number, "the id \"" + std::string(id) + "\" appears twice");
    Buffer buffer;
    buffer.lower = value(kLower);
    buffer.upper = value(kUpper);
    buffer.size = value(kSize);
    if (buffer.lower < 0) fail(number, "a lifetime that begins before time 0");
    if (buffer.upper < buffer.lower) fail(number, "a lifetime that ends before it begins");
    if (buffer.size < 0) fail(number, "a negative size");
    if ((*header)[kAlignment] && value(kAlignment) > 1) {
      fail(number,
           "an alignment of its own for one buffer is not supported; plan with one "
           "alignment for all");
    }
    if (result.has_offsets) result.offsets.push_back(value(kOffset));
    result.problem.buffers.push_back(buffer);
    if ((*header)[kGaps]) read_gaps(fields[*(*header)[kGaps]], number, result.problem);
    result.ids.emplace_back(id);
  }
  if (!header) fail(1, "the file is empty; a header line \"id,lower,upper,size\" is expected");
  return result;
}

std::string write_csv(const std::vector<std::string>& ids, const Problem& problem,
                      const Layout& layout) {
  const bool has_gaps = !problem.idle.empty();
  std::string text =
      has_gaps ? "id,lower,upper,size,gaps,offset\n" : "id,lower,upper,size,offset\n";
  auto gap = problem.idle.begin();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    text += ids[i];
    for (const std::int64_t value : {b.lower, b.upper, b.size}) {
      text += ',';
      text += std::to_string(value);
    }
    if (has_gaps) {
      text += ',';
      text += gaps_of(problem, i, gap);
    }
    text += ',';
    text += std::to_string(layout.offsets[i]);
    text += '\n';
  }
  return text;
}

}  // namespace stalloc::solve
