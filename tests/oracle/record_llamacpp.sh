#!/usr/bin/env bash
# Records llama.cpp's answers that tests/oracle/llamacpp_test.cc compares with, into tests/data/llamacpp and
# tests/data/tiny_models. Needs a llama.cpp source tree and a folder in which libllama was built from it:
#   cmake -S LLAMA_CPP -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
#     -DGGML_OPENMP=OFF -DLLAMA_BUILD_COMMON=OFF && ninja -C BUILD llama
# Usage: tests/oracle/record_llamacpp.sh LLAMA_CPP BUILD [MODEL.gguf ...]
# Without models only the tiny ones in tests/data/tiny_models are recorded. The committed records come from the llama.cpp of
# llama-cpp-python 0.3.36.
set -euo pipefail
tree=${1:?usage: record_llamacpp.sh LLAMA_CPP BUILD [MODEL.gguf ...]}
build=${2:?usage: record_llamacpp.sh LLAMA_CPP BUILD [MODEL.gguf ...]}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
data="$here/../data"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
g++ -std=c++20 -O2 -I"$tree/include" -I"$tree/ggml/include" -I"$here" -I"$here/../.." "$here/record_llamacpp.cc" "$here/widened_weights.cc" -o "$work/record_llamacpp" \
  "$build/src/libllama.a" "$build/ggml/src/libggml.a" "$build/ggml/src/libggml-cpu.a" "$build/ggml/src/libggml-base.a" \
  -pthread -ldl
mkdir -p "$data/llamacpp"
for model in "$@"; do
  "$work/record_llamacpp" "$model" "$data/llamacpp/$(basename "$model" .gguf).bin" --text "$data/llamacpp/text.txt"
  case $model in
    *SmolLM2*) "$work/record_llamacpp" "$model" "$data/llamacpp/$(basename "$model" .gguf).widened.bin" \
      --text "$data/llamacpp/text.txt" --widen "$work/widened.gguf" ;;
  esac
done
for model in "$data"/tiny_models/*.gguf; do
  [ -e "$model" ] || continue
  "$work/record_llamacpp" "$model" "${model%.gguf}.bin" --random-tokens 96
done
