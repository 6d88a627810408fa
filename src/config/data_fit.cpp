#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "config/schema.h"
#include "data/dataset.h"

namespace lockstep::config {
namespace {

const TensorSpec* image_input(const ModelSpec& model) {
  const auto found = std::ranges::find(model.inputs, "image", &ModelInput::name);
  return found == model.inputs.end() ? nullptr : &found->spec;
}

bool is_image_shape(const TensorSpec* input) { return input != nullptr && input->shape.rank() == 3; }

template <class Sized>
void fit_size(Sized& transform, const TensorSpec* image, const Document& document, const std::string& path) {
  if (transform.size_size() == 2) return;
  if (transform.size_size() != 0)
    document.refuse(path + ".size",
                    fmt::format("expected a height and a width, found {} numbers", transform.size_size()));
  if (!is_image_shape(image))
    document.refuse(path + ".size", "is required, since the model has no input 'image' of three dimensions");
  transform.add_size(image->shape[0]);
  transform.add_size(image->shape[1]);
}

void fit_resize(schema::Resize& resize, const TensorSpec* image, const Document& document,
                const std::string& path) {
  if (!resize.has_shorter()) return fit_size(resize, image, document, path);
  if (resize.size_size() > 0) document.refuse(path, "has both size and shorter; remove one");
}

void fit_transforms(google::protobuf::RepeatedPtrField<schema::Transform>& transforms,
                    const TensorSpec* image, const Document& document, const std::string& name) {
  for (int i = 0; i < transforms.size(); ++i) {
    auto& transform = transforms[i];
    const std::string path = fmt::format("{}[{}]", name, i);
    if (transform.has_random_resized_crop())
      fit_size(*transform.mutable_random_resized_crop(), image, document, path + ".random_resized_crop");
    if (transform.has_resize()) fit_resize(*transform.mutable_resize(), image, document, path + ".resize");
    if (transform.has_center_crop())
      fit_size(*transform.mutable_center_crop(), image, document, path + ".center_crop");
    if (!transform.has_normalize()) continue;
    const auto& normalize = transform.normalize();
    if (normalize.mean_size() == 0 || normalize.mean_size() != normalize.deviation_size())
      document.refuse(
          path + ".normalize",
          fmt::format("expected as many numbers in mean as in deviation, and at least one, found {} and "
                      "{}",
                      normalize.mean_size(), normalize.deviation_size()));
  }
}

/// A model that does not read mixtures would take a mixed image for one of its first class.
void check_mixing(const schema::Data& data, const ModelSpec& model, const Document& document) {
  const bool reads =
      std::ranges::find(model.inputs, data::kLabelMixField, &ModelInput::name) != model.inputs.end();
  if (mixes_labels(data) && !reads)
    document.refuse(
        "data.transforms",
        "mixup and cutmix mix labels, but the model does not read them; add input { name: "
        "\"label_mix\" type: INT32 shape: 2 }, and make it the third input of softmax_cross_entropy");
  const bool reads_images =
      std::ranges::any_of(model.inputs, [](const ModelInput& input) { return is_image_shape(&input.spec); });
  if (mixes_labels(data) && !reads_images)
    document.refuse(
        "data.transforms",
        "mixup and cutmix mix images, but the model has no input of three dimensions; remove them");
  if (!mixes_labels(data) && reads && !data.has_own())
    document.refuse("model",
                    "reads 'label_mix', but data.transforms has neither mixup nor cutmix; add one, or remove "
                    "the input: the model stays the same, and takes the weights that it had");
}

void fit_cifar(schema::Cifar& cifar, const Document& document) {
  const bool is_cifar10 = cifar.labels() == schema::Cifar::CIFAR10;
  if ((cifar.eval_files_size() > 0) + cifar.has_eval_list() + (cifar.eval_fraction() > 0) > 1)
    document.refuse("data.cifar",
                    "sets more than one of eval_files, eval_list and eval_fraction; choose one");
  if (cifar.train_files_size() == 0) {
    for (int i = 1; is_cifar10 && i <= 5; ++i) cifar.add_train_files(fmt::format("data_batch_{}.bin", i));
    if (!is_cifar10) cifar.add_train_files("train.bin");
  }
  if (cifar.eval_files_size() == 0 && !cifar.has_eval_list() && cifar.eval_fraction() == 0)
    cifar.add_eval_files(is_cifar10 ? "test_batch.bin" : "test.bin");
}

template <class Kind>
void fit_channels(Kind& kind, const TensorSpec* image, const Document& document, const std::string& path) {
  if (!kind.has_channels()) kind.set_channels(is_image_shape(image) && image->shape[2] == 1 ? 1 : 3);
  if (kind.channels() == 2) document.refuse(path + ".channels", "expected 1 or 3, found 2");
}

void fit_images(schema::Images& images, const TensorSpec* image, const Document& document) {
  const std::string path = "data.images";
  if (images.has_train() == images.has_train_list())
    document.refuse(path, "expected either train, a folder, or train_list, a file");
  if (images.has_eval() + images.has_eval_list() + (images.eval_fraction() > 0) > 1)
    document.refuse(path, "expected at most one of eval, eval_list and eval_fraction");
  for (const auto& [name, has, value] :
       {std::tuple("train", images.has_train(), images.train()),
        std::tuple("eval", images.has_eval(), images.eval()),
        std::tuple("train_list", images.has_train_list(), images.train_list()),
        std::tuple("eval_list", images.has_eval_list(), images.eval_list())})
    if (has && value.empty()) document.refuse(fmt::format("{}.{}", path, name), "must not be empty");
  if (images.split_seed() != schema::Images().split_seed() && images.eval_fraction() == 0)
    document.refuse(path + ".split_seed", "is ignored without eval_fraction; remove it");
  fit_channels(images, image, document, path);
}

}  // namespace

bool mixes_labels(const schema::Data& data) {
  return std::ranges::any_of(
      data.transforms(), [](const schema::Transform& each) { return each.has_mixup() || each.has_cutmix(); });
}

void fit_image_data(schema::Data& data, const ModelSpec& model, const Document& document) {
  const TensorSpec* image = image_input(model);
  fit_transforms(*data.mutable_transforms(), image, document, "data.transforms");
  fit_transforms(*data.mutable_eval_transforms(), image, document, "data.eval_transforms");
  check_mixing(data, model, document);
  if (data.has_images()) fit_images(*data.mutable_images(), image, document);
  if (data.has_records()) fit_channels(*data.mutable_records(), image, document, "data.records");
  if (data.has_cifar()) fit_cifar(*data.mutable_cifar(), document);
  if (data.on_damage() == schema::Data().on_damage()) return;
  if (data.has_text())
    document.refuse("data.on_damage",
                    "does not apply to data.text, of which every byte is a token, so that none is damaged; "
                    "remove it");
  if (data.has_synthetic() || data.has_own())
    document.refuse("data.on_damage", "applies only to data in files; remove it");
}

void check_transformed(const schema::Data& data, const Document& document) {
  if (data.transforms_on() == schema::Data::GPU && !data.has_images() && !data.has_records())
    document.refuse("data.transforms_on",
                    "is GPU, but that is for images in files, which are bytes: data.images and data.records; "
                    "remove it");
  const bool transforms = data.transforms_size() > 0;
  const char* const kind = data.has_text()                                              ? "text"
                           : data.has_tokens()                                          ? "tokens"
                           : data.has_table()                                           ? "table"
                           : data.has_lines()                                           ? "lines"
                           : data.has_synthetic() && data.synthetic().shape_size() != 3 ? "synthetic"
                                                                                        : nullptr;
  if (kind == nullptr || (!transforms && data.eval_transforms_size() == 0)) return;
  document.refuse(transforms ? "data.transforms" : "data.eval_transforms",
                  fmt::format("are for images of shape [height, width, channels], but the samples of data.{} "
                              "have none; remove them",
                              kind));
}

}  // namespace lockstep::config
