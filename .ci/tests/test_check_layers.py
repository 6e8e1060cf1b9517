import contextlib
import io
import pathlib
import tempfile
import unittest

from load_script import load_script

check_layers = load_script("check_layers")
TABLE = (pathlib.Path(__file__).resolve().parent.parent / "layers.txt").read_text(encoding="utf-8")


class CheckLayersTest(unittest.TestCase):
    def setUp(self):
        self.layers = check_layers.Layers(TABLE)

    def reason(self, source, target):
        return self.layers.may_include(source, target)

    def test_what_the_table_allows(self):
        for source, target in [
            ("src/base/check.cc", "src/base/check.h"),
            ("src/base/check.h", "include/oscar/result.h"),
            ("src/io/gguf.cc", "src/base/check.h"),
            ("src/kv/profile/profile_file.cc", "src/io/safetensors.h"),
            ("src/kv/profile/codec_profile.cc", "src/kv/transform/hadamard.h"),
            ("src/kv/codec/affine/cpu.cc", "src/kv/kernels/codec_kernels.h"),
            ("src/kv/codec/affine/cpu.cc", "src/kv/codec/codec.h"),
            ("src/kv/codec/registry.cc", "src/kv/codec/affine/layout.h"),
            ("src/kv/backend/cpu_backend.cc", "src/kv/codec/registry.h"),
            ("src/kv/cache/kv_cache.cc", "src/kv/codec/affine/layout.h"),
            ("src/engine/text/chat/chat_template.cc", "src/engine/text/jinja/parser.h"),
            ("src/engine/ops/cpu/ggml_ops.cc", "src/engine/weights/weight.h"),
            ("src/engine/models/llama.cc", "src/engine/ops/ops.h"),
            ("src/engine/evaluate/ruler.cc", "src/engine/runtime/engine.h"),
            ("tools/run.cc", "src/engine/runtime/engine.h"),
        ]:
            self.assertIsNone(self.reason(source, target), f"{source} -> {target}")

    def test_what_the_table_forbids(self):
        for source, target in [
            ("include/oscar/types.h", "src/base/check.h"),
            ("src/base/check.h", "src/io/gguf.h"),
            ("src/io/gguf.h", "src/kv/pool/page_pool.h"),
            ("src/kv/transform/hadamard.cc", "src/kv/pool/page_pool.h"),
            ("src/kv/profile/codec_profile.cc", "src/kv/kernels/params.h"),
            ("src/kv/kernels/params.h", "src/io/gguf.h"),
            ("src/kv/codec/affine/cpu.cc", "src/kv/codec/bf16/layout.h"),
            ("src/kv/codec/affine/cpu.cc", "src/io/gguf.h"),
            ("src/kv/backend/cpu_backend.cc", "src/kv/codec/codec.h"),
            ("src/kv/backend/cpu_backend.cc", "src/kv/codec/affine/layout.h"),
            ("src/kv/cache/kv_cache.cc", "src/kv/calibrate/moments.h"),
            ("src/engine/weights/weight.cc", "src/kv/pool/page_pool.h"),
            ("src/engine/weights/weight.cc", "src/engine/ops/ops.h"),
            ("src/engine/text/tokenizer.cc", "src/engine/sample/sampler.h"),
            ("src/engine/models/llama.cc", "src/engine/schedule/request.h"),
            ("src/engine/evaluate/ruler.cc", "src/engine/bench/step.h"),
            ("src/engine/runtime/engine.cc", "tools/terminal.h"),
            ("tools/run.cc", "src/kv/pool/page_pool.h"),
            ("tools/run.cc", "src/testing/seeds.h"),
            ("tools/run.cc", "src/engine/text/tokenizer_test.cc"),
            ("src/novel/thing.cc", "src/base/check.h"),
            ("src/kv/thing.h", "src/base/check.h"),
        ]:
            self.assertIsNotNone(self.reason(source, target), f"{source} -> {target}")

    def test_headers_have_homes(self):
        for source, header in [
            ("include/oscar/types.h", "cstdint"),
            ("include/oscar/oscar_c.h", "stdint.h"),
            ("src/base/digest.cc", "openssl/evp.h"),
            ("src/kv/codec/affine/cpu.cc", "hwy/highway.h"),
            ("src/engine/hub/hub_client.h", "nlohmann/json_fwd.hpp"),
            ("src/engine/hub/hub_client.cc", "nlohmann/json.hpp"),
            ("src/base/cuda_check.h", "cuda_runtime.h"),
            ("src/engine/ops/cpu/ggml_ops.cc", "ggml-cpu.h"),
        ]:
            self.assertIsNone(self.layers.header_problem(source, header), f"{source}: {header}")
        for source, header in [
            ("include/oscar/types.h", "nlohmann/json_fwd.hpp"),
            ("include/oscar/types.h", "unistd.h"),
            ("include/oscar/types.h", "stdint.h"),
            ("src/base/float_bits.h", "stdint.h"),
            ("src/io/gguf.cc", "openssl/evp.h"),
            ("src/io/gguf.cc", "ggml.h"),
            ("src/engine/text/tokenizer.cc", "hwy/highway.h"),
            ("src/engine/hub/hub_client.h", "nlohmann/json.hpp"),
            ("src/kv/pool/page_pool.cc", "fmt/format.h"),
            ("src/kv/pool/page_pool.cc", "cuda_runtime.h"),
            ("src/kv/pool/page_pool.cc", "absl/strings/string_view.h"),
        ]:
            self.assertIsNotNone(self.layers.header_problem(source, header), f"{source}: {header}")

    def test_a_tree_with_one_wrong_include_fails_with_its_line(self):
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root)
            for name, text in {
                ".ci/layers.txt": TABLE,
                "src/base/check.h": "#pragma once\n",
                "src/io/gguf.h": '#pragma once\n#include "src/base/check.h"\n',
                "src/io/gguf_test.cc": '#include "src/testing/seeds.h"\n#include <gtest/gtest.h>\n',
                "src/testing/seeds.h": "#include <random>\n",
            }.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
            self.assertEqual(self.run_main(root)[0], 0)
            good = (folder / "src/base/check.h").read_text(encoding="utf-8")
            for line, part in [
                ('#include "src/io/gguf.h"', "src/base may not include src/io"),
                ('#include "src/testing/seeds.h"', "included by nobody else"),
                ('#  include "src/base/gone.h"', "no such file"),
                ('#include "check.h"', "no such file"),
                ('#include "oscar/gone.h"', "no such file"),
                ("#include <gtest/gtest.h>", "no line in layers.txt"),
                ("#include OTHER", "cannot be checked"),
            ]:
                (folder / "src/base/check.h").write_text(good + line + "\n", encoding="utf-8")
                code, output = self.run_main(root)
                self.assertEqual(code, 1, line)
                self.assertIn("src/base/check.h:2: ", output)
                self.assertIn(part, output)
            (folder / "src/base/check.h").write_text(good + '// #include "src/io/gguf.h"\n', encoding="utf-8")
            self.assertEqual(self.run_main(root)[0], 0)
            (folder / "src/novel").mkdir()
            (folder / "src/novel/a.cc").write_text("int a;\n", encoding="utf-8")
            self.assertEqual(self.run_main(root)[0], 1)

    def test_a_table_that_contradicts_itself_is_refused(self):
        for text in ["layer 1\na : b\n", "layer 1\na :\na :\n", "a : 0\n", "layer 1\na\n"]:
            with self.assertRaises(check_layers.TableError, msg=text):
                check_layers.Layers(text)

    def run_main(self, root):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = check_layers.main(["--root", root])
        return code, output.getvalue()


if __name__ == "__main__":
    unittest.main()
