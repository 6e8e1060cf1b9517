"""Compares oscar_tokenize with PyPI's tokenizers, built from the vocabulary and merges of the same GGUF file.

usage: tokenizer_oracle.py OSCAR_TOKENIZE [MODEL.gguf ...]

Without models: those of MODELS in the folder OSCAR_TEST_MODELS. Exit code 77 (skipped) when a package or all models are
absent. The seed of the random texts is printed and can be given as OSCAR_TEST_SEED.
"""

import glob
import os
import random
import struct
import subprocess
import sys
import unicodedata

try:
    import gguf
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
except ImportError as error:
    print(f"skipped: {error}; pip install tokenizers gguf")
    sys.exit(77)

MODELS = ["SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf"]
MODEL_PATHS = sys.argv[2:] or [
    os.path.join(os.environ.get("OSCAR_TEST_MODELS", ""), name) for name in MODELS
]
MODEL_PATHS = [path for path in MODEL_PATHS if os.path.exists(path)]
if not MODEL_PATHS:
    print("skipped: none of " + ", ".join(MODELS) + " in the folder OSCAR_TEST_MODELS")
    sys.exit(77)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
REPLACEMENT = "\ufffd"


def byte_alphabet():
    """GPT-2's spelling of bytes as printable characters."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(0x100 + i) for i, byte in enumerate(others)
    }


ALPHABET = byte_alphabet()
BYTES = {char: byte for byte, char in ALPHABET.items()}


class Subject:
    """oscar_tokenize of one model."""

    def __init__(self, program, model):
        self.process = subprocess.Popen(
            [program, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, kind, payload):
        self.process.stdin.write(kind.encode() + struct.pack("<I", len(payload)) + payload)
        self.process.stdin.flush()
        header = self.process.stdout.read(4)
        if len(header) != 4:
            sys.exit(f"oscar_tokenize ended on a request {kind} of {payload[:200]!r}")
        (size,) = struct.unpack("<I", header)
        return self.process.stdout.read(size)

    def encode(self, text, kind="e"):
        answer = self.ask(kind, text if isinstance(text, bytes) else text.encode())
        return list(struct.unpack(f"<{len(answer) // 4}i", answer))

    def decode(self, ids, kind="d"):
        return self.ask(kind, struct.pack(f"<{len(ids)}i", *ids))

    def token_bytes(self, token):
        answer = self.ask("t", struct.pack("<i", token))
        (size,) = struct.unpack_from("<I", answer)
        return answer[4 : 4 + size], answer[8 + size :]


class Reference:
    """The tokenizer of the model's family as its authors publish it, over the vocabulary of the GGUF file."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        get = lambda key, default=None: fields[key].contents() if key in fields else default
        self.texts = get("tokenizer.ggml.tokens")
        self.types = get("tokenizer.ggml.token_type")
        self.model = get("tokenizer.ggml.model")
        self.pre = get("tokenizer.ggml.pre")
        self.vocab = {text: i for i, text in enumerate(self.texts)}
        if self.model == "gpt2":
            merges = [tuple(line.split(" ")) for line in get("tokenizer.ggml.merges")]
            whole = self.pre in ("llama-bpe", "llama3", "llama-v3")
            self.tokenizer = tokenizers.Tokenizer(
                models.BPE(self.vocab, merges, ignore_merges=whole)
            )
            self.set_words()
            self.tokenizer.decoder = decoders.ByteLevel()
        else:
            merges = self.sentence_piece_merges(get("tokenizer.ggml.scores"))
            unknown = self.texts[get("tokenizer.ggml.unknown_token_id")]
            self.tokenizer = tokenizers.Tokenizer(
                models.BPE(self.vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
            )
            self.tokenizer.normalizer = normalizers.Sequence(
                [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
            )
            self.tokenizer.decoder = decoders.Sequence(
                [
                    decoders.Replace("\u2581", " "),
                    decoders.ByteFallback(),
                    decoders.Fuse(),
                    decoders.Strip(" ", 1, 0),
                ]
            )
        of_type = lambda *kinds: [
            self.texts[i] for i, kind in enumerate(self.types) if kind in kinds
        ]
        self.controls, self.user_defined = of_type(CONTROL, UNKNOWN), of_type(USER_DEFINED)
        self.tokenizer.add_special_tokens(
            [AddedToken(text, normalized=False, special=True) for text in self.controls]
        )
        self.tokenizer.add_tokens(
            [AddedToken(text, normalized=False) for text in self.user_defined]
        )

    def set_words(self):
        byte_level = lambda use_regex: pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=use_regex
        )
        cl100k = lambda number: (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
            + number
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        split = lambda pattern: pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)]
        )
        if self.pre == "qwen2":
            self.tokenizer.normalizer = normalizers.NFC()
            self.tokenizer.pre_tokenizer = split(cl100k(r"\p{N}"))
        elif self.pre in ("smollm", "starcoder", "refact"):
            digits = pre_tokenizers.Digits(individual_digits=True)
            self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level(True)])
        elif self.pre == "gpt-2":
            self.tokenizer.pre_tokenizer = byte_level(True)
        elif self.pre in ("llama-bpe", "llama3", "llama-v3"):
            self.tokenizer.pre_tokenizer = split(cl100k(r"\p{N}{1,3}"))
        else:
            sys.exit(f"no reference for the pre-tokenizer {self.pre}")

    def sentence_piece_merges(self, scores):
        """Every way to make a token of two others, the best score first."""
        merges = []
        for text, i in self.vocab.items():
            if self.types[i] != NORMAL:
                continue
            pairs = [(text[:k], text[k:]) for k in range(1, len(text))]
            pairs = [
                pair
                for pair in pairs
                if all(self.types[self.vocab.get(part, 0)] == NORMAL for part in pair)
            ]
            pairs = [pair for pair in pairs if pair[0] in self.vocab and pair[1] in self.vocab]
            merges += [
                (-scores[i], self.vocab[left], self.vocab[right], left, right)
                for left, right in pairs
            ]
        return [(left, right) for _, _, _, left, right in sorted(merges)]

    def representable(self, text):
        """U+FFFD for each character whose bytes are not all in the vocabulary: the reference drops the missing bytes,
        and what is left of the character is garbage."""
        if self.model != "gpt2":
            return text
        known = lambda char: all(ALPHABET[byte] in self.vocab for byte in char.encode())
        return "".join(char if known(char) else REPLACEMENT for char in text)

    def encode(self, text, parse_special):
        self.tokenizer.encode_special_tokens = not parse_special
        return self.tokenizer.encode(self.representable(text), add_special_tokens=False).ids

    def token_bytes(self, token):
        """(plain, with special tokens rendered)"""
        text, kind = self.texts[token], self.types[token]
        if kind == BYTE:
            return (bytes([int(text[3:5], 16)]),) * 2
        if kind in (CONTROL, UNKNOWN, UNUSED):
            return b"", text.encode()
        if self.model == "gpt2" and kind == NORMAL and all(char in BYTES for char in text):
            return (bytes(BYTES[char] for char in text),) * 2
        return (
            (
                text.replace("\u2581", " ").encode()
                if self.model != "gpt2" and kind == NORMAL
                else text.encode()
            ),
        ) * 2


