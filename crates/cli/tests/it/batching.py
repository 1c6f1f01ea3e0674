"""Continuous batching of transformers with a tiny model of random weights: batching.py REQUESTS

Prints `request NAME PROMPT OUTPUT` for each, and `forward N` for the tokens that the model was given in each step.
"""

import random
import sys

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config

count = int(sys.argv[1])
torch.manual_seed(1)
config = Qwen2Config(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=2048,
)
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
model.eval()


def told(module, arguments, named):
    ids = named.get("input_ids") if "input_ids" in named else arguments[0]
    print("forward", ids.numel(), flush=True)


model.register_forward_pre_hook(told, with_kwargs=True)
dice = random.Random(3)
prompts = [[dice.randrange(3, 319) for _ in range(dice.randrange(4, 200))] for _ in range(count)]
settings = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)
results = model.generate_batch(inputs=prompts, generation_config=settings)
for name, result in results.items():
    print("request", name, len(result.prompt_ids), len(result.generated_tokens))
