//! Launches with known outputs, as `scripts/kernels.py` writes them: a module, a launch, its buffers.

use std::path::{Path, PathBuf};

use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Contents, Device, Facts, Image, Launch, LaunchError, Maps};
use gpuwhy_gpubpf::splice::Table;

/// One parameter.
pub enum Parameter {
    Scalar(Vec<u8>),
    Buffer {
        bytes: usize,
        before: Option<Vec<u8>>,
        after: Option<Vec<u8>>,
        kind: String,
        tolerance: f64,
    },
}

/// One launch.
pub struct Case {
    pub name: String,
    pub module: PathBuf,
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u64,
    pub parameters: Vec<Parameter>,
}

fn numbers(text: &str) -> [u32; 3] {
    let found: Vec<u32> = text.split(' ').map(|n| n.parse().unwrap()).collect();
    found.try_into().unwrap()
}

impl Case {
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let data = std::fs::read(path.with_extension("bin")).unwrap();
        let (mut at, folder) = (0, path.parent().unwrap());
        let mut take = |bytes: usize| {
            at += bytes;
            data[at - bytes..at].to_vec()
        };
        let mut case = Self {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            module: PathBuf::new(),
            kernel: String::new(),
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
            parameters: Vec::new(),
        };
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap();
            match word {
                "module" => case.module = folder.join(rest),
                "kernel" => case.kernel = rest.to_owned(),
                "grid" => case.grid = numbers(rest),
                "block" => case.block = numbers(rest),
                "shared" => case.shared = rest.parse().unwrap(),
                "scalar" => {
                    let pairs = rest.as_bytes().chunks(2);
                    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
                    let bytes = pairs.map(|pair| byte(pair).unwrap()).collect();
                    case.parameters.push(Parameter::Scalar(bytes));
                }
                _ => {
                    let words: Vec<&str> = rest.split(' ').collect();
                    let bytes: usize = words[0].parse().unwrap();
                    let before = words.contains(&"in").then(|| take(bytes));
                    let out = words.iter().position(|w| *w == "out");
                    let after = out.map(|_| take(bytes));
                    let kind = out.map_or("exact", |at| words[at + 1]).to_owned();
                    let tolerance = out.map_or(0.0, |at| words[at + 2].parse().unwrap());
                    case.parameters.push(Parameter::Buffer {
                        bytes,
                        before,
                        after,
                        kind,
                        tolerance,
                    });
                }
            }
        }
        case
    }

    /// All of a folder, by name.
    pub fn all(folder: &Path) -> Vec<Self> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "case"))
            .collect();
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Runs the kernel of `text` and compares what is in its buffers.
    pub fn run(&self, text: &str, config: Config) -> Result<Facts, String> {
        self.run_with(text, config, None).map(|(facts, _)| facts)
    }

    /// The same of a text with probes in it, and what their maps hold.
    pub fn run_with(
        &self,
        text: &str,
        config: Config,
        probes: Option<&Table>,
    ) -> Result<(Facts, Vec<Contents>), String> {
        self.run_by(text, config, probes, |device, image, launch| device.launch(image, launch))
    }

    /// The same, launched by somebody else.
    pub fn run_by(
        &self,
        text: &str,
        config: Config,
        probes: Option<&Table>,
        by: impl FnOnce(&mut Device, &Image, &Launch) -> Result<Facts, LaunchError>,
    ) -> Result<(Facts, Vec<Contents>), String> {
        let module = Module::read(text).map_err(|e| e.to_string())?;
        let mut device = Device::new(config);
        let image = device.load(&module).map_err(|e| e.to_string())?;
        let mut parameters = Vec::new();
        let mut addresses = Vec::new();
        for parameter in &self.parameters {
            match parameter {
                Parameter::Scalar(bytes) => parameters.push(bytes.clone()),
                Parameter::Buffer { bytes, before, .. } => {
                    let address = match before {
                        Some(before) => device.upload(before),
                        None => device.allocate(*bytes as u64),
                    };
                    let address = address.ok_or("no room")?;
                    addresses.push(address);
                    parameters.push(address.to_le_bytes().to_vec());
                }
            }
        }
        // Triton's kernels have two scratch buffers more, which these do not use.
        let has = image.parameters(&self.kernel).map_or(0, |has| has.len());
        parameters.resize(has.max(parameters.len()), vec![0; 8]);
        let launch = Launch {
            kernel: &self.kernel,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared,
            parameters: &parameters,
        };
        let maps = match probes {
            None => None,
            Some(table) => Some(Maps::bind(&mut device, &image, table, self.threads(), 0)?),
        };
        let facts = by(&mut device, &image, &launch).map_err(|e| e.to_string())?;
        let buffers = self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Buffer { bytes, after, kind, tolerance, .. } => {
                Some((*bytes, after, kind, *tolerance))
            }
            Parameter::Scalar(_) => None,
        });
        for (number, ((bytes, after, kind, tolerance), address)) in
            buffers.zip(addresses).enumerate()
        {
            if let Some(after) = after {
                let found = device.read(address, bytes).map_err(|e| e.to_string())?;
                compare(found, after, kind, tolerance)
                    .map_err(|why| format!("buffer {number}: {why}"))?;
            }
        }
        Ok((facts, maps.map(|maps| maps.read(&device)).unwrap_or_default()))
    }

    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).map(|side| u64::from(*side)).product()
    }

    /// How many warps the launch has.
    pub fn warps(&self) -> u64 {
        let product = |sides: &[u32; 3]| sides.iter().map(|side| u64::from(*side)).product::<u64>();
        product(&self.grid) * product(&self.block).div_ceil(32)
    }
}

fn value(bytes: &[u8]) -> f64 {
    match bytes.len() {
        8 => f64::from_le_bytes(bytes.try_into().unwrap()),
        4 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => {
            let bits = u16::from_le_bytes(bytes.try_into().unwrap());
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let size = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
            };
            if bits >> 15 == 1 { -size } else { size }
        }
    }
}

/// Bits, or numbers whose difference is `tolerance` of the larger of 1 and what is expected.
fn compare(found: &[u8], expected: &[u8], kind: &str, tolerance: f64) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let size = match kind {
        "f16" => 2,
        "f32" => 4,
        "f64" => 8,
        _ => {
            let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap();
            let (a, b) = (&found[at / 4 * 4..], &expected[at / 4 * 4..]);
            let (a, b) = (&a[..a.len().min(4)], &b[..b.len().min(4)]);
            return Err(format!("byte {at}: {a:?} is not {b:?}"));
        }
    };
    for (at, (a, b)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
        let (found, expected) = (value(a), value(b));
        let near = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        if a != b && !near {
            return Err(format!("element {at}: {found:e} is not {expected:e}"));
        }
    }
    Ok(())
}
