#include "data/images/image_list.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"a/b.jpg\t0\nc d.png\t12\n", "x.png cat\r\n\r\ny.png dog\n", "\xef\xbb\xbfx.png\tein L\xc3\xb6we"};
}

void parse(std::string_view bytes) {
  const data::ImageList list = data::list_file(file_of(bytes), "root");
  data::labels_of(list, data::classes_of({}, {&list}));
}

}  // namespace lockstep::fuzz
