#!/usr/bin/env bash
# Correctness and speed on one GPU, in at most 8 minutes, from an environment that has PyTorch (CUDA)
# and Transformers. Run it in the repository's root; what it measured goes to $OUT (default: gpu_check).
#
#   benchmarks/gpu_check.sh            all of it
#   DEVICE=cpu MODEL=tiny TESTS=tests/gpu benchmarks/gpu_check.sh   a rehearsal without a GPU
set -uo pipefail
cd "$(dirname "$0")/.."
DEVICE=${DEVICE:-cuda} MODEL=${MODEL:-} OUT=${OUT:-gpu_check} PYTHON=${PYTHON:-python3}
TESTS=${TESTS:-tests/gpu tests/ops tests/rollout/test_engines.py tests/rollout/test_graphs.py}
mkdir -p "$OUT"
export PYTHONPATH="$PWD/src:$PWD/tests:$PWD/tests/train" PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
FAILED=0

step() {  # step NAME SECONDS COMMAND…: a step that fails or is late does not keep the next from running
  local name=$1 limit=$2 began=$SECONDS; shift 2
  timeout "$limit" "$@" >"$OUT/$name.log" 2>&1
  local code=$?
  echo "$name: exit $code after $((SECONDS - began)) s"
  tail -n "${SHOWN:-6}" "$OUT/$name.log" | sed 's/^/    /'
  [ $code = 0 ] || FAILED=1
}

# What the environment lacks, and only that: PyTorch and Transformers stay as they are. Without a
# network, wheels in .gpu_wheels are used (pip download -d .gpu_wheels NAME…, where there is one).
MISSING=$($PYTHON - <<'EOF'
import importlib.util as u
names = {"pydantic": "pydantic", "omegaconf": "omegaconf", "yaml": "pyyaml", "jinja2": "jinja2",
         "typer": "typer", "rich": "rich", "mpmath": "mpmath", "pyarrow": "pyarrow",
         "cloudpickle": "cloudpickle", "jaxtyping": "jaxtyping", "peft": "peft",
         "math_verify": "math-verify[antlr4_13_2]", "pytest": "pytest", "beartype": "beartype",
         "hypothesis": "hypothesis"}
print(*[package for module, package in names.items() if u.find_spec(module) is None])
EOF
)
if [ -n "$MISSING" ]; then
  FROM=(); [ -d .gpu_wheels ] && FROM=(--no-index --find-links .gpu_wheels)
  # shellcheck disable=SC2086
  step install 80 $PYTHON -m pip install --quiet "${FROM[@]}" $MISSING
fi
step machine 20 $PYTHON -c '
import torch, transformers
print(torch.__version__, transformers.__version__, torch.version.cuda)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")'
# shellcheck disable=SC2086
SHOWN=15 step tests 150 $PYTHON -m pytest -q -rs -p no:cacheprovider $TESTS
if [ "$DEVICE" = cuda ]; then
  SHOWN=4 step run 50 $PYTHON -m lydite run recipes/quickstart.yaml device=cuda stages.0.steps=50 \
    stages.1.steps=10 stages.2.steps=10 --out "$OUT/quickstart"
fi
for model in ${MODEL:-135m 0.5b 1.5b}; do
  SHOWN=1 step "speed-$model" 50 $PYTHON benchmarks/gpu.py --device "$DEVICE" --model "$model"
done
exit $FAILED
