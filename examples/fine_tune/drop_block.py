"""Copies a file of safetensors without the tensors of block 1 of a Llama: a header in JSON, then the numbers.

    python3 drop_block.py FROM TO
"""

import json
import pathlib
import struct
import sys

source, target = map(pathlib.Path, sys.argv[1:])
content = source.read_bytes()
begin = 8 + struct.unpack("<Q", content[:8])[0]
header, numbers = {}, b""
for name, tensor in json.loads(content[8:begin]).items():
    if name != "__metadata__" and ".layers.1." not in name:
        first, end = tensor["data_offsets"]
        header[name] = tensor | {"data_offsets": [len(numbers), len(numbers) + end - first]}
        numbers += content[begin + first : begin + end]
text = json.dumps(header).encode()
target.write_bytes(struct.pack("<Q", len(text)) + text + numbers)