def normalizes_alike(char):
    """Whether the NFC of tokenizers knows the character as Python does: its tables are of an older
    Unicode, so it leaves newer marks where they stand and newer pairs apart."""
    probes = ["a\u0345" + char + "\u0334", unicodedata.normalize("NFD", char)]
    return all(
        normalizers.NFC().normalize_str(probe) == unicodedata.normalize("NFC", probe)
        for probe in probes
    )


# Of Unicode 14, as Python 3.11 and PCRE2 10.42 have it; what came later is unassigned to one side only.
ASSIGNED = [
    chr(i)
    for i in range(0x110000)
    if not 0xD800 <= i < 0xE000 and unicodedata.category(chr(i)) != "Cn"
]
TOO_NEW = {char for char in ASSIGNED if not normalizes_alike(char)}
ASSIGNED = [char for char in ASSIGNED if char not in TOO_NEW]
MARKS = [char for char in ASSIGNED if unicodedata.combining(char)]
NUMBERS = [char for char in ASSIGNED if unicodedata.category(char)[0] == "N"]
SPACES = [char for char in ASSIGNED if char.isspace() or unicodedata.category(char)[0] == "Z"] + [
    "\u200b",
    "\u180e",
    "\ufeff",
]
RANGES = {
    "latin": (0x20, 0x24F),
    "greek and cyrillic": (0x370, 0x52F),
    "hebrew and arabic": (0x590, 0x6FF),
    "indic": (0x900, 0xDFF),
    "thai to tibetan": (0xE00, 0xFFF),
    "jamo": (0x1100, 0x11FF),
    "hangul": (0xAC00, 0xD7A3),
    "punctuation and symbols": (0x2000, 0x2BFF),
    "cjk": (0x3000, 0x9FFF),
    "compatibility": (0xF900, 0xFFFD),
    "emoji": (0x1F300, 0x1FAFF),
    "control": (0x00, 0x1F),
    "latin-1 control": (0x7F, 0xA0),
    "private": (0xE000, 0xF8FF),
}
EMOJI = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e9\U0001f1ea",
    "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f",
    "1\ufe0f\u20e3",
    "\U0001f9d1\U0001f3ff\u200d\U0001f680",
]
CONTRACTIONS = [
    "I'm",
    "DON'T",
    "we'Ll",
    "'S",
    "it\u2019s",
    "they'VE",
    "'\u017f",
    "he'd've",
    "''s",
    " 's",
    "'re",
    "x'lL",
    "'M9",
    "\u212a's",
]
WORDS = [
    "Hello",
    " world",
    "naïve",
    "e\u0301",
    "Straße",
    " ﬁne",
    "ΑΒΓ",
    "Привет",
    "مرحبا",
    "שלום",
    "नमस्ते",
    "สวัสดี",
    "한국어",
    "\u1112\u1161\u11ab",
    "日本語",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "3.14",
    "１２",
    "x86_64",
    "<|",
    "|>",
    "</",
    "$$$",
    "...",
    "--",
]


