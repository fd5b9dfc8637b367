"""Small picture and video files of every kind that m3 reads.

A file that is there already stays as it is: encoders change from version to version.
"""

import io
import struct
import subprocess
import tempfile
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image


def scene(width, height, step=0):
    """Slopes with a block that moves: [height, width, 3] uint8."""
    y, x = np.mgrid[0:height, 0:width]
    out = np.stack([x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x + y) * 4 % 256], -1).astype(np.uint8)
    left = (step * 3) % max(width - 8, 1)
    out[height // 4:height // 4 + 8, left:left + 8] = (250, 30, 30 + step * 5 % 200)
    return out


def png_bytes(samples, depth, colour, palette=None, transparent=None, interlace=False, exif=None):
    """A PNG of samples [height, width, channels] of `depth` bits."""
    height, width, channels = samples.shape

    def packed(rows):
        data = b""
        for row in rows:
            flat = row.ravel()
            if depth == 16:
                line = flat.astype(">u2").tobytes()
            elif depth == 8:
                line = flat.astype(np.uint8).tobytes()
            else:
                bits = "".join(format(int(v), f"0{depth}b") for v in flat)
                bits += "0" * (-len(bits) % 8)
                line = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
            data += b"\0" + line
        return data

    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    if interlace:
        parts = [samples[y::dy, x::dx] for x, y, dx, dy in passes]
        data = b"".join(packed(part) for part in parts if part.size)
    else:
        data = packed(samples)

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))
    if palette is not None:
        out += chunk(b"PLTE", bytes(palette))
    if transparent is not None:
        out += chunk(b"tRNS", transparent)
    out += chunk(b"IDAT", zlib.compress(data, 9))
    if exif is not None:
        out += chunk(b"eXIf", exif)
    return out + chunk(b"IEND", b"")


def exif_block(orientation, order="<"):
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def bmp_bytes(width, height, depth, compression, data, masks=(), palette=b"", header=40):
    extra = b"".join(struct.pack("<I", m) for m in masks)
    if header > 40:
        extra = extra.ljust(header - 40, b"\0")
    at = 14 + 40 + len(extra) + len(palette)
    info = struct.pack("<IiiHHIIiiII", header, width, height, 1, depth, compression, len(data), 2835, 2835,
                       len(palette) // 4, 0)
    return b"BM" + struct.pack("<IHHI", at + len(data), 0, 0, at) + info + extra + palette + data


def write_new(path, data):
    if not path.exists():
        path.write_bytes(data)


def apng_bytes(frames, default=None):
    """Frames [height, width, 3] as an animated PNG; readers that know no animation show `default`, or the first one."""
    out, body = b"", png_bytes(frames[0] if default is None else default, 8, 2)
    head, data = body[:33], body[33:-12]
    height, width = frames[0].shape[:2]
    number = 0

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    def control():
        nonlocal number
        number += 1
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number - 1, width, height, 0, 0, 1, 5, 0, 0))

    out = head + chunk(b"acTL", struct.pack(">II", len(frames), 0))
    out += control() + data if default is None else data
    for frame in frames[1:] if default is None else frames:
        out += control()
        pixels = png_bytes(frame, 8, 2)[33 + 8:-12 - 4]
        out += chunk(b"fdAT", struct.pack(">I", number) + pixels)
        number += 1
    return out + body[-12:]


