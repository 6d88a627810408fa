#!/usr/bin/env python3
"""Writes tests/data/goldens: small images of all kinds, the pixels that Pillow reads from them, and what torchvision
makes of a picture.

    python3 scripts/make_image_goldens.py      # needs Pillow, numpy and torchvision

images/NAME.jpg, .png    the files
images/NAME.ppm          their pixels, upright, over white, as Pillow has them
transforms.txt           a line for each: name, height, width, channels, values. "input" is what all others begin from
loading/NAME.jpg, .png   larger files
loading.txt              lines likewise: what a model gets of them from torchvision's loading, resizing, cutting and normalizing
"""
import io
import pathlib
import struct
import zlib

import numpy
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/data/goldens"


def picture(height, width, seed=1):
    """Smooth colors with an edge, so that neither mirrored nor exchanged axes look the same."""
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    y, x = y / height, x / width
    red = 255 * (0.5 + 0.5 * numpy.sin(5 * x + seed))
    green = 255 * (0.2 + 0.7 * y)
    blue = 255 * numpy.where(x + 0.5 * y > 0.8, 0.9, 0.1 + 0.3 * y)
    return numpy.stack([red, green, blue], -1).round().astype(numpy.uint8)


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, bits, color, rows, chunks=b""):
    """Pillow writes no 16-bit colors and no interlaced images."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + chunks + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b""))


def interlaced_png(pixels):
    height, width, _ = pixels.shape
    data = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        part = pixels[y0::dy, x0::dx]
        if part.size:
            data += b"".join(b"\0" + row.tobytes() for row in part)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(data, 9)) +
            png_chunk(b"IEND", b""))


def keep(name, ending, data, pixels=None):
    """`pixels`: what the file shows, where Pillow would not say the same."""
    (FOLDER / "images" / f"{name}.{ending}").write_bytes(data)
    if pixels is None:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if image.mode in ("RGBA", "LA", "P", "PA"):
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        pixels = numpy.asarray(image.convert("RGB"))
    height, width, _ = pixels.shape
    (FOLDER / "images" / f"{name}.ppm").write_bytes(b"P6 %d %d 255\n" % (width, height) + pixels.tobytes())


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def write_images():
    pixels = picture(21, 27)
    image = Image.fromarray(pixels)
    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        keep(f"jpeg_{name}", "jpg", saved(image, "JPEG", quality=85, subsampling=sampling))
    keep("jpeg_progressive", "jpg", saved(image, "JPEG", quality=85, progressive=True))
    keep("jpeg_gray", "jpg", saved(image.convert("L"), "JPEG", quality=85))
    keep("jpeg_cmyk", "jpg", saved(image.convert("CMYK"), "JPEG", quality=85))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        keep(f"jpeg_exif{orientation}", "jpg", saved(image, "JPEG", quality=85, exif=exif))
    keep("png_exif6", "png", saved(image, "PNG", exif=exif_of(6)))
    alpha = numpy.linspace(0, 255, 21 * 27).reshape(21, 27).round().astype(numpy.uint8)
    keep("png_rgb", "png", saved(image, "PNG"))
    keep("png_rgba", "png", saved(Image.fromarray(numpy.dstack([pixels, alpha])), "PNG"))
    keep("png_gray", "png", saved(image.convert("L"), "PNG"))
    keep("png_gray_alpha", "png", saved(Image.merge("LA", (image.convert("L"), Image.fromarray(alpha))), "PNG"))
    keep("png_palette", "png", saved(image.quantize(16), "PNG"))
    keep("png_palette_transparent", "png", saved(image.quantize(16), "PNG", transparency=3))
    keep("png_1bit", "png", saved(image.convert("1"), "PNG"))
    keep("png_interlaced", "png", interlaced_png(pixels))
    deep = pixels.astype(numpy.uint16) * 257 + 100 * (pixels < 200)     # not only multiples of 257
    rounded = (deep.astype(numpy.float64) * 255 / 65535).round().astype(numpy.uint8)
    keep("png_rgb16", "png", png(27, 21, 16, 2, [row.astype(">u2").tobytes() for row in deep]), rounded)
    keep("png_gray16", "png", png(27, 21, 16, 0, [row.astype(">u2").tobytes() for row in deep[:, :, 1]]),
         numpy.repeat(rounded[:, :, 1:2], 3, 2))


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def write_transforms():
    lines = []

    def add(name, image):
        values = image.permute(1, 2, 0).contiguous()
        numbers = " ".join(f"{value:.7g}" for value in values.flatten().tolist())
        lines.append(f"{name} {values.shape[0]} {values.shape[1]} {values.shape[2]} {numbers}")

    image = torch.from_numpy(picture(12, 15, 3)).permute(2, 0, 1).float() / 255
    add("input", image)
    modes = functional.InterpolationMode
    for name, filter in (("bilinear", modes.BILINEAR), ("bicubic", modes.BICUBIC)):
        for height, width in ((5, 7), (30, 20), (12, 4)):
            add(f"resize_{name}_{height}_{width}", functional.resize(image, [height, width], filter, antialias=True))
    add("resize_shorter_6", functional.resize(image, [6], antialias=True))
    add("resized_crop_2_3_7_9_6_5", functional.resized_crop(image, 2, 3, 7, 9, [6, 5], antialias=True))
    add("center_crop_7_6", functional.center_crop(image, [7, 6]))
    for angle, dx, dy, scale, shear in ((30, 0, 0, 1, 0), (-75, 2, -1, 1.3, 0), (10, 0, 3, 0.7, 20)):
        moved = functional.affine(image, angle, [dx, dy], scale, [shear, 0.0], functional.InterpolationMode.BILINEAR, fill=None)
        add(f"affine_{angle}_{dx}_{dy}_{scale}_{shear}", moved)
    add("brightness_1.4", functional.adjust_brightness(image, 1.4))
    add("contrast_0.6", functional.adjust_contrast(image, 0.6))
    add("saturation_1.7", functional.adjust_saturation(image, 1.7))
    add("hue_0.3", functional.adjust_hue(image, 0.3))
    add("hue_-0.4", functional.adjust_hue(image, -0.4))
    add("gray", functional.rgb_to_grayscale(image, 3))
    add("normalize", functional.normalize(image, [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]))
    (FOLDER / "transforms.txt").write_text("\n".join(lines) + "\n")


def write_loading():
    """From a file to the numbers that a model gets, as torchvision's reference evaluates images, and trains on crops."""
    (FOLDER / "loading").mkdir(exist_ok=True)
    exif = exif_of(6)
    image = Image.fromarray(picture(66, 90, 2))
    alpha = Image.fromarray((picture(66, 90, 5)[:, :, 0]))
    files = {"photo.jpg": saved(image, "JPEG", quality=90, subsampling=2),
             "turned.jpg": saved(image, "JPEG", quality=90, subsampling=0, exif=exif),
             "progressive.jpg": saved(image, "JPEG", quality=75, progressive=True),
             "gray.jpg": saved(image.convert("L"), "JPEG", quality=90),
             "glyph.png": saved(image, "PNG"),
             "over_white.png": saved(Image.merge("RGBA", (*image.split(), alpha)), "PNG")}
    lines = []
    for name, data in sorted(files.items()):
        (FOLDER / "loading" / name).write_bytes(data)
        loaded = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if loaded.mode == "RGBA":
            loaded = Image.alpha_composite(Image.new("RGBA", loaded.size, "white"), loaded)
        loaded = loaded.convert("RGB")
        evaluated = functional.center_crop(functional.resize(loaded, [24], antialias=True), [20, 22])
        trained = functional.resized_crop(loaded, 0, 0, loaded.height, loaded.width, [20, 22], antialias=True)
        for kind, result in (("eval", evaluated), ("train", trained)):
            values = functional.normalize(functional.to_dtype(functional.to_image(result), torch.float32, scale=True),
                                          [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]).permute(1, 2, 0).contiguous()
            numbers = " ".join(f"{value:.6g}" for value in values.flatten().tolist())
            lines.append(f"{kind}/{name} {values.shape[0]} {values.shape[1]} {values.shape[2]} {numbers}")
    (FOLDER / "loading.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    (FOLDER / "images").mkdir(parents=True, exist_ok=True)
    write_images()
    write_transforms()
    write_loading()