def random_texts(rng, specials, count):
    """Texts of every kind that has gone wrong in some tokenizer."""
    pick = lambda chars, longest: "".join(rng.choice(chars) for _ in range(rng.randint(1, longest)))
    in_range = (
        lambda low, high: "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 24)))
        .encode("utf-8", "ignore")
        .decode()
    )
    broken = [text[: rng.randint(1, len(text))] for text in specials] or ["<"]
    kinds = [
        lambda: pick(ASSIGNED, 40),
        lambda: "".join(
            chr(rng.choice([rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x10FFFF)]))
            for _ in range(rng.randint(1, 12))
        ),
        lambda: "".join(
            char
            for char in in_range(*rng.choice(list(RANGES.values())))
            if unicodedata.category(char) != "Cn"
        ),
        lambda: rng.choice(WORDS) + pick(MARKS, 12) + rng.choice(WORDS),
        lambda: "".join(pick(SPACES, 6) + rng.choice(WORDS) for _ in range(rng.randint(1, 6))),
        lambda: pick([" ", "\n", "\t", "\r", "\u3000"], 30) + rng.choice(["", "x", "9", "."]),
        lambda: "".join(
            rng.choice([pick(NUMBERS, 4), pick("0123456789", 12), rng.choice(" .,-x")])
            for _ in range(rng.randint(1, 8))
        ),
        lambda: "".join(
            rng.choice(CONTRACTIONS) + rng.choice(["", " ", "\n", "x", "7"])
            for _ in range(rng.randint(1, 6))
        ),
        lambda: "".join(
            rng.choice([rng.choice(EMOJI), rng.choice(WORDS), " "])
            for _ in range(rng.randint(1, 8))
        ),
        lambda: "".join(
            rng.choice([rng.choice(specials or WORDS), rng.choice(broken), rng.choice(WORDS)])
            for _ in range(rng.randint(1, 8))
        ),
        lambda: "".join(
            rng.choice([rng.choice(WORDS), pick(ASSIGNED, 3), rng.choice(CONTRACTIONS)])
            for _ in range(rng.randint(1, 30))
        ),
    ]
    texts = [rng.choice(kinds)() for _ in range(count)]
    return ["".join(char for char in text if char not in TOO_NEW) for text in texts]


