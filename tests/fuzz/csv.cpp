#include "data/tables/csv.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"a,b,c\n1,2.5,x\n\"q\"\"uote\",\"line\r\nbreak\",\n",
          "\xef\xbb\xbf"
          "a;b\r\n\r\n1;\"2\"\r\n"};
}

void parse(std::string_view bytes) {
  for (const char separator : {',', ';'}) {
    data::CsvReader reader(bytes, separator);
    data::CsvRow row;
    while (reader.next(row))
      for (const auto& cell : row.cells) data::utf8_problem(cell);
  }
}

}  // namespace lockstep::fuzz
