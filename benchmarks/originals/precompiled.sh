#!/bin/bash
# Compiler launcher of build.sh: compiles with the precompiled headers, or plainly where a source does not compile with them.
#
#   precompiled.sh --make OBJECTS HEADERS.h    make OBJECTS/headers.pch with the flags of one of TVM's sources
#   precompiled.sh HEADERS.pch COMPILER ARGUMENTS...
set -uo pipefail
if [ "$1" = --make ]; then
  flags=$(python3 - "$2/compile_commands.json" <<'PY'
import json, sys
commands = {entry["file"]: entry["command"] for entry in json.load(open(sys.argv[1]))}
command = next(c for f, c in commands.items() if f.endswith("src/tir/transforms/vectorize_loop.cc"))
print(command.split(".pch ", 1)[-1].rsplit(" -o ", 1)[0])
PY
)
  cd "$2" && eval "$flags -fpch-instantiate-templates -x c++-header '$3' -o headers.pch.part" && mv headers.pch.part headers.pch
  exit
fi
pch=$1
compiler=$2
shift 2
if [ -e "$pch" ] && "$compiler" -include-pch "$pch" "$@" 2>/dev/null; then exit 0; fi
exec "$compiler" "$@"
