import contextlib
import io
import pathlib
import subprocess
import tempfile
import unittest

from load_script import load_script

check_sizes = load_script("check_sizes")
CONFIG = (pathlib.Path(__file__).resolve().parent.parent / "sizes.txt").read_text(encoding="utf-8")


def body(num_lines):
    return "".join(f"  step({i});\n" for i in range(num_lines))


class CheckSizesTest(unittest.TestCase):
    def functions(self, text):
        return {f.name: (f.last_line - f.first_line + 1, f.num_parameters) for f in check_sizes.functions_of(text)}

    def test_lines_run_from_the_signature_to_the_closing_brace(self):
        text = "namespace a {\n\nint Run(int x,\n        int y) {\n" + body(3) + "}\n\n}  // namespace a\n"
        self.assertEqual(self.functions(text), {"Run": (6, 2)})

    def test_braces_and_parentheses_in_texts_comments_and_macros_do_not_count(self):
        text = (
            "#define OPEN {\n"
            'void F() {  // }\n  const char* a = "}";\n  char b = \'}\';\n  /* } */\n'
            '  auto c = R"x(})")x";\n  int d = 1\'000;\n}\n'
            "void G() {}\n"
        )
        self.assertEqual(self.functions(text), {"F": (7, 0), "G": (1, 0)})

    def test_classes_constructors_operators_and_templates(self):
        text = """
template <class T, int N = f(1, 2)>
class Box final : public Base<T> {
 public:
  Box(int a, int b) : Base<T>(a), b_{b}, c_(b) {
    Use(a);
  }
  ~Box() override = default;
  bool operator()(int a, int b) const noexcept { return a < b; }
  auto Map(std::map<int, std::pair<int, int>> m, int x = g(1, 2)) const -> std::vector<int> {
    if (x > 0) { return {}; }
    return {1, 2};
  }
  int Default(std::vector<int> v = {}, Box b = Box{1, 2}) const {
    return 1;
  }
  virtual Status Verb(const Params& params, Stream stream) = 0;
  [[nodiscard]] static int Count(std::function<int(int, int)> f);
  std::array<int, 2> pair_ = {1, 2};
  int b_{0};
};
enum class Kind { kA, kB };
"""
        found = self.functions(text)
        self.assertEqual(found["Box"], (3, 2))
        self.assertEqual(found["operator"], (1, 2))
        self.assertEqual(found["Map"], (4, 2))
        self.assertEqual(found["Verb"], (1, 2))
        self.assertEqual(found["Count"], (1, 1))
        self.assertEqual(found["Default"], (3, 2))
        self.assertEqual(set(found) - {"~Box"}, {"Box", "operator", "Map", "Verb", "Count", "Default"})

    def test_a_table_of_constants_is_no_function(self):
        self.assertEqual(self.functions("constexpr int kTable[] = {\n" + "1, 2,\n" * 100 + "};\nint x = f(1, 2);\n"), {})

    def problems(self, path, text, config=CONFIG):
        return check_sizes.check_file(check_sizes.Config(config), path, text)

    def test_the_limits_are_limits(self):
        self.assertEqual(self.problems("a.cc", "void F() {\n" + body(78) + "}\n"), [])
        self.assertIn("F has 81 lines", self.problems("a.cc", "void F() {\n" + body(79) + "}\n")[0])
        self.assertEqual(self.problems("a.cc", "// x\n" * 600), [])
        self.assertIn("601 lines", self.problems("a.cc", "// x\n" * 601)[0])
        self.assertEqual(self.problems("a.cc", "// x\n" * 601, CONFIG + "\ntable a.cc\n"), [])
        six = "int a, int b, int c, int d, int e, int f"
        self.assertEqual(self.problems("a.h", f"void F({six});\n"), [])
        self.assertIn("7 parameters", self.problems("a.h", f"void F({six}, int g);\n")[0])
        self.assertIn("7 parameters", self.problems("a.cc", f"Foo::Foo({six}, int g) : a_(a) {{}}\n")[0])

    def test_python_is_measured_too(self):
        text = "#!/usr/bin/env python3\ndef f(a, b, c, d, e, g, h):\n" + "    pass\n" * 80
        self.assertEqual(len(self.problems(".ci/check", text)), 2)

    def test_names_that_say_nothing(self):
        config = check_sizes.Config(CONFIG)
        for path in [
            "src/base/utils.h", "src/common/a.h", "src/kv/page_manager.cc", "src/kv/test_helpers.h", "tools/misc.py",
        ]:
            self.assertEqual(len(check_sizes.check_name(config, path)), 1, path)
        for path in ["src/base/check.h", "src/kv/pool/longest_common_prefix.h", "src/engine/ops/util_rate.h"]:
            self.assertEqual(check_sizes.check_name(config, path), [], path)

    def test_a_repository_with_an_offender_fails(self):
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root)
            subprocess.run(["git", "init", "-q", root], check=True)
            (folder / ".ci").mkdir()
            (folder / ".ci/sizes.txt").write_text(CONFIG, encoding="utf-8")
            (folder / ".gitignore").write_text("/build/\n", encoding="utf-8")
            (folder / "build").mkdir()
            (folder / "build/utils.h").write_text("", encoding="utf-8")
            self.assertEqual(self.run_main(root)[0], 0)
            (folder / "utils.h").write_text("void F() {\n" + body(100) + "}\n", encoding="utf-8")
            code, output = self.run_main(root)
            self.assertEqual(code, 1)
            self.assertIn("utils.h: 'utils' says nothing", output)
            self.assertIn("utils.h:1: F has 102 lines", output)

    def run_main(self, root):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = check_sizes.main(["--root", root])
        return code, output.getvalue()


if __name__ == "__main__":
    unittest.main()
