#include "data/damage_log.h"
#include "data/lines/texts.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() { return {"pos\ta good film\nneg\tn\xc3\xa9\n", "1\tx\r\n\r\n0\ty"}; }

void parse(std::string_view bytes) {
  data::DamageLog damage(data::DataOptions{});
  std::vector<data::LabelledText> texts;
  data::TextReading reading;
  data::read_lines(file_of(bytes), reading, damage, texts);
}

}  // namespace lockstep::fuzz
