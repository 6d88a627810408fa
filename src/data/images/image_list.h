#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "data/images/image_header.h"

namespace lockstep::data {

/// An image file before anything of it is read.
struct ListedImage {
  std::string path;   ///< as it is opened
  std::string name;   ///< below its folder, or as its list has it
  std::string label;  ///< a class, as text; "": none is known
  std::string place;  ///< where a list says so: "FILE:LINE"; "" in folders
};

/// The images of one part of the data, in an order that no file system decides.
struct ImageList {
  std::string source;                ///< the folder or the list
  std::vector<ListedImage> images;   ///< folders: sorted by name; lists: in their order
  std::vector<std::string> classes;  ///< folders: all of them, sorted; lists: none
  bool is_folder = false;
};

/// Files that end in .jpg, .jpeg or .png, in any case, below one folder for each class. Hidden files and
/// folders are left out. If labels may lack, images directly in `folder` have none. Throws IoError, and
/// DataError if there is no class.
ImageList list_folder(const std::string& folder, bool may_lack_labels = false);

/// Lines of a path, a tab or blanks, and a class. Paths are relative to `root`. Empty lines do not count.
/// If labels may lack, a line may be a path alone. Throws DataError, which names the line.
ImageList list_file(const std::string& file, const std::string& root, bool may_lack_labels = false,
                    int64_t most_inflated = 0);

/// What training and evaluation call their classes: label k is the k-th.
struct ImageClasses {
  std::vector<std::string> names;  ///< empty: lists state numbers
  int64_t count = 0;
};

/// `stated`, or what `lists` (training first) have. Throws DataError for a class that is not among them.
ImageClasses classes_of(const std::vector<std::string>& stated, const std::vector<const ImageList*>& lists);

/// The label of each image; -1 if none is known, or if its folder is no class and `may_lack_labels`.
std::vector<int32_t> labels_of(const ImageList& list, const ImageClasses& classes,
                               bool may_lack_labels = false);

}  // namespace lockstep::data
