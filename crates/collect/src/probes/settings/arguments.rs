//! Arguments of a command that starts an engine of language models, as far as they decide how fast it is.
//!
//! *What it sees*: the command of a process or of one of its ancestors, since an engine starts others, which may call
//! themselves as they like. *What fools it*: what a file of settings says, defaults, and an engine that is started from
//! within Python.
//!
//! A command may hold secrets. An argument is recorded only if its name is in the list; of one that is a JSON object only
//! those of its values whose names are.

use std::fs;
use std::io::Read as _;

use crate::procfs;

/// Commands, and how the word after them begins.
const COMMANDS: &[(&str, &str)] = &[
    ("vllm", "serve"),
    ("sglang", "serve"),
    ("lmdeploy", "serve"),
    ("trtllm-serve", ""),
    ("text-generation-launcher", ""),
    ("llama-server", ""),
];
/// How modules begin that are engines.
const MODULES: &[&str] = &["vllm.entrypoints.", "sglang.launch_server"];
/// Ancestors that are asked: vLLM's worker is a grandchild of its server.
const ANCESTORS: usize = 3;
/// Bytes of a command that are read,
const COMMAND: u64 = 64 << 10;
/// and characters of a value.
const VALUE: usize = 200;

/// Names that mean others.
const SAME: &[(&str, &str)] = &[
    ("dp", "data-parallel-size"),
    ("dp-size", "data-parallel-size"),
    ("pp", "pipeline-parallel-size"),
    ("pp-size", "pipeline-parallel-size"),
    ("tp", "tensor-parallel-size"),
    ("tp-size", "tensor-parallel-size"),
];

/// Arguments that are recorded: of vLLM 0.11 to 0.32, SGLang 0.5, TensorRT-LLM 1.0 and llama.cpp.
const RECORDED: &[&str] = &[
    "async-scheduling",
    "attention-backend",
    "batch-size",
    "block-size",
    "chunked-prefill-size",
    "compilation-config",
    "cpu-offload-gb",
    "cuda-graph-bs",
    "cuda-graph-max-bs",
    "cuda-graph-sizes",
    "data-parallel-size",
    "disable-cuda-graph",
    "disable-custom-all-reduce",
    "disable-hybrid-kv-cache-manager",
    "disable-overlap-schedule",
    "disable-radix-cache",
    "distributed-executor-backend",
    "dtype",
    "enable-chunked-prefill",
    "enable-dp-attention",
    "enable-eplb",
    "enable-expert-parallel",
    "enable-prefix-caching",
    "enable-torch-compile",
    "enforce-eager",
    "flash-attn",
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "kv-transfer-config",
    "load-format",
    "max-batch-size",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-seqs",
    "max-num-tokens",
    "max-running-requests",
    "mem-fraction-static",
    "n-gpu-layers",
    "no-async-scheduling",
    "no-enable-chunked-prefill",
    "no-enable-prefix-caching",
    "num-gpu-blocks-override",
    "num-speculative-tokens",
    "optimization-level",
    "parallel",
    "pipeline-parallel-size",
    "quantization",
    "schedule-policy",
    "scheduling-policy",
    "speculative-algorithm",
    "speculative-config",
    "speculative-num-draft-tokens",
    "swap-space",
    "tensor-parallel-size",
    "threads",
    "torch-compile-max-bs",
];
/// Values of arguments that are JSON objects, or are named `--argument.value`.
const WITHIN: &[&str] = &[
    "cudagraph_mode",
    "kv_connector",
    "kv_role",
    "level",
    "method",
    "mode",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "use_inductor",
];

/// The arguments of the engine that a process belongs to: name and value.
pub(super) fn of_process(pid: u32) -> Vec<(String, String)> {
    let mut at = pid;
    for _ in 0..=ANCESTORS {
        let mut bytes = Vec::new();
        if let Ok(file) = fs::File::open(format!("/proc/{at}/cmdline")) {
            let _ = file.take(COMMAND).read_to_end(&mut bytes);
        }
        if let Some(found) = of_command(&bytes) {
            return found;
        }
        match procfs::parent(at) {
            Some(parent) if parent > 1 => at = parent,
            _ => break,
        }
    }
    Vec::new()
}

/// The arguments of an engine; `None` if the command is none. Words end with a zero byte.
fn of_command(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let words: Vec<&str> = bytes
        .split(|byte| *byte == 0)
        .map(|word| std::str::from_utf8(word).unwrap_or(""))
        .collect();
    let base = |word: &'_ str| word.rsplit('/').next().unwrap_or_default().to_owned();
    // The program, or what an interpreter runs.
    let run = match base(words.first()?).starts_with("python") {
        true => 1 + words[1..].iter().position(|word| !word.starts_with('-'))?,
        false => 0,
    };
    let next = words.get(run + 1).copied().unwrap_or_default();
    let is_command =
        |(name, then): &(&str, &str)| base(words[run]) == *name && next.starts_with(then);
    let is_module = run > 1
        && words[run - 1] == "-m"
        && MODULES.iter().any(|module| words[run].starts_with(module));
    if !is_module && !COMMANDS.iter().any(is_command) {
        return None;
    }
    let mut out = Vec::new();
    let mut rest = words[run + 1..].iter().peekable();
    while let Some(word) = rest.next() {
        let Some(named) = word.strip_prefix("--").or_else(|| short(word)) else { continue };
        let (name, value) = match named.split_once('=') {
            Some((name, value)) => (name, value),
            None => match rest.peek() {
                Some(next) if !is_option(next) && !next.is_empty() => (named, **next),
                _ => (named, "on"),
            },
        };
        out.append(&mut recorded(name, value));
    }
    Some(out)
}

