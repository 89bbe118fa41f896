#!/bin/sh
# The committed tables of decoded weights equal the output of the packages gguf and mlx.
python=${PYTHON:-python3}
if ! "$python" -c 'import numpy, gguf, mlx.core' 2>/dev/null; then
  echo "skip quant_table: no numpy, gguf and mlx for $python"
  echo "quant_table: 0 passed, 0 failed, 1 skipped"
elif "$python" tests/gen/quant_table.py --check; then
  echo "quant_table: 1 passed, 0 failed, 0 skipped"
else
  echo "quant_table: 0 passed, 1 failed, 0 skipped"
  exit 1
fi
