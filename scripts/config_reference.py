#!/usr/bin/env python3
"""Writes docs/config.md from src/config/lockstep.proto: every field with its type, default, limits and comment.

    scripts/config_reference.py            write the page
    scripts/config_reference.py --check    exit 1 if the page is not up to date

Reads the schema's plain style: one declaration a line, comments above it. Refuses any line that it does not understand,
so that the page is always complete.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "src/config/lockstep.proto"
PAGE = ROOT / "docs/config.md"

INTRODUCTION = """# The configuration

After this page you can look up any field of a config: its type, limits, default and meaning. This prints a config with
every default:

    lockstep config print configs/mnist_lenet.textproto

A config is protobuf text: fields as `name: value`, messages as `name { ... }`, lists as `[a, b]`, comments after `#`.
Unknown fields, values outside their limits, and values that contradict each other or would be ignored are refused, with
file, line and column.

Every field can be set on the command line by its path, after the file is read: `--set optimizer.learning_rate=0.05`,
`--set model.layer[2].linear.units=64`, `--set 'model.mlp.hidden=[64, 32]'`, `--set 'optimizer.adam={beta2: 0.99}'`. Of
fields marked *choice*, setting one replaces the other.

`config.effective.textproto`, written with every run, states every default and reads back as the same run.

This page is written by `scripts/config_reference.py` from `src/config/lockstep.proto`; edit that file.
"""

# The table of contents: what for, and the messages. Each message belongs to one line.
PURPOSES = [
    ("the whole run", "RunConfig Trainer Sample"),
    ("whole models", "Model Mlp Lenet Gpt Llama LstmModel Resnet Vgg Vit"),
    ("a model's layers", "Input Layer Tie Block Vary"),
    ("ops with parameters", "Linear Conv2d BatchNorm LayerNorm RmsNorm Embedding PositionEmbedding PrependToken Lstm"),
    ("ops without parameters", "Attention RotaryEmbedding Pool2d GlobalPool2d Upsample2d SequencePool Dropout Relu Gelu Silu Sigmoid Tanh "
     "Add Multiply Flatten Reshape Concatenate Slice Transpose"),
    ("ops of your own", "Custom Attribute"),
    ("losses", "SoftmaxCrossEntropy MeanSquaredError"),
    ("trained weights to begin with", "Weights"),
    ("data", "Data Idx SampleRange Images Cifar Records Text Tokens Lines Table Synthetic Own"),
    ("changes of images", "Transform RandomResizedCrop Resize CenterCrop PadCrop Flip Affine ColorJitter Grayscale Erase Normalize Mixup "
     "Cutmix"),
    ("optimizers", "Optimizer Sgd Adam Lars Lamb Muon MuonAdamW ParameterGroup AdaptiveClip ScaleWithBatch Ema"),
    ("learning rates", "Schedule Constant Cosine StepDecay LinearDecay Polynomial OneCycle StableDecay Points Point"),
    ("element types", "Precision LossScaling"),
    ("layouts", "Parallel Pipeline Device Profile LayerTime"),
    ("saving, watching, faults", "Checkpoint Metrics Mlflow Watchdog"),
]

FIELD = re.compile(r"(?:(optional|repeated) )?([\w.]+) (\w+) = \d+(?: \[(.*)\])?;$")
OPTION = re.compile(r"(default|\(\w+\)) = ([^,]+)")
LIMITS = {"(at_least)": "≥", "(above)": ">", "(at_most)": "≤", "(below)": "<"}
TYPES = {"int32": "whole number", "int64": "whole number", "uint64": "whole number", "float": "number",
         "double": "number", "bool": "true, false", "string": "text"}


class Message:
    def __init__(self, name, comment):
        self.name, self.comment = name, comment
        self.fields = []        # (name, type, repeated, options, comment, choice)
        self.enums = {}         # name -> [(value, comment)]
        self.choices = {}       # oneof -> note


def parse(text):
    messages, stack, comment = [], [], []
    outer = False               # within `extend`, which is not part of the format
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if outer:
            outer = line != "}"
            continue
        if line.startswith("//"):
            comment.append(line[2:].strip())
            continue
        words = line.split()
        if not line:
            if not stack:
                comment = []
        elif words[0] in ("syntax", "package", "import"):
            comment = []
        elif words[0] == "extend":
            outer, comment = True, []
        elif words[0] == "message":
            messages.append(Message(words[1], " ".join(comment)))
            comment = []
            if not line.endswith("{}"):
                stack.append("message")
        elif words[0] in ("oneof", "enum"):
            stack.append((words[0], words[1]))
            kind = messages[-1].choices if words[0] == "oneof" else messages[-1].enums
            kind[words[1]] = "" if words[0] == "oneof" else []
            comment = []
        elif line == "}":
            stack.pop()
        elif words[0] == "option":
            match = re.match(r'option \((\w+)\) = "?(\w+)"?;$', line)
            if not match or stack[-1][0] != "oneof":
                sys.exit(f"{SCHEMA}:{number}: not understood: {line}")
            messages[-1].choices[stack[-1][1]] = {"required_choice": "one is required"}.get(
                match[1], f"default: `{match[2]}`")
        elif stack[-1] != "message" and stack[-1][0] == "enum":
            match = re.match(r"(\w+) = \d+;$", line)
            if not match:
                sys.exit(f"{SCHEMA}:{number}: not understood: {line}")
            messages[-1].enums[stack[-1][1]].append((match[1], " ".join(comment)))
            comment = []
        else:
            match = FIELD.match(line)
            if not match:
                sys.exit(f"{SCHEMA}:{number}: not understood: {line}")
            options = dict(OPTION.findall(match[4] or ""))
            choice = stack[-1][1] if stack[-1] != "message" else ""
            messages[-1].fields.append((match[3], match[2], match[1] == "repeated", options, " ".join(comment), choice))
            comment = []
    return messages


def first_sentence(text):
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0]


def contents(shown):
    listed = [name for _, names in PURPOSES for name in names.split()]
    wrong = sorted(set(listed) ^ set(shown)) + sorted(name for name in set(listed) if listed.count(name) > 1)
    if wrong:
        sys.exit(f"PURPOSES has to name each section once: {', '.join(wrong)}")
    rows = [f"| {purpose} | {', '.join(f'[{name}](#{name.lower()})' for name in names.split())} |" for purpose, names in PURPOSES]
    return "| For | Sections |\n|---|---|\n" + "\n".join(rows) + "\n"


def row(message, field, names, enums, choices):
    name, kind, repeated, options, comment, choice = field
    values = message.enums.get(kind) or enums.get(kind)
    if values:
        shown = ", ".join(f"`{value}`" for value, _ in values)
        comment = " ".join([comment] + [f"`{value}`: {note}" for value, note in values if note]).strip()
    elif kind in names:
        shown = f"[{kind}](#{kind.lower()})"
        comment = comment or first_sentence(names[kind])
    else:
        shown = TYPES[kind]
        limits = [f"{sign} {float(options[key]):,g}" if abs(float(options[key])) < 1e6 else f"{sign} {int(options[key]):,}"
                  for key, sign in LIMITS.items() if key in options]
        shown = ", ".join([shown] + limits)
    if repeated:
        shown = f"list of {shown}"
    if choice in choices:
        shown += " (*choice*)"
    default = options.get("default", "")
    default = "**required**" if "(required)" in options else f"`{default}`" if default else ""
    if not comment:
        sys.exit(f"{SCHEMA}: {message.name}.{name} has no comment")
    return f"| `{name}` | {shown} | {default} | {comment} |"


def page(messages):
    names = {message.name: message.comment for message in messages}
    # A message that holds only an enumeration is not a part of the format: its values are shown where it is used.
    scopes = [message for message in messages if message.enums and not message.fields]
    enums = {f"{scope.name}.{name}": values for scope in messages for name, values in scope.enums.items()}
    parts = [INTRODUCTION, contents([message.name for message in messages if message not in scopes])]
    for message in messages:
        if message in scopes:
            continue
        parts.append(f"## {message.name}\n\n{message.comment}\n")
        if not message.fields:
            parts.append("It has no fields: `{}`.\n")
            continue
        # A choice of one is an optional message.
        members = {choice: [f"`{field[0]}`" for field in message.fields if field[5] == choice] for choice in message.choices}
        choices = {choice: of for choice, of in members.items() if len(of) > 1}
        for choice, of in choices.items():
            note = message.choices[choice]
            parts.append(f"Choice of {', '.join(of)}{'; ' + note if note else ''}.\n")
        rows = [row(message, field, names, enums, choices) for field in message.fields]
        parts.append("| Field | Takes | Default | Meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def main():
    text = page(parse(SCHEMA.read_text(encoding="utf-8")))
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE.relative_to(ROOT)} is not up to date: run scripts/config_reference.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(text, encoding="utf-8")


main()
