import contextlib
import io
import os
import pathlib
import subprocess
import tempfile
import unittest

from load_script import load_script

check_docs = load_script("check_docs")

# The form of CLI11's help.
PROGRAM = """#!/bin/sh
case "$*" in
--help) cat <<EOF
2-bit KV cache
Usage: oscar [OPTIONS] SUBCOMMAND

Options:
  -h,--help                   Print this help message and exit
  --version                   Display program version information and exit

Subcommands:
  run                         Answer a prompt
  eval                        Measure
                              faithfulness
EOF
;;
"run --help") cat <<EOF
Usage: oscar run [OPTIONS]

Options:
  -h,--help                   Print this help message and exit
  -m,--model FILE|NAME REQUIRED
                              Model; see --kv
  --kv METHOD [bf16]          Method
EOF
;;
"eval --help") printf 'Usage: oscar eval\\n\\nSubcommands:\\n  kl    KL\\n' ;;
"eval kl --help") printf 'Options:\\n  --text FILE  Text\\n' ;;
*) exit 2 ;;
esac
"""
LIFE = "| what | file | symbol |\n|---|---|---|\n| stored | `src/a.h`, `src/b*.cc` | `Append`, `Pool::~Pool` |\n"
OPTIONS = """# Reference
## `oscar run`
`-m`, `--model FILE`: the model. `--kv METHOD`: the method.
## `oscar eval kl`
Try `oscar eval kl --text a.txt`, or
```
$ build/bin/oscar run -m x \\
    --kv bf16 | tee --append log
```
"""


class CheckDocsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", folder.name], check=True)
        self.write("docs/life-of-a-token.md", LIFE)
        self.write("src/a.h", "void Append();\n")
        self.write("src/b1.cc", "Pool::~Pool() {}\n")
        self.write("README.md", "See [the reference](docs/reference.md#oscar-run).\n")
        self.write("docs/reference.md", OPTIONS)
        self.write("oscar", PROGRAM)
        os.chmod(self.root / "oscar", 0o755)

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def run_main(self, with_program=True):
        output = io.StringIO()
        arguments = ["--root", str(self.root)] + (["--program", str(self.root / "oscar")] if with_program else [])
        with contextlib.redirect_stdout(output):
            code = check_docs.main(arguments)
        return code, output.getvalue()

    def assert_fails_with(self, part):
        code, output = self.run_main()
        self.assertEqual(code, 1, output)
        self.assertIn(part, output)

    def test_true_documents_pass(self):
        code, output = self.run_main()
        self.assertEqual(code, 0, output)
        self.assertIn("not compared", self.run_main(with_program=False)[1])

    def test_dead_links_fail(self):
        for text, part in [
            ("[x](docs/none.md)", "README.md:1: dead link docs/none.md"),
            ("[x](docs/reference.md#none)", "no heading #none"),
            ("[x](#none)", "no heading #none"),
            ("[x][1]\n\n[1]: docs/none.md\n", "README.md:3: dead link"),
            ("![image](docs/none.png)", "dead link"),
            ("[x](../outside.md)", "dead link"),
            ("[x](/docs/reference.md)", "dead link"),
            ("[`code`](docs/none.md)", "dead link"),
        ]:
            self.write("README.md", text)
            self.assert_fails_with(part)

    def test_links_in_code_and_to_the_web_are_left_alone(self):
        self.write(
            "README.md",
            "[w](https://example.com/x) `[x](none.md)` <https://example.org>\n```\n[x](none.md)\n```\n"
            "# A `b` c!\n[c](#a-b-c)\n",
        )
        self.assertEqual(self.run_main()[0], 0)

    def test_a_symbol_that_moved_fails(self):
        self.write("src/b1.cc", "// Pool::~Pool\n~PoolOfPages();\n")
        self.assert_fails_with("life-of-a-token.md:3: Pool::~Pool is not in")

    def test_a_file_that_is_gone_fails_even_when_others_are_there(self):
        os.remove(self.root / "src/b1.cc")
        self.assert_fails_with("src/b*.cc does not exist")

    def test_a_missing_or_empty_life_of_a_token_fails(self):
        self.write("docs/life-of-a-token.md", "no table\n")
        self.assert_fails_with("has no table of symbols")
        os.remove(self.root / "docs/life-of-a-token.md")
        self.assert_fails_with("is missing")

    def test_an_option_that_the_program_lacks_fails(self):
        for text, part in [
            (OPTIONS + "```\noscar run --gone\n```\n", "oscar run has no option --gone"),
            (OPTIONS + "text\n\n    oscar run --kv x\n    build/bin/oscar run --gone  # as an indented block\n", "oscar run has no option --gone"),
            (OPTIONS + "`oscar eval kl --kv x`\n", "oscar eval kl has no option --kv"),
            (OPTIONS + "`--gone` in a section about `oscar eval kl`\n", "oscar eval kl has no option --gone"),
            (OPTIONS + "```\noscar serve\n```\n", "oscar has no subcommand serve"),
            (OPTIONS + "`oscar eval ppl`\n", "oscar eval has no subcommand ppl"),
        ]:
            self.write("docs/reference.md", text)
            self.assert_fails_with(part)

    def test_an_option_that_no_document_names_fails(self):
        self.write("docs/reference.md", OPTIONS.replace("--text", "").replace("--kv METHOD", "kv"))
        self.assert_fails_with("oscar eval kl: --text is in no document")

    def test_a_section_about_oscar_alone_documents_for_all(self):
        self.write("docs/reference.md", "## `oscar`\n`--model`, `--kv`, `--text`\n## `oscar run`\nSee above.\n")
        code, output = self.run_main()
        self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