/// Whether a word names an argument; a negative number is a value.
fn is_option(word: &str) -> bool {
    word.starts_with('-') && !word[1..].starts_with(|c: char| c.is_ascii_digit())
}

/// `-tp` and the like, which have several letters.
fn short(word: &str) -> Option<&str> {
    let name = word.strip_prefix('-')?;
    SAME.iter().any(|(same, _)| *same == name.split('=').next().unwrap_or(name)).then_some(name)
}

/// What is recorded of an argument, by the names that settings have.
fn recorded(name: &str, value: &str) -> Vec<(String, String)> {
    let name = name.replace('_', "-");
    let (name, within) = match name.split_once('.') {
        Some((name, within)) => (name.to_owned(), Some(within.replace('-', "_"))),
        None => (name, None),
    };
    let same = SAME.iter().find(|(other, _)| *other == name);
    let name = same.map_or(&*name, |(_, name)| name);
    if !RECORDED.contains(&name) {
        return Vec::new();
    }
    let setting = |name: String, value: &str| (name, value.chars().take(VALUE).collect::<String>());
    let known = |within: &&str| WITHIN.contains(within);
    if let Some(within) = within.as_deref() {
        let known = Some(within).filter(known);
        return known.map(|of| setting(format!("--{name}.{of}"), value)).into_iter().collect();
    }
    if !value.starts_with('{') {
        return vec![setting(format!("--{name}"), value)];
    }
    let Ok(serde_json::Value::Object(object)) = serde_json::from_str(value) else {
        return Vec::new();
    };
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Some(value.to_string()),
        _ => None,
    };
    object
        .iter()
        .filter(|(of, _)| known(&of.as_str()))
        .filter_map(|(of, value)| Some(setting(format!("--{name}.{of}"), &text(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments that are recorded of a command, as text.
    fn of(command: &str) -> Option<Vec<String>> {
        let bytes = command.replace(' ', "\0") + "\0";
        let found = of_command(bytes.as_bytes())?;
        Some(found.into_iter().map(|(name, value)| format!("{name} {value}")).collect())
    }

    #[test]
    fn arguments_of_an_engine_are_recorded_that_decide_how_fast_it_is_and_no_others() {
        let vllm = "/v/bin/python3.11 -u /v/bin/vllm serve /models/secret-name --api-key sk-123 --enforce-eager \
                    --tensor_parallel_size=2 --max-num-seqs 32 --host 127.0.0.1 --gpu-memory-utilization 0.9 --port 80";
        let wanted = [
            "--enforce-eager on",
            "--tensor-parallel-size 2",
            "--max-num-seqs 32",
            "--gpu-memory-utilization 0.9",
        ];
        assert_eq!(of(vllm).unwrap(), wanted);
        let module = "python3 -m sglang.launch_server --model-path x -tp 4 --disable-cuda-graph --mem-fraction-static 0.8";
        let wanted =
            ["--tensor-parallel-size 4", "--disable-cuda-graph on", "--mem-fraction-static 0.8"];
        assert_eq!(of(module).unwrap(), wanted);
        assert_eq!(
            of("trtllm-serve m --tp_size 8 --n-gpu-layers -1").unwrap(),
            ["--tensor-parallel-size 8", "--n-gpu-layers -1"]
        );
    }

    #[test]
    fn of_an_argument_that_is_an_object_the_known_values_are_recorded() {
        let command = r#"vllm serve m --kv-transfer-config {"kv_connector":"ExampleConnector","kv_role":"kv_both","kv_connector_extra_config":{"token":"t"},"kv_ip":"10.0.0.1"} -O.mode 3 --speculative-config.method ngram --compilation-config {broken"#;
        let wanted = [
            "--kv-transfer-config.kv_connector ExampleConnector",
            "--kv-transfer-config.kv_role kv_both",
            "--speculative-config.method ngram",
        ];
        assert_eq!(of(command).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_engine_has_no_arguments() {
        for command in [
            "bash -c vllm_serve",
            "python3 train.py --dtype bf16",
            "grep -r vllm serve --threads 4",
            "vllm bench serve --max-num-seqs 3",
            "",
        ] {
            assert_eq!(of(command), None, "{command}");
        }
        assert_eq!(of("vllm serve").unwrap(), Vec::<String>::new());
        // Bytes that are no text, and no end of words.
        let mut hostile = b"vllm\0serve\0--dtype\0\xff\xfe\0--block-size\0".to_vec();
        hostile.extend(vec![b'9'; 10_000]);
        let found = of_command(&hostile).unwrap();
        assert_eq!(found.last().unwrap().1.len(), VALUE);
    }
}