def ycck_jpeg(image):
    """`image` is CMYK; its levels are stored as if they were YCCK's, which Adobe's marker says."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=95)
    data = bytearray(buffer.getvalue())
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def os2_bmp_bytes(width, height, depth, data, palette=b""):
    at = 14 + 12 + len(palette)
    return (b"BM" + struct.pack("<IHHI", at + len(data), 0, 0, at) + struct.pack("<IHHHH", 12, width, height, 1, depth) +
            palette + data)


def write_pictures(folder):
    names = []

    def put(name, data):
        write_new(folder / name, data)
        names.append(name)

    def save(name, image, **options):
        buffer = io.BytesIO()
        image.save(buffer, **options)
        put(name, buffer.getvalue())

    rgb = Image.fromarray(scene(37, 23))
    alpha = np.dstack([scene(37, 23), np.tile(np.arange(37) * 255 // 36, (23, 1)).astype(np.uint8)])
    rgba = Image.fromarray(alpha, "RGBA")
    grey = rgb.convert("L")

    save("444.jpg", rgb, format="JPEG", quality=90, subsampling=0)
    save("420.jpg", rgb, format="JPEG", quality=80, subsampling=2)
    save("422.jpg", rgb, format="JPEG", quality=80, subsampling=1)
    save("progressive.jpg", rgb, format="JPEG", quality=80, progressive=True)
    save("grey.jpg", grey, format="JPEG", quality=80)
    save("cmyk.jpg", rgb.convert("CMYK"), format="JPEG", quality=95)
    put("ycck.jpg", ycck_jpeg(rgb.convert("CMYK")))
    for orientation in range(1, 9):
        exif = b"Exif\0\0" + exif_block(orientation, "<>"[orientation % 2])
        save(f"orientation-{orientation}.jpg", Image.fromarray(scene(21, 13)), format="JPEG", quality=90, exif=exif)

    deep = np.arange(37 * 23 * 4, dtype=np.uint32).reshape(23, 37, 4) * 19 % 65536
    for depth in (1, 2, 4, 8, 16):
        levels = (np.indices((23, 37)).sum(0)[..., None] * 5 % (1 << min(depth, 16)))
        put(f"grey-{depth}.png", png_bytes(deep[..., :1] if depth == 16 else levels, depth, 0))
    colours = [int(v) for v in np.random.default_rng(1).integers(0, 256, 16 * 3)]
    index = np.indices((23, 37)).sum(0)[..., None]
    for depth in (1, 2, 4, 8):
        put(f"palette-{depth}.png", png_bytes(index % min(1 << depth, 16), depth, 3, colours[:3 * min(1 << depth, 16)]))
    put("palette-alpha.png", png_bytes(index % 16, 8, 3, colours, bytes(range(0, 240, 20))))
    put("rgb-8.png", png_bytes(scene(37, 23), 8, 2))
    put("rgb-16.png", png_bytes(deep[..., :3], 16, 2))
    put("rgba-8.png", png_bytes(alpha, 8, 6))
    put("rgba-16.png", png_bytes(deep, 16, 6))
    put("grey-alpha-8.png", png_bytes(alpha[..., 1:3], 8, 4))
    put("grey-alpha-16.png", png_bytes(deep[..., :2], 16, 4))
    put("grey-key.png", png_bytes(index % 250, 8, 0, transparent=struct.pack(">H", 17)))
    put("rgb-key.png", png_bytes(np.repeat(index % 9 * 20, 3, -1), 8, 2, transparent=struct.pack(">HHH", 40, 40, 40)))
    put("interlaced.png", png_bytes(alpha, 8, 6, interlace=True))
    put("interlaced-palette-2.png", png_bytes(index % 4, 2, 3, colours[:12], interlace=True))
    put("interlaced-1x1.png", png_bytes(scene(1, 1), 8, 2, interlace=True))
    put("animated.png", apng_bytes([scene(21, 13, step) for step in range(3)]))
    put("animated-default.png", apng_bytes([scene(21, 13, step) for step in (1, 2)], scene(21, 13)))
    put("orientation-6.png", png_bytes(scene(21, 13), 8, 2, exif=exif_block(6)))

    save("lossless.webp", rgb, format="WEBP", lossless=True)
    save("lossless-alpha.webp", rgba, format="WEBP", lossless=True, exact=True)
    save("lossy.webp", rgb, format="WEBP", quality=70)
    save("lossy-alpha.webp", rgba, format="WEBP", quality=70)
    save("orientation-8.webp", rgb, format="WEBP", quality=70, exif=b"Exif\0\0" + exif_block(8))
    more = [Image.fromarray(scene(37, 23, step)) for step in (1, 2)]
    save("animated.webp", rgb, format="WEBP", save_all=True, append_images=more, duration=200, quality=60)

    few = rgb.quantize(16)
    save("plain.gif", few, format="GIF", interlace=0)
    save("interlaced.gif", few, format="GIF", interlace=1)
    save("transparent.gif", few, format="GIF", transparency=3)
    save("animated.gif", few, format="GIF", save_all=True, append_images=[m.quantize(16) for m in more], duration=200)

    save("1.bmp", grey.convert("1"), format="BMP")
    save("8.bmp", few, format="BMP")
    save("24.bmp", rgb, format="BMP")
    save("grey.bmp", grey, format="BMP")
    save("32.bmp", rgba, format="BMP")
    pixels = scene(37, 23).astype(np.uint32)
    r, g, b = pixels[..., 0] >> 3, pixels[..., 1] >> 3, pixels[..., 2] >> 3
    rows = np.zeros((23, 38), dtype="<u2")
    rows[:, :37] = (r << 10 | g << 5 | b)[::-1]
    put("555.bmp", bmp_bytes(37, 23, 16, 0, rows.tobytes()))
    rows[:, :37] = (r << 11 | (pixels[..., 1] >> 2) << 5 | b)[::-1]
    put("565.bmp", bmp_bytes(37, 23, 16, 3, rows.tobytes(), masks=(0xF800, 0x7E0, 0x1F)))
    down = np.dstack([pixels[..., 2], pixels[..., 1], pixels[..., 0], np.zeros_like(r)]).astype(np.uint8)
    put("top-down.bmp", bmp_bytes(37, -23, 32, 0, down.tobytes()))
    table = b"".join(bytes((c * 16, 255 - c * 16, c * 5 % 256, 0)) for c in range(16))
    four = np.array([int(v) for v in (np.indices((6, 10)).sum(0) % 16).ravel()], dtype=np.uint8).reshape(6, 10)
    packed = b"".join(bytes(row[i] << 4 | row[i + 1] for i in range(0, 10, 2)).ljust(8, b"\0") for row in four)
    put("4.bmp", bmp_bytes(10, 6, 4, 0, packed, palette=table))
    # Runs, a literal with padding, the end of a line.
    runs = b"".join(bytes((4, n, 0, 3, 1, 2, 3, 0, 3, 15 - n, 0, 0)) for n in range(6)) + b"\0\1"
    put("rle8.bmp", bmp_bytes(10, 6, 8, 1, runs, palette=table))
    # Runs of two colours, of odd lengths; literals of 3 and 4 with their padding; the end of a line.
    runs = b"".join(bytes((3, n << 4 | 9, 0, 4, n << 4 | 1, 0x23, 0, 3, 0xAB, n << 4, 0, 0)) for n in range(6)) + b"\0\1"
    put("rle4.bmp", bmp_bytes(10, 6, 4, 2, runs, palette=table))
    padded = np.zeros((23, 112), dtype=np.uint8)
    padded[:, :111] = scene(37, 23)[::-1, :, ::-1].reshape(23, 111)
    put("os2-24.bmp", os2_bmp_bytes(37, 23, 24, padded.tobytes()))
    three = b"".join(table[4 * c:4 * c + 3] for c in range(16))
    put("os2-4.bmp", os2_bmp_bytes(10, 6, 4, packed, three))
    return names


def rotate_track(data, matrix):
    """Replaces the matrix of the first track header of an MP4."""
    at = data.index(b"tkhd") + 4 + 4 + 4 * 5 + 8 + 2 * 4
    return data[:at] + struct.pack(">9i", *matrix) + data[at + 36:]


def encode(frames, codec, container, times, base, options, pixel_format="yuv420p"):
    """Frames at the given times, in ticks of `base`."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        stream = out.add_stream(codec, rate=Fraction(1 / base).limit_denominator(1000))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixel_format
        stream.options = options
        stream.time_base = base
        stream.codec_context.time_base = base
        for image, time in zip(frames, times):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = time, base
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def ogg_theora(frames):
    """By the program ffmpeg, since PyAV brings no encoder of it: ten frames a second."""
    height, width = frames[0].shape[:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.ogv"
        subprocess.run(["ffmpeg", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                        "-r", "10", "-i", "-", "-c:v", "libtheora", "-q:v", "6", "-pix_fmt", "yuv420p", str(path)],
                       input=np.stack(frames).tobytes(), check=True)
        return path.read_bytes()


def reference(data):
    """Times from the first frame, and all frames as PyAV decodes them."""
    times, frames = [], []
    with av.open(io.BytesIO(data)) as file:
        for frame in file.decode(video=0):
            times.append(float(frame.pts * frame.time_base))
            frames.append(frame.to_ndarray(format="rgb24"))
    return [t - times[0] for t in times], np.stack(frames)


def write_videos(folder):
    result = {}

    def put(name, data, expected=None):
        write_new(folder / name, data)
        result[name] = expected or reference((folder / name).read_bytes())

    scenes = [scene(64, 48, step) for step in range(11)]
    tenth = Fraction(1, 10)
    steady = range(11)
    put("h264.mp4", encode(scenes, "libx264", "mp4", steady, tenth, {"crf": "30", "bf": "2", "g": "5"}))
    put("hevc.mp4", encode(scenes, "libx265", "mp4", steady, tenth, {"crf": "34", "x265-params": "log-level=none"}))
    put("vp9.webm", encode(scenes, "libvpx-vp9", "webm", steady, tenth, {"crf": "40", "b": "0"}))
    put("av1.mp4", encode(scenes, "libsvtav1" if "libsvtav1" in av.codecs_available else "libaom-av1", "mp4", steady,
                          tenth, {"crf": "50"}))
    put("mpeg4.avi", encode(scenes, "mpeg4", "avi", steady, tenth, {"b": "40000"}))
    put("h264.ts", encode(scenes[:5], "libx264", "mpegts", range(5), tenth, {"crf": "36"}))
    put("one-frame.mp4", encode(scenes[:1], "libx264", "mp4", [0], tenth, {"crf": "30"}))
    irregular = [0, 30, 40, 400, 1000, 1010, 2500]
    put("irregular.mkv", encode(scenes[:7], "libx264", "matroska", irregular, Fraction(1, 1000), {"crf": "36"}))

    upright = encode(scenes[:3], "libx264", "mp4", range(3), tenth, {"crf": "30"})
    one = 1 << 16
    # Phones held upright: the picture is to be turned clockwise by 90 degrees.
    turned = rotate_track(upright, (0, one, 0, -one, 0, 0, 0, 0, 1 << 30))
    times, frames = reference(upright)
    put("turned.mp4", turned, (times, np.rot90(frames, -1, (1, 2))))

    small = [scene(48, 32, step) for step in range(5)]
    rate = Fraction(1, 25)
    put("mpeg1.mpg", encode(small, "mpeg1video", "mpeg", range(5), rate, {"b": "60000"}))
    put("mpeg2.mpg", encode(small, "mpeg2video", "vob", range(5), rate, {"b": "60000", "bf": "2"}))
    put("flv1.flv", encode(small, "flv1", "flv", range(5), tenth, {"b": "200000"}))
    put("wmv2.wmv", encode(small, "wmv2", "asf", range(5), tenth, {"b": "40000"}))
    put("vp8.webm", encode(small, "libvpx", "webm", range(5), tenth, {"crf": "40", "b": "40000"}))
    put("theora.ogv", ogg_theora(small))
    # Every level is kept.
    put("lossless.mov", encode(small, "qtrle", "mov", range(5), tenth, {}, "rgb24"),
        ([step / 10 for step in range(5)], np.stack(small)))

    few = [Image.fromarray(s).quantize(16) for s in scenes[:4]]
    buffer = io.BytesIO()
    few[0].save(buffer, format="GIF", save_all=True, append_images=few[1:], duration=[100, 300, 500, 100])
    put("animation.gif", buffer.getvalue(), ([0, 0.1, 0.4, 0.9], np.stack([np.array(f.convert("RGB")) for f in few])))
    buffer = io.BytesIO()
    images = [Image.fromarray(s) for s in scenes[:4]]
    images[0].save(buffer, format="WEBP", save_all=True, append_images=images[1:], duration=[100, 300, 500, 100],
                   lossless=True)
    put("animation.webp", buffer.getvalue(), ([0, 0.1, 0.4, 0.9], np.stack(scenes[:4])))
    return result
