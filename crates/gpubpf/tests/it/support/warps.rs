//! Compiled programs in the simulator: a warp, each lane on memory of its own.

use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Facts, Launch, Limits};

use super::machine::Ended;

/// Runs `text`, a module with the kernel `name` as [`gpuwhy_gpubpf::kernel`] writes it, with one
/// thread for each of `memories`, which have one length.
pub fn run(text: &str, name: &str, memories: &[Vec<u8>]) -> Result<(Vec<Ended>, Facts), String> {
    let limits = Limits { instructions: 2_000_000, ..Config::default().limits };
    let mut device = Device::new(Config { sms: 1, limits, ..Config::default() });
    let module = Module::read(text).map_err(|e| e.to_string())?;
    let image = device.load(&module).map_err(|e| e.to_string())?;
    let length = memories.first().map_or(0, Vec::len);
    let stride = length.next_multiple_of(8);
    let mut bytes = Vec::new();
    for memory in memories {
        bytes.extend(memory);
        bytes.resize(bytes.len().next_multiple_of(8), 0xee);
    }
    let memory = device.upload(&bytes).ok_or("no room")?;
    let results = device.allocate(memories.len() as u64 * 8).ok_or("no room")?;
    let words = [memory, stride as u64, length as u64, results];
    let parameters: Vec<Vec<u8>> = words.iter().map(|word| word.to_le_bytes().to_vec()).collect();
    let launch = Launch {
        kernel: name,
        grid: [1, 1, 1],
        block: [memories.len() as u32, 1, 1],
        dynamic_shared: 0,
        parameters: &parameters,
    };
    let facts = device.launch(&image, &launch).map_err(|e| e.to_string())?;
    let read = |at: u64, bytes| device.read(at, bytes).map_err(|e| e.to_string());
    let mut ended = Vec::new();
    for thread in 0..memories.len() {
        let result = read(results + thread as u64 * 8, 8)?;
        let memory = read(memory + (thread * stride) as u64, length)?.to_vec();
        ended.push(Ended { result: u64::from_le_bytes(result.try_into().unwrap()), memory });
    }
    Ok((ended, facts))
}
