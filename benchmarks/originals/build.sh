#!/bin/bash
# Builds the code-diffusion artifact (a fork of TVM v0.15 with Ansor, in two source trees), CPU only.
#
#   benchmarks/originals/build.sh CHECKOUT BUILD [JOBS]
#
# CHECKOUT is a checkout of the artifact and is not written to; BUILD receives `ansor/` and `code-diffusion/`, each with
# the Python package and libtvm.so of its tree, and `venv/`, the Python environment both run in.
# Needs cmake, ninja, clang (CXX, default clang++-14), LLVM's headers (LLVM_CONFIG, default llvm-config-14) and a
# Python 3.9 or 3.10 (PYTHON, default python3.10). A build that was interrupted goes on where it stopped.
set -euo pipefail
checkout=$(realpath "$1")
mkdir -p "$2"
build=$(realpath "$2")
jobs=${3:-2}
here=$(dirname "$(realpath "$0")")
export CXX=${CXX:-clang++-14} CC=${CC:-clang-14}

# The two trees differ in a few files of the auto-scheduler, so one tree is built and then overlaid with the other:
# only what the differing files touch is compiled twice.
tree=$build/tree
objects=$build/objects
mkdir -p "$objects"

overlay() { # copy the files of tree $1 that differ; unchanged files keep their times, so ninja leaves them alone
  rsync -rlc --delete --exclude /build "$checkout/$1/" "$tree/"
}

compile() { # build tree $1 and put its library and Python package under $2
  overlay "$1"
  # Copied if they differ: a build that goes on may be started from another place, and keeps what it has compiled.
  rsync -pc "$here/precompiled.sh" "$here/headers.h" "$objects/"
  cp "$checkout/config/config.cmake" "$objects/config.cmake"
  printf 'set(USE_CUDA OFF)\nset(USE_LLVM "%s")\nset(USE_CCACHE OFF)\nset(USE_GTEST OFF)\nset(USE_LIBBACKTRACE OFF)\n' \
    "${LLVM_CONFIG:-llvm-config-14}" >>"$objects/config.cmake"
  cmake -S "$tree" -B "$objects" -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$objects/precompiled.sh;$objects/headers.pch" >"$build/cmake.log" 2>&1
  if [ ! -e "$objects/headers.pch" ]; then
    "$objects/precompiled.sh" --make "$objects" "$objects/headers.h"
  fi
  ninja -C "$objects" -j "$jobs" tvm
  mkdir -p "$build/$2"
  rsync -a --delete "$tree/python/" "$build/$2/python/"
  cp "$objects/libtvm.so" "$build/$2/libtvm.so"
}

if [ ! -e "$build/venv/bin/python" ]; then
  "${PYTHON:-python3.10}" -m venv "$build/venv"
fi
"$build/venv/bin/python" -m pip install -q -r "$here/requirements.txt"
[ -e "$build/code-diffusion/libtvm.so" ] || compile tvm-bayesian_code_diffusion code-diffusion
[ -e "$build/ansor/libtvm.so" ] || compile tvm-ansor ansor
echo "built under $build"