def code_texts(rng, count):
    """Stretches of the Python standard library, the tests' odd encodings included, and ten whole files."""
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    texts = []
    for i in range(count):
        with open(rng.choice(files), encoding="utf-8", errors="ignore") as file:
            text = file.read()
        begin = rng.randrange(max(1, len(text)))
        texts.append(text if i < 10 else text[begin : begin + rng.randint(1, 2000)])
    return texts


class Comparison:
    def __init__(self, program, path, seed):
        self.subject, self.reference = Subject(program, path), Reference(path)
        self.rng = random.Random(seed)
        self.failures, self.compared = 0, 0

    def check(self, what, text, actual, expected):
        self.compared += 1
        if actual != expected:
            self.failures += 1
            if self.failures <= 10:
                print(f"  {what} of {text!r}\n    is       {actual!r}\n    expected {expected!r}")

    def texts(self):
        specials = self.reference.controls + self.reference.user_defined
        for text in random_texts(self.rng, specials, 6000) + code_texts(self.rng, 400):
            for kind, parse_special in (("e", False), ("s", True)):
                expected = self.reference.encode(text, parse_special)
                self.check(
                    f"encode, parse_special {parse_special},",
                    text,
                    self.subject.encode(text, kind),
                    expected,
                )
            tokenizer = self.reference.tokenizer
            decoded = self.subject.decode(expected)
            self.check(
                "decode", expected, decoded.decode(errors="replace"), tokenizer.decode(expected)
            )
            self.check(
                "stream decode",
                expected,
                self.subject.decode(expected, "p").decode(),
                decoded.decode(errors="replace"),
            )

    def tokens(self):
        everything = b""
        ids = range(len(self.reference.texts))
        for token in ids:
            expected = self.reference.token_bytes(token)
            self.check("bytes", token, self.subject.token_bytes(token), expected)
            everything += expected[1]
        strip = self.reference.model != "gpt2" and everything.startswith(b" ")
        self.check("decode", "all tokens", self.subject.decode(list(ids), "r"), everything[strip:])

    def invalid_bytes(self):
        """No reference: bytes come back as they are, or as U+FFFD where the vocabulary has no token for one."""
        has_all = self.reference.model != "gpt2" or all(
            char in self.reference.vocab for char in ALPHABET.values()
        )
        for _ in range(500):
            parts = [
                self.rng.randbytes(self.rng.randint(1, 8)),
                b"plain text",
                b"\xed\xa0\x80",
                b"\xf0\x9f\x98",
            ]
            text = b"".join(self.rng.choice(parts) for _ in range(4))
            actual = self.subject.decode(self.subject.encode(text))
            if has_all:
                valid = lambda data: data.decode(errors="surrogateescape")
                expected = (
                    unicodedata.normalize("NFC", valid(text))
                    if self.reference.pre == "qwen2"
                    else valid(text)
                )
                self.check("round trip", text, actual, expected.encode(errors="surrogateescape"))
            else:
                expected = self.reference.representable(text.decode(errors="replace"))
                self.check("round trip", text, actual.decode(errors="replace"), expected)


def main():
    program = sys.argv[1]
    seed = int(os.environ.get("OSCAR_TEST_SEED", "1"))
    print(
        f"tokenizers {tokenizers.__version__}; {len(TOO_NEW)} characters left out, which its NFC does not know"
    )
    failures = 0
    for path in MODEL_PATHS:
        comparison = Comparison(program, path, seed)
        comparison.tokens()
        comparison.texts()
        comparison.invalid_bytes()
        counts = f"{comparison.compared} comparisons, {comparison.failures} differ"
        print(f"{os.path.basename(path)}: {counts} (OSCAR_TEST_SEED={seed})")
        failures += comparison.failures
    sys.exit(1 if failures else 0)


main()
