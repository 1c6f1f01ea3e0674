//! Any text that reads as PTX, simulated: it ends, well or with a fault, within its limits.

#![no_main]

use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Launch, Limits};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let Ok(module) = Module::read(&text) else { return };
    let limits =
        Limits { instructions: 2000, memory: 16 << 20, local: 4096, calls: 8, warp_facts: 8 };
    let config = Config { sms: 2, warps_per_sm: 4, limits, ..Config::default() };
    let mut device = Device::new(config);
    let Ok(image) = device.load(&module) else { return };
    let Some(memory) = device.upload(&[1; 1024]) else { return };
    let kernels: Vec<String> = image.kernels().take(4).map(str::to_owned).collect();
    for kernel in &kernels {
        image.missing(kernel);
        let bytes = image.parameters(kernel).unwrap_or_default();
        // Parameters are addresses of memory, over and over.
        let parameter = |bytes: u32| memory.to_le_bytes().into_iter().cycle().take(bytes as usize);
        let parameters: Vec<Vec<u8>> =
            bytes.iter().map(|&bytes| parameter(bytes).collect()).collect();
        let launch = Launch {
            kernel,
            grid: [3, 1, 1],
            block: [40, 1, 1],
            dynamic_shared: 256,
            parameters: &parameters,
        };
        if let Ok(facts) = device.launch(&image, &launch) {
            assert!(facts.total.instructions <= limits.instructions);
            assert!(facts.total.lanes <= facts.total.instructions * 32);
        }
        if let Err(error) = device.launch(&image, &launch) {
            assert!(error.to_string().len() < 10_000);
        }
    }
});
